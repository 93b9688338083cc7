"""Drafts of n-grams through the binding; the C++ twin of the class looks at every history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_genai import errors
from onnx_genai.engine import NgramProposer

pytestmark = pytest.mark.boundary


def test_table_of_onnxruntime_genai(shared_cases: Path) -> None:
    path = shared_cases / "ort-genai" / "expected.json"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    entries = json.loads(path.read_text(encoding="utf-8"))["cases"]
    (table,) = [entry["expect"] for entry in entries if entry["id"] == "ngram-lookup"]

    for row in table:
        proposer = NgramProposer(row["N"])
        proposer.extend(row["h"])
        if "p" in row:
            assert proposer.propose(row["k"]) == row["p"]
        if "chained" in row:
            assert proposer.propose(row["k"], chained=True) == row["chained"]


def test_draft_follows_the_sequence_back_and_on() -> None:
    proposer = NgramProposer(3)
    proposer.extend(np.array([1, 2, 3, 1, 2], dtype=np.int32))
    proposer.truncate(4)
    assert proposer.propose(4) == []

    proposer.extend([5, 3, 1])

    assert len(proposer) == 7
    assert proposer.propose(4) == [5, 3, 1]


@pytest.mark.parametrize("order", [1, -1, 2.0, True])
def test_wrong_orders_are_refused(order: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="order"):
        NgramProposer(order)


def test_wrong_sizes_and_ids_are_refused() -> None:
    proposer = NgramProposer(2)
    proposer.extend([1, 2])
    with pytest.raises(errors.InvalidArgumentError, match=r"0\.\.2"):
        proposer.truncate(3)
    with pytest.raises(errors.InvalidArgumentError, match="-1"):
        proposer.propose(-1)
    with pytest.raises(errors.InvalidArgumentError, match="-7"):
        proposer.extend([-7])
    assert len(proposer) == 2
