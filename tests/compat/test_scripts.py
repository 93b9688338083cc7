"""Scripts in the form of onnxruntime-genai's examples, unchanged but for the name of the module."""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.boundary

SCRIPTS = Path(__file__).parent / "scripts"
TEXT = "Hello 🎉, the END"


@pytest.fixture(scope="module")
def folder(scripted_package: Callable[..., Path]) -> Path:
    return scripted_package(TEXT, format="genai")


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: str = "") -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


@pytest.mark.parametrize("extra", [[], ["--num_beams", "3"], ["--execution_provider", "cpu"]])
def test_generate_script(
    extra: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("model_generate.py", monkeypatch, str(folder), "a", "bcd", "--max_length", "80", *extra)

    assert capsys.readouterr().out == f"== 0\na{TEXT}\n== 1\nbcd{TEXT}\n"


@pytest.mark.parametrize("extra", [[], ["--rewind"]])
def test_chat_script(
    extra: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("model_chat.py", monkeypatch, str(folder), "--max_new_tokens", "64", *extra, stdin="one\ntwo\n")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Output: {TEXT}"
    assert len(lines) == 3
    if extra:
        assert lines[1] == lines[0]
