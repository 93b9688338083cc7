"""What only a process of its own shows: signals, closed pipes, encodings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnx_genai.cli import app, main

ROOT = Path(__file__).resolve().parents[2]
PIECE = "é😀 word "


def start(
    *arguments: object, load: float = 0, piece: float = 0, pieces: int = 3, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cli.slow_program", *map(str, (load, piece, pieces, *arguments))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )


def test_stream_given_a_reader_that_leaves_ends_quietly(model: Path) -> None:
    process = start("generate", model, "-p", "Hi", "--stream", pieces=100_000)
    assert process.stdout is not None

    process.stdout.read(1)
    process.stdout.close()

    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"loading\n")


def test_help_given_a_reader_that_leaves_ends_quietly() -> None:
    process = start("generate", "--help")
    assert process.stdout is not None

    process.stdout.close()

    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("options", [["--stream"], []])
def test_generate_interrupted_by_a_signal_exits_with_130(model: Path, options: list[str]) -> None:
    process = start("generate", model, "-p", "Hi", *options, piece=0.1, pieces=1000)
    assert process.stderr is not None
    assert process.stderr.readline() == b"loading\n"
    time.sleep(0.3)  # into the generation; a signal before that must give the same

    process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    out, err = process.communicate(timeout=60)

    assert time.perf_counter() - started < 5
    assert (process.returncode, err) == (130, b"^C interrupted\n")
    assert PIECE.encode() * out.decode().count(PIECE) == out


def test_generate_interrupted_while_it_loads_exits_at_once(model: Path) -> None:
    process = start("generate", model, "-p", "Hi", load=60)
    assert process.stderr is not None
    assert process.stderr.readline() == b"loading\n"

    process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    out, err = process.communicate(timeout=60)

    assert time.perf_counter() - started < 5
    assert (process.returncode, out, err) == (130, b"", b"^C interrupted\n")


_INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
from onnx_genai.cli import main
sys.exit(main(["version"]))
"""


@pytest.mark.parametrize(
    "module", ["onnx_genai.cli.app", "logging", "click", "onnx_genai.errors", "numpy", "onnx_genai.types"]
)
def test_command_interrupted_in_an_import_exits_with_130(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, module], capture_output=True, cwd=ROOT, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"^C interrupted\n")


_INTERRUPTED_END = """
import atexit, os, signal, sys
from onnx_genai.cli import main
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv[1:] = ["version"]
sys.exit(main())
"""


def test_command_interrupted_while_the_interpreter_ends_exits_with_130() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_END], capture_output=True, cwd=ROOT, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (130, b"^C interrupted\n")
    assert done.stdout.startswith(b"onnx-genai ")


def test_command_leaves_ctrl_c_to_who_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def command(arguments: object) -> int:
        seen.append(signal.getsignal(signal.SIGINT))
        return 0

    monkeypatch.setattr(app, "main", command)
    before = signal.getsignal(signal.SIGINT)
    for handler in (signal.default_int_handler, signal.SIG_IGN):
        signal.signal(signal.SIGINT, handler)
        try:
            assert main(["version"]) == 0
            assert signal.getsignal(signal.SIGINT) == handler
        finally:
            signal.signal(signal.SIGINT, before)

    assert seen == [signal.default_int_handler, signal.SIG_IGN]


def test_entry_imports_nothing() -> None:
    program = "import sys; before = set(sys.modules); import onnx_genai.cli; print(*set(sys.modules) - before)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)

    assert set(done.stdout.split()) <= {"onnx_genai", "onnx_genai.cli", "__future__"}


@pytest.mark.parametrize(
    "env",
    [{"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}],
)
def test_generate_given_another_encoding_prints_utf8(model: Path, env: dict[str, str]) -> None:
    process = start("generate", model, "-p", "Hé", env=env)

    out, _ = process.communicate(timeout=60)

    assert (process.returncode, out.decode("utf-8")) == (0, PIECE * 3 + "\n")


def test_generate_given_an_argument_that_is_no_utf8_fails_cleanly(model: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.cli.slow_program",
            "0",
            "0",
            "1",
            "generate",
            str(model),
            "-p",
            b"a\xff",
            "--stop",
            b"\xfe",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )

    _, err = process.communicate(timeout=60)

    assert process.returncode == 2
    assert b"Traceback" not in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_generate_given_closed_streams_does_its_work(model: Path, closed: str) -> None:
    program = f'"{sys.executable}" -m tests.cli.slow_program 0 0 3 generate "{model}" -p Hi {closed}'

    done = subprocess.run(["sh", "-c", program], capture_output=True, cwd=ROOT, timeout=60, check=False)

    assert done.returncode == 0
    assert done.stderr in (b"", b"loading\n")
    assert (PIECE.encode() in done.stdout) == (closed in ("<&-", "2>&-"))
