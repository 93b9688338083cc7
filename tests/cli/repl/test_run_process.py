"""``run`` as a process of its own, without a terminal: signals, closed pipes, encodings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Package = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 120


def start(*arguments: object, slow: float = 0.0, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cli.repl.slow_run", str(slow), "run", *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    assert process.stdout is not None
    seen = b""
    while text not in seen:
        piece = os.read(process.stdout.fileno(), 4096)
        assert piece, seen
        seen += piece
    return seen


def test_reader_that_leaves_is_no_error(scripted_package: Package) -> None:
    process = start(scripted_package("a long answer " * 20))
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"/help\n" * 2000 + b"Hi\n" * 20)
    process.stdin.close()
    process.stdin = None
    process.stdout.read(1)
    process.stdout.close()

    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert b"rror" not in err


def test_signal_while_an_answer_comes_ends_a_pipe_with_130(scripted_package: Package) -> None:
    process = start(scripted_package("a long answer " * 200), slow=0.05)
    assert process.stdin is not None
    process.stdin.write(b"Hi\nnever read\n")
    process.stdin.flush()
    read_until(process, b"a long")

    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 130
    assert time.monotonic() - began < 30
    assert b"Traceback" not in err
    assert b">>>" not in out


def test_signal_while_a_pipe_is_read_ends_it_with_130(scripted_package: Package) -> None:
    process = start(scripted_package("yes"))
    read_until(process, b">>> ")

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT)

    assert process.returncode == 130
    assert b"Traceback" not in err


def test_line_that_is_no_utf8_is_told_and_costs_no_other(scripted_package: Package) -> None:
    process = start(scripted_package("yes"))

    out, err = process.communicate(b"caf\xe9\nHi\n", timeout=TIMEOUT)

    assert (process.returncode, out) == (0, b">>> >>> yes\n>>> ")
    assert b"not UTF-8 (byte 3)" in err


@pytest.mark.parametrize("line", [b"\xef\xbb\xbfH\xc3\xa9\r\n", b"no line end", b"\x00\n"])
def test_lines_of_any_form_are_messages(scripted_package: Package, line: bytes) -> None:
    process = start(scripted_package("yes"))

    out, _ = process.communicate(line, timeout=TIMEOUT)

    assert (process.returncode, out) == (0, b">>> yes\n>>> ")


def test_closed_stdin_ends_at_once(scripted_package: Package) -> None:
    process = start(scripted_package("yes"), stdin=subprocess.DEVNULL)

    out, _ = process.communicate(timeout=TIMEOUT)

    assert (process.returncode, out) == (0, b">>> ")


def test_keyboard_with_piped_output_is_asked_before_it_leaves(scripted_package: Package, tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    program = (
        f'exec "{sys.executable}" -m tests.cli.repl.slow_run 0 run "{scripted_package("yes")}" > "{tmp_path / "out"}"'
    )
    child = pexpect.spawn("/bin/sh", ["-c", program], cwd=str(ROOT), timeout=TIMEOUT, env={**os.environ})
    child.expect("threads")
    while not (tmp_path / "out").read_bytes().endswith(b">>> "):
        time.sleep(0.05)

    child.sendintr()
    child.expect("again to leave")
    child.send("Hi\r")
    while b"yes" not in (tmp_path / "out").read_bytes():
        time.sleep(0.05)
    child.sendintr()
    child.expect("again to leave")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 130
    assert (tmp_path / "out").read_bytes().startswith(b">>> >>> yes\n>>> ")
