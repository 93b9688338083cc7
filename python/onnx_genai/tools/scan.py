"""Finding where a region ends, while its text still comes in pieces: :class:`Scan`."""

from __future__ import annotations

import re

__all__ = ["Scan", "begun", "could_be", "skip_space"]

_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[\w+.\-]+")
_WHOLE_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?)?")
_WORDS = ("true", "false", "null")
_MAX_SCALAR = 5000
"""Characters of a number; Python reads no integer of so many."""
_MAY_FOLLOW = {
    "value": '"{[',
    "first item": '"{[]',
    "first key": '"}',
    "key": '"',
    "colon": ":",
    "next": ",]}",
}
"""What is wanted in JSON -> the signs that may stand there; a value may also be a number or a word."""
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


def begun(literal: str) -> str:
    """A pattern for a literal text or any beginning of it of at least a character."""
    return "(?:".join(map(re.escape, literal)) + ")?" * (len(literal) - 1)


class Scan:
    """How far one region has been looked through, so that its next piece is all that is looked at.

    The text that the methods are given may grow at its end and nothing else. A search that begins elsewhere than the
    one before begins anew; so does each in a scan of its own.
    """

    def __init__(self) -> None:
        self.reached = 0
        """How far a format has understood the region; its own to set."""
        self._begin(("", 0))

    def _begin(self, what: tuple[str, int]) -> None:
        self._what = what
        self._position = what[1]
        self._depth = 0
        self._quote = ""
        self._closers: list[str] = []
        """Of JSON: the brackets that are open."""
        self._wanted = "value"
        self._end: int | None = None

    def json_end(self, text: str, start: int) -> int | None:
        """Index behind the JSON object or array that begins at ``start``; None if it is not closed.

        It is ``start`` as soon as no more text can make JSON of it. What is inside of strings is not looked at, and
        numbers may be too large: what is closed is for :func:`~onnx_genai.tools.calls.load_json`.
        """
        if self._what != ("json", start):
            self._begin(("json", start))
        while self._end is None and self._position < len(text):
            if self._quote:
                self._string(text)
                continue
            self._position = skip_space(text, self._position)
            scalar = _SCALAR.match(text, self._position)
            if scalar is None:
                self._json_sign(text)
            elif not self._scalar(scalar[0], is_whole=scalar.end() < len(text)):
                break
        return self._end

    def _string(self, text: str) -> None:
        found = _IN_QUOTES['"'].search(text, self._position)
        if found is None:
            self._position = len(text)
            return
        self._position = self._sign(text, found[0], found.start())
        if not self._quote:
            self._wanted = "colon" if self._wanted.endswith("key") else "next"

    def _scalar(self, word: str, *, is_whole: bool) -> bool:
        """Takes a number or a word; False while it may go on."""
        if is_whole:
            is_right = _WHOLE_SCALAR.fullmatch(word) is not None
        else:
            is_right = any(each.startswith(word) for each in _WORDS) or _NUMBER_BEGUN.fullmatch(word) is not None
        if self._wanted not in ("value", "first item") or len(word) > _MAX_SCALAR or not is_right:
            self._end = self._what[1]
        elif not is_whole:
            return False
        else:
            self._position += len(word)
            self._wanted = "next"
        return True

    def _json_sign(self, text: str) -> None:
        sign = text[self._position : self._position + 1]
        if not sign:
            return
        if sign not in _MAY_FOLLOW[self._wanted] or (sign in "]}" and self._closers[-1:] != [sign]):
            self._end = self._what[1]
            return
        self._position += 1
        if sign == '"':
            self._quote = sign
        elif sign in "{[":
            self._closers.append("}" if sign == "{" else "]")
            self._wanted = "first key" if sign == "{" else "first item"
        elif sign in "]}":
            self._closers.pop()
            self._wanted = "next"
            if not self._closers:
                self._end = self._position
        else:
            self._wanted = "value" if sign == ":" or self._closers[-1] == "]" else "key"

    def code_end(self, text: str, start: int) -> int | None:
        """Index behind the bracket that closes the one at ``start``, past Python strings; None if it is not closed."""
        if self._what != ("code", start):
            self._begin(("code", start))
        while self._end is None:
            found = (_IN_QUOTES[self._quote[0]] if self._quote else _IN_CODE).search(text, self._position)
            if found is None:
                self._position = max(self._position, len(text))
                break
            char, place = found[0], found.start()
            if char in "\"'" and len(self._quote) != 1 and _may_triple(text, place):
                self._position = place  # the next piece says whether there are three
                break
            self._position = self._sign(text, char, place, triple=True)
        return self._end

    def find(self, text: str, start: int, *marks: str) -> int:
        """Index of the first of some marks from ``start`` on; -1 if there is none yet."""
        what = ("|".join(marks), start)
        if self._what != what:
            self._begin(what)
        found = min((place for mark in marks if (place := text.find(mark, self._position)) >= 0), default=-1)
        self._position = found if found >= 0 else max(start, len(text) - max(map(len, marks)) + 1)
        return found

    def _sign(self, text: str, char: str, place: int, *, triple: bool = False) -> int:
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
