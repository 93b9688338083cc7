"""A program in a terminal of its own, seen through a terminal emulator: :class:`Terminal`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pexpect
import pyte

__all__ = ["Terminal"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; from onnx_genai.cli import main; sys.exit(main())"
TIMEOUT = 200
"""Seconds to wait for what must come; long, as machines are busy."""


class Terminal:
    r"""Starts the command line in a pseudo-terminal and keeps what its screen looks like.

    Example:
        >>> with Terminal("run", model) as terminal:  # doctest: +SKIP
        ...     terminal.wait_for(">>> ")
        ...     terminal.type("Hi\r")
    """

    def __init__(
        self,
        *arguments: object,
        module: str | None = None,
        columns: int = 80,
        rows: int = 24,
        env: dict[str, str] | None = None,
    ) -> None:
        """Args: the command line, or with ``module`` what follows ``python -m MODULE``."""
        program = ["-c", PROGRAM] if module is None else ["-m", module]
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=1)
        self.raw = b""
        """Every byte that the program wrote."""
        self._stream = pyte.ByteStream(self.screen)
        self._child = pexpect.spawn(
            sys.executable,
            [*program, *map(str, arguments)],
            cwd=str(ROOT),
            env={**os.environ, "TERM": "xterm-256color", "PAGER": "cat", **(env or {})},
            dimensions=(rows, columns),
            timeout=TIMEOUT,
        )
        # It waits before each key by default.
        self._child.delaybeforesend = None

    @property
    def pid(self) -> int:
        return int(self._child.pid)

    @property
    def is_alive(self) -> bool:
        """The program has not ended."""
        return bool(self._child.isalive())

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without blanks at the ends of lines and empty lines at the end."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        """The screen."""
        return "\n".join(self.lines)

    @property
    def all_text(self) -> str:
        """The screen and what was scrolled out of it."""
        past = [
            "".join(row[column].data for column in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top
        ]
        return "\n".join([*past, *self.lines])

    @property
    def shows_cursor(self) -> bool:
        return not self.screen.cursor.hidden

    def type(self, text: str) -> None:
        r"""Presses keys; Enter is ``\r``."""
        self._child.send(text)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """``kill -INT``, or another signal."""
        os.kill(self.pid, number)

    def resize(self, columns: int, rows: int) -> None:
        """As a window does when it is dragged."""
        self._child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def read(self, seconds: float = 0.05) -> bool:
        """Takes what the program writes in this time; False when it has ended."""
        try:
            data = self._child.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        self._answer(data)
        return True

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Reads until something is so; fails with the screen."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            is_open = self.read()
            if condition():
                return
            assert is_open or self.is_alive, f"the program ended before {what}\n{self.all_text}"
            assert time.monotonic() < deadline, f"never saw {what}\n{self.all_text}"

    def wait_for(self, text: str, times: int = 1) -> None:
        """Reads until a text was written so many times."""
        self.wait_until(lambda: self.all_text.count(text) >= times, repr(text))

    def wait_for_end(self) -> int:
        """Reads to the end; the exit code, negative for a signal."""
        deadline = time.monotonic() + TIMEOUT
        while self.read(0.2):
            assert time.monotonic() < deadline, f"the program does not end\n{self.all_text}"
        self._child.wait()
        return -self._child.signalstatus if self._child.signalstatus else int(self._child.exitstatus or 0)

    def echoes(self) -> bool:
        """Keys that are typed would be shown."""
        return bool(self._child.getecho())

    def _answer(self, data: bytes) -> None:
        """What a terminal reports when it is asked where its cursor is."""
        for _ in range(data.count(b"\x1b[6n")):
            self._child.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._child.isalive():
            # What the session does at its end is for other tests; pexpect itself waits too short on a busy machine.
            self._child.kill(signal.SIGKILL)
            self._child.wait()
        self._child.close(force=True)
