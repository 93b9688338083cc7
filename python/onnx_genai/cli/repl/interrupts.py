"""Ctrl-C: :class:`Interrupts`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """Takes SIGINT while the loop runs. A press is remembered, and raised only where waiting is safe to leave.

    So a press in the middle of drawing or of a command leaves nothing half done. For the main thread.

    Example:
        >>> with Interrupts() as interrupts:
        ...     with interrupts.raising():  # KeyboardInterrupt may come out of here
        ...         pass
    """

    def __init__(self) -> None:
        self._is_raising = False
        self._is_pressed = False
        self._previous: Any = None

    @property
    def is_pressed(self) -> bool:
        """A press was not yet taken."""
        return self._is_pressed

    def take(self) -> bool:
        """Whether there was a press since the last call."""
        pressed, self._is_pressed = self._is_pressed, False
        return pressed

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Inside, a press raises KeyboardInterrupt; one from before does so at once."""
        try:
            self._is_raising = True
            if self._is_pressed:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_raising = False

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        self._is_pressed = True
        if self._is_raising:
            self._is_raising = False
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)
