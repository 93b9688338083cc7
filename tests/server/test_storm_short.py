"""The storm of ``python -m tests.server.storm``, for some seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.storm import run_storm


@pytest.mark.slow
def test_after_a_short_storm_no_answer_was_wrong_and_nothing_is_left(tmp_path: Path) -> None:
    report = run_storm(tmp_path, minutes=0.2, connections=30, think=0.3, seed=1)

    assert report.findings.wrong == []
    assert report.left == {}
    assert report.leaked_blocks == 0
    assert report.findings.checked > 20
    assert len(report.health) > 10
