"""Execution providers in a plugin library, by the command line: proven with the one of the package onnxruntime-ggml."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run

Package = Callable[..., Path]
NEEDED = "needs the package onnxruntime-ggml; see docs/testing.md"
SHOWN = "execution provider: ggml, and cpu for what it does not take\n"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("onnxruntime_ggml") is None, reason=NEEDED)


@pytest.fixture
def library() -> Path:
    """The plugin's file."""
    spec = importlib.util.find_spec("onnxruntime_ggml")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).rglob("lib*ggml*.so"))


@pytest.fixture
def command(checksum_package: Package) -> tuple[object, ...]:
    return ("generate", checksum_package("concat"), "--raw", "-p", "w5 w6", "--max-new-tokens", "8")


def test_plugin_of_a_package_is_taken_by_its_name_and_shown(run: Run, command: tuple[object, ...]) -> None:
    expected = run(*command).out

    for ep in ("ggml", "GGML,cpu", "cpu"):
        ran = run(*command, "--ep", ep, "--ep-strict")
        assert (ran.code, ran.out) == (0, expected)
        assert ran.err == ("" if ep == "cpu" else SHOWN)
    value = json.loads(run(*command, "--ep", "ggml", "--json").out)
    assert (value["execution_provider"], value["text"] + "\n") == ("ggml", expected)


def test_plugin_is_taken_by_its_library(run: Run, command: tuple[object, ...], library: Path) -> None:
    expected = run(*command).out

    ran = run(*command, "--ep", f"plugin:{library}|device=CPU", "--ep-strict")

    assert (ran.code, ran.out) == (0, expected)
    assert ran.err.startswith("execution provider: ")


def test_plugin_is_taken_from_the_environment(
    run: Run, command: tuple[object, ...], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(*command).out
    monkeypatch.setenv("ONNX_GENAI_EP", "plugin")
    monkeypatch.setenv("ONNX_GENAI_EP_LIBRARY", str(library))

    ran = run(*command)

    assert (ran.code, ran.out) == (0, expected)
    assert "and cpu for what it does not take" in ran.err


def test_provider_that_is_missing_before_the_plugin_is_passed_over(run: Run, command: tuple[object, ...]) -> None:
    ran = run(*command, "--ep", "nosuch,ggml")

    assert ran.code == 0
    assert "execution provider nosuch is not in ONNX Runtime" in ran.err
    assert SHOWN in ran.err
    assert run(*command, "--ep", "nosuch,ggml", "--ep-strict").code == 1


def test_run_changes_to_the_plugin_and_back(run: Run, checksum_package: Package) -> None:
    lines = b"w5 w6\n/ep ggml\nw5 w6\n/session\n/ep auto\nw5 w6\n"

    ran = run("run", checksum_package("concat"), "--raw", "--max-new-tokens", "4", stdin=lines)

    _, first, changed, second, session, back, third, _ = (part.rstrip("\n") for part in ran.out.split(">>> "))
    assert first == second == third
    assert changed == "execution provider ggml; history cleared"
    assert "execution provider  ggml" in session
    assert back == "execution provider cpu; history cleared"
