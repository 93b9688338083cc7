"""Finding where a region ends, while its text still comes in pieces: :class:`Scan`."""

from __future__ import annotations

import re

__all__ = ["Scan", "could_be", "skip_space"]

_SPACE = re.compile(r"[ \t\r\n]*")
_IN_JSON = re.compile(r'["{}\[\]]')
_IN_CODE = re.compile(r"[\"'(){}\[\]]")
_IN_QUOTES = {'"': re.compile(r'[\\"]'), "'": re.compile(r"[\\']")}
_OPEN = "([{"


def skip_space(text: str, position: int) -> int:
    """Index of the first character from ``position`` on that is no white space."""
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def could_be(mark: str, text: str) -> bool:
    """Whether ``text`` begins with the mark, or may do so when more of it comes."""
    return text.startswith(mark) or mark.startswith(text)


class Scan:
    """How far one region has been looked through, so that its next piece is all that is looked at.

    The text that the methods are given may grow at its end and nothing else. A search that begins elsewhere than the
    one before begins anew; so does each in a scan of its own.
    """

    def __init__(self) -> None:
        self._begin(("", 0))

    def _begin(self, what: tuple[str, int]) -> None:
        self._what = what
        self._position = what[1]
        self._depth = 0
        self._quote = ""
        self._end: int | None = None

    def json_end(self, text: str, start: int) -> int | None:
        """Index behind the JSON object or array that begins at ``start``; None if it is not closed.

        Only brackets and strings are looked at: whether it is JSON is for :func:`~onnx_genai.tools.calls.load_json`.
        """
        return self._bracket_end(text, start, _IN_JSON, triple=False)

    def code_end(self, text: str, start: int) -> int | None:
        """Index behind the bracket that closes the one at ``start``, past Python strings; None if it is not closed."""
        return self._bracket_end(text, start, _IN_CODE, triple=True)

    def find(self, text: str, start: int, *marks: str) -> int:
        """Index of the first of some marks from ``start`` on; -1 if there is none yet."""
        what = ("|".join(marks), start)
        if self._what != what:
            self._begin(what)
        found = min((place for mark in marks if (place := text.find(mark, self._position)) >= 0), default=-1)
        self._position = found if found >= 0 else max(start, len(text) - max(map(len, marks)) + 1)
        return found

    def _bracket_end(self, text: str, start: int, signs: re.Pattern[str], *, triple: bool) -> int | None:
        if self._what != (signs.pattern, start):
            self._begin((signs.pattern, start))
        while self._end is None:
            found = (_IN_QUOTES[self._quote[0]] if self._quote else signs).search(text, self._position)
            if found is None:
                self._position = max(self._position, len(text))
                break
            char, place = found[0], found.start()
            if char in "\"'" and triple and len(self._quote) != 1 and _may_triple(text, place):
                self._position = place  # the next piece says whether there are three
                break
            self._position = self._sign(text, char, place, triple=triple)
        return self._end

    def _sign(self, text: str, char: str, place: int, *, triple: bool) -> int:
        """Takes a sign into account; returns where to go on, which may lie behind the end of the text."""
        if char == "\\":
            return place + 2
        if self._quote:
            if text.startswith(self._quote, place):
                size, self._quote = len(self._quote), ""
                return place + size
            return place + 1
        if char in "\"'":
            self._quote = char * 3 if triple and text.startswith(char * 3, place) else char
            return place + len(self._quote)
        self._depth += 1 if char in _OPEN else -1
        if self._depth <= 0:
            self._end = place + 1
        return place + 1


def _may_triple(text: str, place: int) -> bool:
    """Whether the text ends with one or two quotes at ``place``, so that a third may follow."""
    rest = text[place : place + 3]
    return len(rest) < 3 and rest == rest[0] * len(rest)
