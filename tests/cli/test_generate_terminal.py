"""``generate`` between terminals and pipes: bytes, and signals at random moments."""

from __future__ import annotations

import os
import random
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyte")
pytest.importorskip("pexpect")

from tests.cli.emulator import PROGRAM, ROOT, TIMEOUT, Terminal
from tests.models.packages import CHATML

Package = Callable[..., Path]
THINKING = CHATML + "{# <think> </think> #}"
OPENED = CHATML + "{% if add_generation_prompt %}<think>{% endif %}{# </think> #}"
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


@pytest.mark.parametrize(
    ("template", "says", "shown"),
    [
        (
            THINKING,
            "<think>Hm, yes.</think>Fish </think>.",
            (("<think>Hm, yes.</think>", True), ("Fish </think>.", False)),
        ),
        (OPENED, "Hm.</think>Fish.", (("Hm.</think>", True), ("Fish.", False))),
        (THINKING, "Fish, <think> is a mark.", (("Fish, <think> is a mark.", False),)),
        (CHATML, "<think>Hm.</think>Fish.", (("<think>Hm.</think>Fish.", False),)),
    ],
    ids=["marked", "opened by the template", "answer about a mark", "undeclared"],
)
def test_reasoning_is_dim_on_a_terminal_and_nothing_is_left_out(
    scripted_package: Package, tmp_path: Path, template: str, says: str, shown: tuple[tuple[str, bool], ...]
) -> None:
    command: list[object] = ["generate", scripted_package(says, chat_template=template), "-p", "Hi", "--stream"]
    with Terminal(*command, "--no-stats") as terminal:
        assert terminal.wait_for_end() == 0
        raw = terminal.raw.decode()
        assert terminal.text == says

    # Text and whether it is dim, as the terminal gets it.
    parts: list[tuple[str, bool]] = []
    is_dim = False
    for part in re.split("(\x1b\\[[02]m)", raw.rstrip()):
        if part.startswith("\x1b["):
            is_dim = part == "\x1b[2m"
        elif part and parts and parts[-1][1] == is_dim:
            parts[-1] = (parts[-1][0] + part, is_dim)
        elif part:
            parts.append((part, is_dim))
    assert tuple(parts) == shown
    assert piped(command, tmp_path / "out") == says.encode() + b"\n"


def test_batch_shows_a_bar_on_a_terminal_and_takes_it_away(scripted_package: Package, tmp_path: Path) -> None:
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "Hi"}\n{broken\n' * 10, encoding="utf-8")
    command: list[object] = ["generate", scripted_package(TEXT), "--batch", prompts, "--output", out]
    with Terminal(*command, columns=100) as terminal:
        assert terminal.wait_for_end() == 0

    raw = terminal.raw.decode()
    counts = [int(done) for done in re.findall(r"(\d+)/20", raw)]
    assert "batch" in raw
    assert "━" in raw
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 20)
    assert re.search(r"\d+ tok/s, 10 failed", raw)
    assert "/20" not in terminal.all_text  # it is gone
    assert terminal.shows_cursor
    assert out.read_bytes().count(b"\n") == 20

    # What was done before counts at once.
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:15]))
    with Terminal(*command, columns=100) as terminal:
        assert terminal.wait_for_end() == 0
    assert re.search(r"(\d+)/20", terminal.raw.decode()).group(1) == "15"  # type: ignore[union-attr]


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
