"""Fixtures of the command-line tests."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import onnx_genai.pipelines
from onnx_genai.cli import main
from tests.cli.fake_llm import FakeLLM, Script


@dataclass(frozen=True)
class Ran:
    """The outcome of one command line."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for settings, which is empty: no test sees the config file of who runs it."""
    folder = tmp_path / "settings"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("ONNX_GENAI_CONFIG", raising=False)
    return folder / "onnx-genai"


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """The logs that commands set up for their process, put back: a handler holds a stream that is closed later."""
    logs = [logging.getLogger(name) for name in ("onnx_genai", "uvicorn", "asyncio")]
    before = [(list(log.handlers), log.propagate, log.level) for log in logs]
    yield
    for log, (handlers, propagate, level) in zip(logs, before, strict=True):
        log.handlers[:] = handlers
        log.propagate = propagate
        log.setLevel(level)  # unlike an assignment, it forgets what was asked of the log before


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(*arguments, stdin=None, terminal=False)``: runs a command line in this process."""

    def go(*arguments: object, stdin: bytes | None = None, terminal: bool = False) -> Ran:
        with monkeypatch.context() as patch:
            if stdin is not None:
                patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            if terminal:
                for stream in (sys.stdin, sys.stdout):
                    patch.setattr(stream, "isatty", lambda: True, raising=False)
            code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return go


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """What the fake model says; the real LLM is replaced by it."""
    script = Script()
    monkeypatch.setattr(FakeLLM, "script", script, raising=False)
    monkeypatch.setattr(onnx_genai.pipelines, "LLM", FakeLLM)
    return script


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that exists; nobody reads it."""
    folder = tmp_path / "model"
    folder.mkdir()
    return folder
