"""``run`` on a terminal, seen through an emulator."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit")
pytest.importorskip("pyte")
pytest.importorskip("pexpect")

from tests.cli.emulator import Terminal
from tests.models.packages import CHATML

Package = Callable[..., Path]
Start = Callable[..., AbstractContextManager[Terminal]]

ANSWER = "**Hello** wörld 😀"
SHOWN = "Hello wörld 😀"
EMPTY = ">>> Ask anything"
"""A prompt where nothing was typed."""
THINKING = CHATML + "{# <think> </think> #}"


@pytest.fixture
def start(scripted_package: Package, tmp_path: Path) -> Start:
    """``start(*options, says=ANSWER, slow=None, ...)``: a session that has shown its first prompt."""

    def go(
        *options: object,
        says: str = ANSWER,
        slow: float | None = None,
        package: dict[str, object] | None = None,
        env: dict[str, str] | None = None,
        columns: int = 80,
        rows: int = 30,
    ) -> Terminal:
        folder = scripted_package(says, **(package or {}))
        terminal = Terminal(
            *(() if slow is None else (slow,)),
            "run",
            folder,
            *options,
            module=None if slow is None else "tests.cli.repl.slow_run",
            columns=columns,
            rows=rows,
            env={"ONNX_GENAI_REPL_HISTORY": str(tmp_path / "history"), **(env or {})},
        )
        terminal.wait_for(">>>")
        return terminal

    return go


def below(terminal: Terminal, text: str) -> list[str]:
    """Lines below the last one that has a text."""
    lines = terminal.all_text.split("\n")
    return lines[max(place for place, line in enumerate(lines) if text in line) + 1 :]


def prompts(terminal: Terminal) -> int:
    return terminal.all_text.count(">>> ")


def test_banner_prompt_and_toolbar(start: Start) -> None:
    with start() as terminal:
        terminal.wait_for("Ctrl-D leaves", 2)

        assert terminal.lines[0].startswith("onnx-genai · package_")
        assert terminal.lines[0].endswith("(text)")
        assert "cpu · " in terminal.lines[1]
        assert EMPTY in terminal.text
        assert terminal.lines[-1].endswith("0 turns · Alt+Enter new line · Tab completes · Ctrl-D leaves")
        assert terminal.shows_cursor


def test_answer_is_rendered_and_numbers_settle_in_two_lines(start: Start) -> None:
    with start(columns=120) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("rss ")
        terminal.wait_for(EMPTY)

        answer, first, second, *_ = below(terminal, ">>> Hi")
        assert answer == SHOWN
        assert first.startswith("[ ")
        assert " in · " in first
        assert " · backend copy on cpu · " in first
        assert first.endswith("finish eos")
        assert second.startswith("  cache ")
        assert second.endswith("MiB ]")
        assert b"\x1b[?1049h" not in terminal.raw  # what was said stays in the scrollback


def test_numbers_have_the_pages_of_the_turn(checksum_package: Package, tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(5, 45))
    env = {"ONNX_GENAI_REPL_HISTORY": str(tmp_path / "history")}
    options = ("--raw", "--max-new-tokens", "4", "--vram-limit", "16384")
    with Terminal("run", checksum_package("gqa"), *options, columns=120, env=env) as terminal:
        terminal.wait_for(">>>")
        terminal.type(f"{words}\r")
        terminal.wait_for("MiB ]")
        terminal.wait_for(EMPTY)
        terminal.type(f"{words.replace('w', 'w1')}\r")
        terminal.wait_for("MiB ]", 2)

        first, second = (line for line in terminal.all_text.split("\n") if line.endswith("MiB ]"))
        assert " · pg +3/-3 · rss " in first
        assert " · pg +3/-3 hot 1 · rss " in second


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("world\x01Hello \r", "Hello world"),  # Ctrl-A: to the beginning
        ("Hullo\x1b[D\x1b[D\x1b[D\x7fa\r", "Hallo"),  # left, left, left, backspace
        ("one two\x17three\r", "one three"),  # Ctrl-W: the word
        ("junk\x15kept\r", "kept"),  # Ctrl-U: the line
        ("abc\x02\x02\x0b\r", "a"),  # Ctrl-B twice, Ctrl-K: the rest
        ("ab\x1b[H\x1b[3~\r", "b"),  # Home, Delete
        ("wörld 😀 海\x7f\r", "wörld 😀"),
    ],
)
def test_editing_keys(start: Start, keys: str, shown: str) -> None:
    with start("--no-stats", "--plain") as terminal:
        terminal.type(keys)
        terminal.wait_for("Hello**")
        terminal.type("/show history\r")
        terminal.wait_for("assistant:")

        assert f"user: {shown}\n" in terminal.all_text


def test_history_is_kept_for_the_next_session(start: Start, tmp_path: Path) -> None:
    with start() as terminal:
        terminal.type("first\r")
        terminal.wait_for("rss ")
        terminal.wait_for(EMPTY)
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600

    with start() as terminal:
        terminal.type("\x1b[A")
        terminal.wait_for(">>> first")


def test_history_keeps_the_newest_thousand_lines(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f'"line {number}"\n' for number in range(1005)), encoding="utf-8")

    with start() as terminal:
        terminal.type("\x1b[A")
        terminal.wait_for(">>> line 1004")

    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines == [f'"line {number}"' for number in range(5, 1005)]


def test_private_session_writes_no_history(start: Start, tmp_path: Path) -> None:
    with start("--private") as terminal:
        terminal.type("secret\r")
        terminal.wait_for("rss ")
        terminal.wait_for(EMPTY)
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0

    assert not (tmp_path / "history").exists()


def test_paste_of_several_lines_is_one_message_that_waits(start: Start) -> None:
    with start() as terminal:
        terminal.type("\x1b[200~one\ntwo\n\nthree\x1b[201~")
        terminal.wait_for("... three")
        assert "rss " not in terminal.text

        terminal.type("\r/show history\r")
        terminal.wait_for("assistant:")
        assert "user: one\ntwo\n\nthree\nassistant" in terminal.all_text


def test_alt_enter_and_triple_quotes_make_lines(start: Start) -> None:
    with start() as terminal:
        terminal.type('one\x1b\rtwo\r"""\rthree\rfour"""\r/show history\r')
        terminal.wait_for("assistant:", 2)

        assert "user: one\ntwo\n" in terminal.all_text
        assert "user: three\nfour\n" in terminal.all_text


def test_tab_completes_commands_words_and_paths(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tools-of-mine.json").write_text("[]", encoding="utf-8")
    with start(columns=110) as terminal:
        terminal.type("/sys")
        terminal.wait_for("set the system message")  # the menu comes by itself
        terminal.type("\t")
        terminal.wait_for(">>> /system")
        terminal.type("\x15/set top_k\t\x15/set temp\t")
        terminal.wait_for(">>> /set temperature")
        terminal.type(f"\x15/tools {tmp_path}/tools-o\t")
        terminal.wait_for("tools-of-mine.json")


def test_double_slash_is_a_message(start: Start) -> None:
    with start() as terminal:
        terminal.type("//help me\r")
        terminal.wait_for("rss ")
        terminal.wait_for(EMPTY)
        terminal.type("/show history\r")
        terminal.wait_for("user: /help me")


def test_help_of_one_command(start: Start) -> None:
    with start() as terminal:
        terminal.type("/help rewind\r")
        terminal.wait_for("does")

        shown = below(terminal, ">>> /help rewind")
        assert shown[0] == "/rewind [N]"
        assert shown[1].split() == ["category", "session"]

        terminal.type("/help nope\r")
        terminal.wait_for("there is no command nope")


def test_blank_line_twice_leaves(start: Start) -> None:
    with start() as terminal:
        terminal.type("\r")
        terminal.wait_for("Press Enter once more to leave")
        terminal.type("\r")

        assert terminal.wait_for_end() == 0


def test_edit_puts_the_last_message_into_the_editor(start: Start) -> None:
    with start() as terminal:
        terminal.type("once\r")
        terminal.wait_for("rss ")
        terminal.wait_for(EMPTY)
        terminal.type("/edit\r")
        terminal.wait_for(">>> once", 2)
        terminal.type(" more\r")
        terminal.wait_for("rss ", 2)
        terminal.type("/show history\r")
        terminal.wait_for("user: once more")

        assert terminal.all_text.count("user: ") == 1


def test_stats_move_beneath_the_answer_and_can_be_switched_off(start: Start) -> None:
    with start(slow=0.2) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for(" tok · ")
        assert "· Ctrl-C stops" in terminal.text
        assert not terminal.shows_cursor
        assert not terminal.echoes()
        terminal.type("typed ahead")  # is not shown now, and waits for the prompt
        terminal.wait_for(">>> typed ahead")

        assert "· Ctrl-C stops" not in terminal.all_text
        assert below(terminal, ">>> Hi")[0] == SHOWN
        terminal.type("\x15/stats\rHi\r")
        terminal.wait_for(SHOWN, 2)
        terminal.wait_for(EMPTY)
        assert terminal.all_text.count("rss ") == 1


def test_no_stats_shows_no_numbers(start: Start) -> None:
    with start("--no-stats") as terminal:
        terminal.type("Hi\r")
        terminal.wait_for(SHOWN)
        terminal.wait_for(EMPTY)

        assert not any(word in terminal.all_text for word in (" tok ·", "tok/s", "ttft", "rss"))


def test_plain_shows_the_text_as_it_is_and_redraws_nothing(start: Start) -> None:
    with start("--plain") as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("rss ")

        assert below(terminal, ">>> Hi")[0] == ANSWER
        assert b"\x1b[?25l" not in terminal.raw.split(b"rss ")[0].rsplit(b"Hi", 1)[1]


def test_control_characters_of_a_model_do_not_reach_the_terminal(start: Start) -> None:
    for option in ("--plain", "--no-stats"):
        with start(option, says="a\x1b[2J\x1b]0;title\x07b") as terminal:
            terminal.type("Hi\r")
            terminal.wait_for("a[2J]0;titleb")
            assert b"\x1b]0;title" not in terminal.raw


def test_raw_mode_shows_the_text_as_it_is(start: Start) -> None:
    with start(says="**Fish**.") as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("rss ")
        assert below(terminal, ">>> Hi")[0] == "Fish."
        terminal.type("/raw\r")
        terminal.wait_for("raw mode enabled")
        terminal.type("Ho\r")
        terminal.wait_for("rss ", 2)

        assert below(terminal, ">>> Ho")[0] == "**Fish**."


def test_reasoning_is_dim_and_apart(start: Start) -> None:
    says = "<think>I wonder.</think>Fish."
    with start(says=says, package={"chat_template": THINKING}) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("rss ")

        assert below(terminal, ">>> Hi")[:3] == ["│ I wonder.", "", "Fish."]
        assert "\x1b[2m│ I wonder.\x1b[0m".encode() in terminal.raw
        terminal.type("/set reasoning off\rHi\r")
        terminal.wait_for("rss ", 2)
        assert terminal.all_text.count("I wonder.") == 1


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_had_off(start: Start, env: dict[str, str]) -> None:
    with start(env=env) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("Hello", 1)
        terminal.wait_for(">>>", 2)

        assert b"\x1b[3" not in terminal.raw.replace(b"\x1b[38", b"\x1b[3")
        assert b"\x1b[2m" not in terminal.raw


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (60, 24), (30, 10)])
def test_screens_of_any_size_hold_their_lines(start: Start, columns: int, rows: int) -> None:
    says = "# Sea\n\n" + "The sea is deep. " * 20 + "\n\n- one\n- two\n\n```python\nprint(1)\n```\n"
    with start(columns=columns, rows=rows, says=says) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for(" MiB ]")
        terminal.type("/help\r")
        terminal.wait_for("//text")
        terminal.wait_for(">>>", 3)

        text = terminal.all_text
        assert text.count("The sea is deep.") <= 20
        assert " ".join(text.split()).count("The sea is deep.") == 20
        assert text.count("print(1)") == 1


def test_resize_while_an_answer_comes_loses_nothing(start: Start) -> None:
    words = [f"word{number}" for number in range(40)]
    with start(slow=0.05, says=" ".join(words), columns=100) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("word10 ")
        terminal.resize(60, 30)
        terminal.wait_for(" MiB ]")

        text = " ".join(below(terminal, ">>> Hi"))
        assert [word for word in words if word not in text] == []


def test_one_ctrl_c_stops_the_answer_and_two_leave(start: Start) -> None:
    with start(slow=0.2, says="a long answer " * 20) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for(" tok · ")
        terminal.type("\x03")
        terminal.wait_for("Stopped; this turn is not kept")
        terminal.wait_for(EMPTY)
        assert "finish interrupt" in terminal.all_text
        assert terminal.shows_cursor

        terminal.type("/session\r")
        terminal.wait_for("messages            none")  # the turn was dropped, and the line disarmed
        terminal.type("\x03")
        terminal.wait_for("Press Ctrl-C again to leave, or")
        terminal.type("\x03")

        assert terminal.wait_for_end() == 130
        assert terminal.shows_cursor


def test_ctrl_c_after_a_stopped_answer_leaves(start: Start) -> None:
    with start(slow=0.2, says="a long answer " * 20) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for(" tok · ")
        terminal.type("\x03")
        terminal.wait_for("Stopped")
        terminal.type("\x03")

        assert terminal.wait_for_end() == 130


def test_keys_typed_while_an_answer_comes_wait_for_the_prompt(start: Start) -> None:
    with start(says="a long answer " * 8, slow=0.05) as terminal:
        terminal.type("Hi\r")
        terminal.wait_for("a long")
        terminal.type("/session\r\x04")

        assert terminal.wait_for_end() == 0
        assert "1 user, 1 assistant" in terminal.all_text


def test_ctrl_d_leaves_with_success(start: Start) -> None:
    with start() as terminal:
        terminal.type("\x04")

        assert terminal.wait_for_end() == 0


def test_model_that_cannot_be_loaded_leaves_the_session_as_it_is(start: Start, tmp_path: Path) -> None:
    with start() as terminal:
        terminal.type(f"Hi\r/model {tmp_path}/nope\r")
        terminal.wait_for("error: ")
        terminal.type("/session\r")
        terminal.wait_for("1 user, 1 assistant")


@pytest.mark.parametrize("seed", range(4))
def test_signals_at_random_moments_leave_the_terminal_sane(start: Start, seed: int) -> None:
    draw = random.Random(seed)
    with start(slow=0.03, says="a long answer " * 40) as terminal:
        terminal.type("Hi\r")
        # Two presses leave, unless the message is sent between them.
        for _ in range(4):
            until = time.monotonic() + draw.uniform(0, 1.2)
            while time.monotonic() < until and terminal.read(0.02):
                pass
            if not terminal.is_alive:
                break
            presses = terminal.all_text.count("again to leave")
            terminal.interrupt()
            terminal.wait_until(
                lambda: not terminal.is_alive or terminal.all_text.count("again to leave") > presses,  # noqa: B023
                "an answer to the signal",
            )

        assert terminal.wait_for_end() == 130
        assert terminal.shows_cursor
        assert terminal.echoes()
        # Paste is plain again.
        assert terminal.raw.rfind(b"\x1b[?2004l") >= terminal.raw.rfind(b"\x1b[?2004h")


@pytest.mark.parametrize("is_answering", [False, True])
def test_sigterm_leaves_the_terminal_sane(start: Start, is_answering: bool) -> None:
    with start(slow=0.2, says="a long answer " * 20) as terminal:
        if is_answering:
            terminal.type("Hi\r")
            terminal.wait_for(" tok · ")
        else:
            terminal.wait_for(EMPTY)
        terminal.interrupt(signal.SIGTERM)

        assert terminal.wait_for_end() == 128 + signal.SIGTERM
        assert terminal.shows_cursor
        assert terminal.echoes()
        assert terminal.raw.rfind(b"\x1b[?2004l") >= terminal.raw.rfind(b"\x1b[?2004h")
