"""The memory-limit grammar as options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.fake_llm import Script


@pytest.mark.parametrize(
    "text", ["auto", "AUTO", "8GiB", "1.5gb", "0.9", "1", "1.0", "0.0", "512mib", "100KB", " 1GiB ", "0.5KiB"]
)
@pytest.mark.parametrize("option", ["--vram-limit", "--host-ram-limit", "--disk-limit", "--packed-cache"])
def test_limit_given_an_accepted_spelling_is_handed_on(
    run: Run, script: Script, model: Path, option: str, text: str
) -> None:
    assert run("generate", model, "-p", "Hi", option, text).code == 0
    assert script.options[option.removeprefix("--").replace("-", "_")] == text


@pytest.mark.parametrize(
    "text",
    [
        "1TiB",
        "1TB",
        "1 GiB",
        "1B",
        "1G",
        "1Gi",
        "-1",
        "-0.5",
        "1.5",
        "nan",
        "inf",
        "",
        "GiB",
        "99999999999999999999",
        "1e3",
    ],
)
@pytest.mark.parametrize("option", ["--vram-limit", "--host-ram-limit", "--disk-limit", "--packed-cache"])
def test_limit_given_another_spelling_is_a_usage_error(
    run: Run, script: Script, model: Path, option: str, text: str
) -> None:
    ran = run("generate", model, "-p", "Hi", f"{option}={text}")

    assert (ran.code, script.path) == (2, None)
    assert option in ran.err
    overflows = text == "99999999999999999999"
    assert ("overflows u64" in ran.err) == overflows
    assert ("8GiB" in ran.err) == (not overflows)
