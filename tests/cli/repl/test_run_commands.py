"""A scripted session with every slash command on a terminal, wide and narrow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit")
pytest.importorskip("pyte")
pytest.importorskip("pexpect")

from tests.chrome_trace import check_trace, read_trace
from tests.cli.emulator import Terminal

Package = Callable[..., Path]
ANSWER = "**Hello** wörld 😀"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def session(folder: Path, model: Path) -> list[tuple[str, str]]:
    """Lines to type, and what must be seen then."""
    return [
        ("/help", "//text"),
        ("/help fork", "does"),
        ("/system Be brief.", "system message set"),
        ("first", "MiB ]"),
        ("/session", "completed turns"),
        ("/show history", "user: first"),
        ("/show system", "Be brief."),
        ("/show template", "im_start"),
        ("/show model", "vocab_size"),
        ("/set", "markdown = on"),
        ("/set temperature 0.5", "temperature = 0.5"),
        ("/set greedy on", "greedy = on"),
        ("/stats", "stats disabled"),
        ("/stats on", "stats enabled"),
        ("/pages", "not paged"),
        ("/profile", "profile report off"),
        ("/profile verbosity ops", "profile verbosity ops"),
        (f"/profile trace {folder / 'a trace'}", "a trace (ops)"),
        ("/regen", "MiB ]"),
        ("/profile on", "profile report on"),
        ("/regen", "generated tokens"),
        ("/profile off", "profile report off"),
        ("/profile trace off", "timeline off"),
        ("/regen", "the same comes again"),
        ("/edit second", "MiB ]"),
        ("/fork try", "branch try, 1 turn"),
        ("third", "MiB ]"),
        ("/fork", "* try"),
        ("/undo", "1 turn left"),
        ("/rewind", "1  second"),
        ("/rewind 0", "0 turns left"),
        ("/fork main", "branch main, 1 turn"),
        (f"/save {folder / 't'}", "saved "),
        (f"/load {folder / 't.json'}", "loaded 1 turn"),
        ("/raw", "raw mode enabled"),
        ("/raw", "raw mode disabled"),
        ("/image x.png", "it accepts text"),
        ("/audio x.wav", "it accepts text"),
        (f"/tools {folder / 'tools.json'}", "tools: weather"),
        ("/tools off", "tools off"),
        ("/json on", "each answer is one JSON object"),
        ("/json off", "answers are free"),
        ("/ep", "choose one of auto"),
        ("/ep cpu", "execution provider cpu; history cleared"),
        ("/backend ort", "backend ort; history cleared"),
        (f"/model {model}", "history cleared"),
        ("/system", "system message cleared"),
        ("/reset", "attachments cleared"),
        ("/clear", "settings stay"),
        ("/nope", "unknown command: /nope (try /help)"),
    ]


@pytest.mark.parametrize("columns", [120, 60])
def test_every_command_works_on_a_terminal(scripted_package: Package, tmp_path: Path, columns: int) -> None:
    model = scripted_package(ANSWER)
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    env = {"ONNX_GENAI_REPL_HISTORY": str(tmp_path / "history")}
    with Terminal("run", model, columns=columns, rows=40, env=env) as terminal:
        terminal.wait_for("Ask anything")
        traced = 0
        for line, shown in session(tmp_path, model):
            start = len(terminal.raw)
            terminal.type(f"{line}\r")
            # Lines may be wrapped between words, and long paths inside of them.
            wanted = "".join(shown.split())

            def is_there(start: int = start, wanted: str = wanted) -> bool:
                seen = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|\s", "", terminal.raw[start:].decode("utf-8", "replace"))
                return wanted in seen and "Askanything" in seen.rpartition(wanted)[2]

            terminal.wait_until(is_there, f"{shown!r} after {line!r}")
            if b"[profile] wrote" in terminal.raw[start:]:
                # The file is there after each turn, and has all of them.
                traced += 1
                events = read_trace(tmp_path / "a trace")
                check_trace(events)
                assert sum(event["name"] == "turn" for event in events) == traced
        assert traced == 2
        terminal.type("/exit\r")
        assert terminal.wait_for_end() == 0

    assert not re.search(r"Traceback|This is a fault", terminal.all_text)
    codes = {int(c) for each in re.findall(rb"\x1b\[([\d;]+)m", terminal.raw) for c in each.split(b";") if c}
    # The terminal's own palette and background alone, so it can be read on dark and on light.
    assert not codes & {38, 48, *range(40, 48), *range(100, 108)}
