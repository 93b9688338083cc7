"""Lines of earlier sessions: :class:`PrivateHistory`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History, InMemoryHistory

__all__ = ["PrivateHistory", "forgetful_history"]


class PrivateHistory(History):
    """Keeps the newest lines in a file that only its owner may read: one JSON string a line, oldest first.

    A file that cannot be read or written is no history; the session goes on without.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        super().__init__()
        self._path = path
        self._limit = limit

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        lines = self._lines()
        if len(lines) > self._limit:
            lines = lines[-self._limit :]
            self._rewrite(lines)
        texts: list[str] = [json.loads(line) for line in reversed(lines)]
        return texts

    def store_string(self, string: str) -> None:
        """Adds a line at the end."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(json.dumps(string) + "\n")
        except OSError:
            return

    def _lines(self) -> list[str]:
        """Lines that are right; those of another form, or cut off, are left out."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if _is_string(line)]

    def _rewrite(self, lines: list[str]) -> None:
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
            partial.replace(self._path)
        except OSError:
            partial.unlink(missing_ok=True)


def forgetful_history() -> History:
    """A history of this session alone."""
    return InMemoryHistory()


def _is_string(line: str) -> bool:
    try:
        return isinstance(json.loads(line), str)
    except ValueError:
        return False
