"""The command group: help, unknown commands, version."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import onnx_genai.pipelines
from onnx_genai.cli.app import COMMANDS
from onnx_genai.errors import NotFoundError
from onnx_genai.pipelines import find_ort_library
from tests.cli.conftest import Run

LIBRARY = SimpleNamespace(
    path=Path("/lib/libonnxruntime.so"),
    version="1.30.0",
    api_version=30,
    providers=("CPUExecutionProvider", "CUDAExecutionProvider"),
    reason="inside the installed onnxruntime package",
)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_the_commands_on_stdout(run: Run, flag: str) -> None:
    ran = run(flag)

    assert (ran.code, ran.err) == (0, "")
    assert all(f"\n  {name} " in ran.out for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command_is_on_stdout(run: Run, name: str) -> None:
    ran = run(name, "--help")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: onnx-genai {name}")


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], [], ["show"], ["version", "x"]])
def test_wrong_usage_exits_with_2_and_an_empty_stdout(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)

    assert (ran.code, ran.out) == (2, "")
    assert "Usage: onnx-genai" in ran.err


def test_version_flag_prints_name_and_version(run: Run) -> None:
    assert run("--version").out.startswith("onnx-genai")


def test_the_module_is_the_program() -> None:
    command = [sys.executable, "-m", "onnx_genai", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)

    assert done.stdout.startswith("onnx-genai")


def test_version_prints_onnxruntime_and_providers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_genai.pipelines, "find_ort_library", lambda: LIBRARY)

    ran = run("version")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("onnx-genai ")
    assert "execution providers: cpu, cuda\n" in ran.out
    assert "ONNX Runtime 1.30.0 (API 30): /lib/libonnxruntime.so\n" in ran.out
    assert "inside the installed onnxruntime package" in ran.out
    assert ran.out.endswith("hint: choose a provider with --ep NAME or ONNX_GENAI_EP\n")
    assert json.loads(run("version", "--json").out)["onnxruntime"]["api_version"] == 30


def test_version_given_no_onnxruntime_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise NotFoundError("ONNX Runtime is not installed; install it with: pip install onnxruntime")

    monkeypatch.setattr(onnx_genai.pipelines, "find_ort_library", find)

    ran = run("version")

    assert ran.code == 1
    assert ran.out.startswith("onnx-genai ")
    assert "pip install onnxruntime" in ran.err


def test_version_tells_which_library_was_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_ort_library().path
    monkeypatch.setenv("ONNX_GENAI_ORT_LIB", str(path))

    ran = run("version")

    assert (ran.code, ran.err) == (0, "")
    assert f"{path}\n  chosen because: named by ONNX_GENAI_ORT_LIB\n" in ran.out


@pytest.mark.parametrize("kind", ["missing", "no library"])
def test_every_command_tells_that_the_named_library_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, scripted_package: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "libonnxruntime.so"
    if kind != "missing":
        path.write_text("text", encoding="utf-8")
    monkeypatch.setenv("ONNX_GENAI_ORT_LIB", str(path))

    for arguments in (("version",), ("generate", scripted_package("Hi"), "-p", "x")):
        ran = run(*arguments)

        assert ran.code == 1
        assert str(path) in ran.err
        assert "ONNX_GENAI_ORT_LIB" in ran.err
        assert "How to fix: " in ran.err
