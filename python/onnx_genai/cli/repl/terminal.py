"""The terminal itself: whether it can be drawn on, its size, and silence for keys while an answer comes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["can_draw", "has_colours", "left_sane", "quiet_keys", "size"]

_SANE = "\x1b[?25h\x1b[?2004l\x1b[0m"
"""The cursor is seen, paste is plain, colours are off."""


def can_draw() -> bool:
    """Both ends are a terminal that knows how to move the cursor."""
    moves = sys.platform == "win32" or os.environ.get("TERM", "") not in ("", "dumb")
    return moves and sys.stdin.isatty() and sys.stdout.isatty()


def has_colours() -> bool:
    """Unless NO_COLOR is set (no-color.org)."""
    return not os.environ.get("NO_COLOR")


def size() -> tuple[int, int]:
    """Columns and rows of the terminal that is drawn on, now."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    fallback = shutil.get_terminal_size()
    return columns or fallback.columns, rows or fallback.lines


class Ending:
    """Who ends the session when a signal asks for it."""

    def __init__(self) -> None:
        self.take: Callable[[int], bool] = lambda _code: False
        """Called in the signal handler with the exit code; False leaves it to :func:`left_sane`. An event loop must
        not be left by an exception that comes from anywhere, and so whoever runs one ends it himself."""


@contextmanager
def left_sane() -> Iterator[Ending]:
    """Whatever ends the session, SIGTERM and a closed window included, the terminal is as it was before."""
    ending = Ending()

    def end(number: int, _frame: FrameType | None) -> None:
        if not ending.take(128 + number):
            raise SystemExit(128 + number)

    ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous = {number: signal.signal(number, end) for number in ends}
    try:
        with _modes_kept(lambda modes: modes):
            yield ending
    except BaseException:
        if sys.stdout.isatty():
            sys.stdout.write(_SANE)
            sys.stdout.flush()
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Keys that are typed meanwhile are not shown; they wait for the next prompt. Ctrl-C works as ever."""
    with _modes_kept(_quiet):
        yield


def _quiet(modes: list[Any]) -> list[Any]:
    import termios

    quiet = [*modes]
    # By lines, Ctrl-D would be taken for the end of a line that nobody reads, and be lost.
    quiet[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON)
    return quiet


@contextmanager
def _modes_kept(change: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    """Changes the modes of stdin's terminal, and takes the change back; where there is none it does nothing."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, change(before))
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
