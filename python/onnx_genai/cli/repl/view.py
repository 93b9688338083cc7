"""An answer on a terminal while it comes: :class:`LiveView`."""

from __future__ import annotations

import re
import textwrap
import threading
import time
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len, chop_cells

from onnx_genai.cli.repl import markdown

__all__ = ["LiveView", "printable"]

REGION_ROWS = 8
"""Rows that may still change; what is above them is written once and stays."""
REDRAW_SECONDS = 0.1
SHARE = 12
"""Drawing takes at most one part in so many of the time."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def printable(text: str) -> str:
    """The text without control characters, so that no model moves the cursor or rings a bell."""
    return _CONTROLS.sub("", text)


class LiveView:
    """Draws reasoning and answer as they come, and a status line beneath.

    Rows that are settled go to the scrollback and are never drawn again; the last few, and the status, are drawn anew
    ten times a second at most. A thread keeps the status moving while nothing comes. Used by one thread otherwise.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        size: Callable[[], tuple[int, int]],
        colours: bool,
        status: Callable[[], str] | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Args: where to draw; columns and rows of it now; whether with colours; the status, empty or None for none."""
        self._out = out
        self._size = size
        self._colours = colours
        self._status = status
        self._clock = clock
        self._lock = threading.RLock()
        self._kind = "content"
        self._source = ""
        self._settled = 0
        """Rendered lines of ``_source`` that are written already."""
        self._gap = False
        """A blank line separates the next block from what is above."""
        self._region = 0
        """Rows below the settled ones, the status among them."""
        self._drawn = 0.0
        self._pause = REDRAW_SECONDS
        self._is_first = True
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def start(self) -> None:
        """Shows the status, and hides the cursor until :meth:`finish`."""
        self._out.write(_HIDE_CURSOR)
        self._draw()
        self._ticker.start()

    def add(self, text: str, kind: str) -> None:
        """More text of a kind: ``reasoning`` or ``content``."""
        with self._lock:
            if text and kind != self._kind:
                self._finish_block()
                self._kind = kind
            if text:
                self._source += printable(text)
                if not self._settled:
                    self._source = self._source.lstrip("\n")
            now = self._clock()
            if now - self._drawn >= self._pause or (text and self._is_first):
                self._is_first = self._is_first and not text
                self._draw()

    def finish(self) -> None:
        """Writes everything, takes the status away and leaves the cursor at the beginning of a line."""
        self._done.set()
        if self._ticker.is_alive():
            self._ticker.join()
        with self._lock:
            self._status = None
            self._finish_block()
            self._out.write(_SHOW_CURSOR)
            self._out.flush()

    def _tick(self) -> None:
        while not self._done.wait(REDRAW_SECONDS):
            with self._lock:
                if self._clock() - self._drawn >= self._pause and not self._done.is_set():
                    self._draw()

    def _finish_block(self) -> None:
        lines = self._lines(self._source)
        self._write(settled=[*self._take_gap(lines), *lines[self._settled :]], live=[])
        self._gap = self._gap or bool(lines)
        self._source, self._settled = "", 0

    def _draw(self) -> None:
        self._drawn = self._clock()
        settled: list[str] = []
        if self._kind == "content":
            finished, self._source = markdown.split_finished(self._source)
            if finished.strip():
                lines = self._lines(finished)
                settled = [*self._take_gap(lines), *lines[self._settled :]]
                self._settled, self._gap = 0, True
        lines = self._lines(self._source)
        keep = max(1, min(REGION_ROWS, self._size()[1] - 3))
        grown = len(lines) - keep
        if grown > self._settled and not (self._kind == "content" and markdown.is_table(self._source)):
            settled += [*self._take_gap(lines), *lines[self._settled : grown]]
            self._settled = grown
        gap = [""] if self._gap and lines and not self._settled else []
        live = [*gap, *lines[self._settled :]][-keep:]
        status = "" if self._status is None else self._status()
        if status:
            live = [*live, *([""] if live or settled or self._gap else []), self._status_line(status)]
        self._write(settled=settled, live=live)
        # Long blocks take long to render; the model needs the processor, too.
        self._pause = max(REDRAW_SECONDS, SHARE * (self._clock() - self._drawn))

    def _take_gap(self, lines: list[str]) -> list[str]:
        gap = self._gap and bool(lines) and not self._settled
        self._gap = self._gap and not gap
        return [""] if gap else []

    def _lines(self, source: str) -> list[str]:
        if not source.strip():
            return []
        width = self._size()[0] - 1
        if self._kind == "content":
            return markdown.render(source, width, colours=self._colours)
        return [self._dim(f"│ {line}" if line else "│") for line in wrapped(source.rstrip(), width - 2)]

    def _status_line(self, text: str) -> str:
        width = self._size()[0] - 1
        while cell_len(text) > width and " · " in text:
            text = text.rpartition(" · ")[0]
        return self._dim(chop_cells(text, width)[0] if cell_len(text) > width else text)

    def _dim(self, text: str) -> str:
        return f"{_DIM}{text}{_NORMAL}" if self._colours else text

    def _write(self, *, settled: list[str], live: list[str]) -> None:
        """Replaces the region; one write, so that nothing flickers."""
        if not self._region and not settled and not live:
            return
        back = "" if not self._region else "\r" + (f"\x1b[{self._region - 1}A" if self._region > 1 else "") + "\x1b[J"
        text = "".join(f"{line}\n" for line in settled) + "\n".join(live)
        self._out.write(back + text)
        self._out.flush()
        self._region = len(live)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; line ends stay."""
    lines: list[str] = []
    for line in text.split("\n"):
        pieces = textwrap.wrap(line, max(8, width), drop_whitespace=True, replace_whitespace=False) or [""]
        for piece in pieces:
            lines += chop_cells(piece, max(8, width)) if cell_len(piece) > width else [piece]
    return lines
