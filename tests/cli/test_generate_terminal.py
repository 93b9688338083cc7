"""``generate`` between terminals and pipes: bytes, and signals at random moments."""

from __future__ import annotations

import os
import random
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyte")
pytest.importorskip("pexpect")

from tests.cli.emulator import PROGRAM, ROOT, TIMEOUT, Terminal

Package = Callable[..., Path]
TEXT = "Hello **wörld** 😀\n\n# bye\n"


def piped(command: list[object], out: Path) -> bytes:
    """Runs ``onnx-genai COMMAND | cat > out`` with the other ends of it on a terminal."""
    import pexpect

    program = shlex.join([sys.executable, "-c", PROGRAM, *map(str, command)])
    child = pexpect.spawn(
        "/bin/sh", ["-c", f"{program} | cat > {shlex.quote(str(out))}"], cwd=str(ROOT), env=dict(os.environ)
    )
    child.expect(pexpect.EOF, timeout=TIMEOUT)
    child.close()
    assert child.exitstatus == 0
    return out.read_bytes()


def test_piped_answer_is_the_same_bytes_streamed_or_not_with_numbers_or_not(
    scripted_package: Package, tmp_path: Path
) -> None:
    command: list[object] = ["generate", scripted_package(TEXT), "-p", "Hi"]
    variants = [[], ["--stream"], ["--no-stats"], ["--stream", "--no-stats"]]

    outputs = [piped([*command, *options], tmp_path / "out") for options in variants]

    assert outputs == [TEXT.encode() + b"\n"] * 4


@pytest.mark.parametrize("seed", range(4))
def test_signal_at_a_random_moment_leaves_the_terminal_sane(scripted_package: Package, seed: int) -> None:
    folder = scripted_package("a long answer " * 40)
    command = (0.05, "generate", folder, "-p", "Hi", "--stream")
    with Terminal(*command, module="tests.cli.repl.slow_run") as terminal:
        if seed:
            terminal.wait_for("a long")
        until = time.monotonic() + random.Random(seed).uniform(0, 1)
        while time.monotonic() < until:
            terminal.read(0.02)
        terminal.interrupt()

        code = terminal.wait_for_end()

        # While Python itself starts, the signal's own death is all there is; a shell calls that 130 as well.
        assert code in ((130,) if seed else (130, -2))
        assert terminal.echoes()
        assert terminal.shows_cursor
        if seed:
            assert "^C interrupted" in terminal.text
            assert "Traceback" not in terminal.text
