"""Everything that the chat shows: :class:`Screen` for streams, :class:`TerminalScreen` for a terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import click

from onnx_genai.cli import console
from onnx_genai.cli.failures import explain
from onnx_genai.cli.repl import terminal
from onnx_genai.cli.repl.view import LiveView, printable
from onnx_genai.cli.stats import Stats, block_lines, compact_line, count_text
from onnx_genai.types import ToolCall
from onnx_genai.words import counted

__all__ = ["ReplyView", "Screen", "TerminalScreen", "busy", "status_line", "waiting_line"]

NARROW = 48
"""Below this many columns a table is written in one column."""


class ReplyView(Protocol):
    """Where an answer goes while it comes."""

    def add(self, text: str, kind: str) -> None:
        """Takes more text; ``kind`` is ``reasoning`` or ``content``."""


class Screen:
    """Plain streams: answers and what commands say on stdout, everything else on stderr.

    stdout gets the same bytes whatever the settings of stats are.
    """

    is_live = False
    """Something is redrawn while an answer comes, and numbers are on by default."""

    @property
    def can_ask(self) -> bool:
        """Somebody types, who can be asked to press a key again."""
        return sys.stdin.isatty()

    def banner(self, title: str, facts: Sequence[str]) -> None:
        """The first lines of a session."""
        for line in (title, *facts):
            console.note(line)

    def say(self, text: str = "") -> None:
        """What a command answers."""
        console.write(f"{text}\n")

    def space(self) -> None:
        """A blank line before the next prompt, where somebody looks at it."""

    def table(self, heading: str, rows: Iterable[tuple[str, str]], *, width: int | None = None) -> None:
        """Two columns below a heading; what is longer than the left one's ``width`` has a line of its own."""
        rows = list(rows)
        width = _left_width(rows) if width is None else width
        self.say(heading)
        for left, right in rows:
            if len(left) > width:
                self.say(f"  {left}")
                left = ""
            self.say(f"  {left:<{width}}  {right}".rstrip())

    def note(self, text: str) -> None:
        """Something to know that is no answer."""
        console.note(text)

    def error(self, error: BaseException | str, fix: str | None = None) -> None:
        """What went wrong, and what to do about it."""
        if isinstance(error, BaseException):
            failure = explain(error)
            error, fix = failure.what, fix or failure.fix
        console.note(f"error: {error}")
        if fix:
            console.note(f"  {fix}")

    def stats(self, stats: Stats) -> None:
        """The numbers of a turn: a block on a terminal, else one line."""
        if sys.stderr.isatty():
            for line in block_lines(stats, terminal.size()[0]):
                self._dim_note(line)
        else:
            console.note(compact_line(stats))

    def tool_call(self, call: ToolCall) -> None:
        """A call that the model made."""
        console.write(f"{call.name}({call.arguments})\n")

    def clear(self) -> None:
        """Empties a terminal."""

    @contextmanager
    def busy(self, _text: str) -> Iterator[None]:
        """Tells what is being done while it lasts, where there is a terminal."""
        yield

    @contextmanager
    def reply(self, status: Callable[[], str], *, markdown: bool, reasoning: bool | None) -> Iterator[ReplyView]:
        """Shows an answer as it comes, and ends its last line.

        Args:
            status: A line beneath, where there is a terminal; an empty text is none.
            markdown: Render it, where there is a terminal.
            reasoning: None leaves it out here, and shows it on a terminal.
        """
        view = _Stream(reasoning=reasoning is True)
        try:
            yield view
        finally:
            view.end()

    def _dim_note(self, text: str) -> None:
        click.secho(text, err=True, dim=True, color=terminal.has_colours())


class _Stream:
    """Writes pieces as they are."""

    def __init__(self, *, reasoning: bool, dim: bool = False, clean: bool = False) -> None:
        self._reasoning = reasoning
        self._dim = dim
        self._clean = clean
        self._kind = ""
        self._last = ""

    def add(self, text: str, kind: str) -> None:
        if not text or (kind == "reasoning" and not self._reasoning):
            return
        if self._kind and kind != self._kind:
            console.write("\n\n")
        self._kind = kind
        text = printable(text) if self._clean else text
        self._last = text or self._last
        console.write(click.style(text, dim=True) if self._dim and kind == "reasoning" else text)

    def end(self) -> None:
        # A pipe gets exactly one line end more; a terminal only needs to be on a new line.
        if not sys.stdout.isatty() or (self._last and not self._last.endswith("\n")):
            console.write("\n")


class TerminalScreen(Screen):
    """A terminal: colours, Markdown, and numbers that move beneath the answer."""

    is_live = True

    def __init__(self) -> None:
        self._colours = terminal.has_colours()

    def banner(self, title: str, facts: Sequence[str]) -> None:
        """The first lines of a session."""
        click.secho(title, err=True, bold=True, color=self._colours)
        for line in facts:
            for each in textwrap.wrap(line, max(20, terminal.size()[0] - 1)):
                self._dim_note(each)
        console.note("")

    def space(self) -> None:
        """A blank line before the next prompt."""
        console.write("\n")

    def table(self, heading: str, rows: Iterable[tuple[str, str]], *, width: int | None = None) -> None:
        """Two columns below a heading; the right one is wrapped."""
        rows = list(rows)
        columns = terminal.size()[0] - 1
        width = _left_width(rows) if width is None else width
        self.say(self._style(heading, bold=True))
        for left, right in rows:
            if columns < NARROW or columns - width - 4 < 20:
                self.say(f"  {self._style(left, fg='cyan')}")
                pieces, indent = textwrap.wrap(right, max(10, columns - 6)), 6
            else:
                pieces, indent = textwrap.wrap(right, columns - width - 4), width + 4
                if len(left) > width:
                    self.say(f"  {self._style(left, fg='cyan')}")
                    left = ""
                first = pieces.pop(0) if pieces else ""
                self.say(f"  {self._style(f'{left:<{width}}', fg='cyan')}  {first}".rstrip())
            for piece in pieces:
                self.say(f"{'':{indent}}{piece}")

    def note(self, text: str) -> None:
        """Something to know that is no answer."""
        for line in textwrap.wrap(text, max(20, terminal.size()[0] - 1)) or [""]:
            self._dim_note(line)

    def error(self, error: BaseException | str, fix: str | None = None) -> None:
        """What went wrong, and what to do about it."""
        if isinstance(error, BaseException):
            failure = explain(error)
            error, fix = failure.what, fix or failure.fix
        head, *rest = textwrap.wrap(f"error: {error}", max(20, terminal.size()[0] - 1))
        console.note(click.style("error:", fg="red", bold=True) + head[6:] if self._colours else head)
        for line in rest:
            console.note(line)
        for line in textwrap.wrap(fix or "", max(20, terminal.size()[0] - 3)):
            self._dim_note(f"  {line}")

    def tool_call(self, call: ToolCall) -> None:
        """A call that the model made."""
        self.say(f"{self._style('→', fg='cyan')} {self._style(call.name, bold=True)}({printable(call.arguments)})")

    def clear(self) -> None:
        """Empties the terminal; what was scrolled out stays."""
        console.write("\x1b[H\x1b[2J")

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Tells what is being done while it lasts."""
        with busy(text):
            yield

    @contextmanager
    def reply(self, status: Callable[[], str], *, markdown: bool, reasoning: bool | None) -> Iterator[ReplyView]:
        """Draws an answer as it comes; without Markdown its pieces are written as they are."""
        shown = reasoning is not False
        with terminal.quiet_keys():
            if not markdown:
                stream = _Stream(reasoning=shown, dim=self._colours, clean=True)
                try:
                    yield stream
                finally:
                    stream.end()
                return
            view = LiveView(sys.stdout, size=terminal.size, colours=self._colours, status=status)
            view.start()
            try:
                yield _Shown(view, reasoning=shown)
            finally:
                view.finish()

    def _style(self, text: str, *, bold: bool | None = None, fg: str | None = None) -> str:
        return click.style(text, bold=bold, fg=fg) if self._colours else text


class _Shown:
    """A live view that may leave reasoning out."""

    def __init__(self, view: LiveView, *, reasoning: bool) -> None:
        self._view = view
        self._reasoning = reasoning

    def add(self, text: str, kind: str) -> None:
        self._view.add(text if kind != "reasoning" or self._reasoning else "", kind)


def _left_width(rows: Sequence[tuple[str, str]]) -> int:
    return max((len(left) for left, _ in rows), default=0)


@contextmanager
def busy(text: str) -> Iterator[None]:
    """A line on stderr that goes away again; nothing if it is no terminal."""
    if not sys.stderr.isatty() or not terminal.can_draw():
        yield
        return
    click.secho(text[: terminal.size()[0] - 1], nl=False, err=True, dim=True, color=terminal.has_colours())
    try:
        yield
    finally:
        click.echo("\r\x1b[K", nl=False, err=True, color=True)


def status_line(stats: Stats, seconds: float) -> str:
    """The line beneath an answer that comes: ``12 tok · 90.1 tok/s · ttft 40 ms · ctx 43 / 8.2k``."""
    if stats.first_token_ms is None:
        return f"{_spinner(seconds)} reading {counted(stats.prompt_tokens, 'token')} · {seconds:.1f} s · Ctrl-C stops"
    parts = [f"{stats.completion_tokens} tok"]
    if stats.decode_rate is not None:
        parts.append(f"{stats.decode_rate:.1f} tok/s")
    parts.append(f"ttft {stats.first_token_ms:.0f} ms")
    if stats.context_limit:
        used = stats.prompt_tokens + stats.completion_tokens
        parts.append(f"ctx {count_text(used)} / {count_text(stats.context_limit)}")
    return " · ".join([*parts, "Ctrl-C stops"])


def waiting_line(seconds: float) -> str:
    """The line before the first token where no numbers are wanted."""
    return f"{_spinner(seconds)} Ctrl-C stops"


def _spinner(seconds: float) -> str:
    return _SPINNER[int(seconds * 10) % len(_SPINNER)]


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
