"""Markdown, and how an answer is drawn while it comes."""

from __future__ import annotations

import io
import random
import re
import threading

import pytest

from onnx_genai.cli.repl import markdown
from onnx_genai.cli.repl.view import REGION_ROWS, LiveView, printable, wrapped

pyte = pytest.importorskip("pyte")

TIMEOUT = 200
"""Seconds to wait for what must come; long, as machines are busy."""

ANSWER = """# Sea

The **sea** is `salt`, and <b>wet</b>.
It has \\(n^2\\) fish.

1. One
2. Two
   - nested

```python
def f(x):
    return x + 1
```

| fish | legs |
|------|------|
| cod  | none |

> Quote

Last words, 海は青い 😀.
"""


def test_render_given_markdown_shows_what_it_means() -> None:
    lines = markdown.render(ANSWER, 60, colours=False)

    text = "\n".join(lines)
    for shown in (
        "Sea",
        "The sea is salt, and <b>wet</b>.",
        "It has \\(n^2\\) fish.",
        "• nested",
        "      return x + 1",
    ):
        assert shown in text
    assert not re.search(r"\*\*|```|\|---|\x1b", text)
    assert text.index("The sea") < text.index("It has")
    assert all(line == line.rstrip() for line in lines)


def test_render_given_colours_uses_the_palette_of_the_terminal() -> None:
    text = "\n".join(markdown.render(ANSWER, 60, colours=True))

    codes = {int(code) for match in re.findall(r"\x1b\[([\d;]*)m", text) for code in match.split(";") if code}
    # No background but the terminal's own (49), and none of the 256 colours, which are dark or light by themselves.
    assert codes
    assert not codes & {38, 48, *range(40, 48), *range(100, 108)}


@pytest.mark.parametrize("width", [20, 40, 120])
def test_render_keeps_to_the_width(width: int) -> None:
    from rich.cells import cell_len

    assert max(cell_len(line) for line in markdown.render(ANSWER, width, colours=False)) <= width


@pytest.mark.parametrize(
    ("source", "finished"),
    [
        ("one", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\n```\ntwo\n\nthree", "one\n\n"),
        ("- a\n\n- b", ""),
        ("- a\n\nb", "- a\n\n"),
        ("", ""),
        ("\n\n", ""),
    ],
)
def test_split_finished_keeps_the_last_block(source: str, finished: str) -> None:
    assert markdown.split_finished(source) == (finished, source[len(finished) :])


def test_split_finished_at_every_cut_gives_the_text_again() -> None:
    for cut in range(len(ANSWER)):
        first, rest = markdown.split_finished(ANSWER[:cut])
        assert first + rest == ANSWER[:cut]


def test_printable_takes_control_characters_away() -> None:
    assert printable("a\x1b[2Jb\x07\r\n\tc\x9b") == "a[2Jb\n\tc"


def test_wrapped_keeps_line_ends_and_cuts_long_words() -> None:
    assert wrapped("one two three\n\nfour", 8) == ["one two", "three", "", "four"]
    assert wrapped("a" * 20, 8) == ["a" * 8, "a" * 8, "a" * 4]


class _Drawn:
    """A view on an emulated terminal."""

    def __init__(
        self, columns: int = 60, rows: int = 12, *, status: bool = True, out: io.StringIO | None = None
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=1)
        self.out = io.StringIO() if out is None else out
        self.now = 0.0
        self.view = LiveView(
            self.out,
            size=lambda: (columns, rows),
            colours=False,
            status=(lambda: "STATUS") if status else None,
            clock=lambda: self.now,
        )
        self.view.start()

    def add(self, text: str, kind: str = "content") -> None:
        self.now += 0.2
        self.view.add(text, kind)

    @property
    def text(self) -> str:
        screen = pyte.HistoryScreen(self.screen.columns, self.screen.lines, history=1000, ratio=1)
        stream = pyte.Stream(screen)
        stream.feed(self.out.getvalue().replace("\n", "\r\n"))
        rows = [*screen.history.top, *(screen.buffer[row] for row in range(screen.lines))]
        lines = ["".join(row[column].data for column in range(screen.columns)).rstrip() for row in rows]
        return "\n".join(lines).rstrip("\n")


@pytest.mark.parametrize("seed", range(6))
def test_view_given_any_pieces_ends_with_the_whole_answer(seed: int) -> None:
    draw = random.Random(seed)
    drawn, rest = _Drawn(), ANSWER
    while rest:
        size = draw.randint(1, 12)
        drawn.add(rest[:size])
        rest = rest[size:]
        assert drawn.text.count("STATUS") == 1
        assert drawn.text.endswith("STATUS")

    drawn.view.finish()

    assert drawn.text == "\n".join(markdown.render(ANSWER, 59, colours=False))


def test_view_given_more_than_a_screen_loses_and_doubles_nothing() -> None:
    drawn = _Drawn(columns=40, rows=8)
    lines = [f"line {number}" for number in range(50)]
    for line in lines:
        drawn.add(f"{line}\n")

    drawn.view.finish()

    assert drawn.text.split("\n") == lines


def test_view_given_reasoning_sets_it_apart() -> None:
    drawn = _Drawn()
    drawn.add("Let me think.\nFish.", "reasoning")
    drawn.add("Cod.")

    drawn.view.finish()

    assert drawn.text == "│ Let me think.\n│ Fish.\n\nCod."


def test_view_given_no_text_shows_the_status_and_takes_it_away() -> None:
    drawn = _Drawn()
    assert drawn.text == "STATUS"

    drawn.view.finish()

    assert drawn.text == ""
    assert drawn.out.getvalue().endswith("\x1b[?25h")


class _Counted(io.StringIO):
    """Counts what is drawn: each drawing is one write and one flush."""

    drawings = 0

    def __init__(self) -> None:
        super().__init__()
        self.drawn_twice = threading.Event()

    def flush(self) -> None:
        self.drawings += 1
        if self.drawings == 2:
            self.drawn_twice.set()


def _counting() -> tuple[_Drawn, _Counted]:
    drawn = _Drawn(out=_Counted())
    assert isinstance(drawn.out, _Counted)
    assert drawn.out.drawings == 1  # the status before any text
    return drawn, drawn.out


def test_view_draws_the_first_text_at_once_and_then_waits() -> None:
    drawn, out = _counting()

    counts = []
    for now in (0.001, 0.002, 0.05, 0.1, 0.1015, 0.15, 0.2, 0.203):
        drawn.now = now
        drawn.view.add("a", "content")
        counts.append(out.drawings)

    # At once, and then when 100 ms have passed since the last time: at 0.1015 and at 0.203.
    assert counts == [2, 2, 2, 2, 3, 3, 3, 4]
    drawn.view.finish()
    assert drawn.text == "a" * 8


def test_view_given_a_thousand_pieces_a_second_draws_ten_times() -> None:
    drawn, out = _counting()

    for number in range(1, 1001):
        drawn.now = number / 1000
        drawn.view.add("a ", "content")

    assert 9 <= out.drawings - 2 <= 10  # without the status and the first text


def test_view_changes_eight_rows_and_the_status_at_most() -> None:
    drawn = _Drawn(rows=40)
    for number in range(60):
        drawn.add(f"a line of text {number}\n")
    drawn.view.finish()

    moves = [int(rows) for rows in re.findall(r"\x1b\[(\d+)A", drawn.out.getvalue())]
    assert max(moves) == REGION_ROWS + 1  # from the status up to the first row: eight rows and a blank one between
    assert REGION_ROWS == 8
    assert "\x1b[?1049h" not in drawn.out.getvalue()  # no other screen


def test_view_moves_the_status_while_nothing_comes() -> None:
    drawn, out = _counting()

    drawn.now = 0.5
    assert out.drawn_twice.wait(TIMEOUT)

    assert out.drawings == 2


def test_view_given_no_status_draws_the_answer_alone() -> None:
    drawn = _Drawn(status=False)
    drawn.add("one\n\ntwo")
    assert drawn.text == "one\n\ntwo"

    drawn.view.finish()

    assert drawn.text == "one\n\ntwo"
