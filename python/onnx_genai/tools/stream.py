"""Calls out of running text: :class:`ToolCallParser`, and :func:`parse_tool_calls` for a whole text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_genai.tools.calls import Call, Region, ToolFormat
from onnx_genai.tools.scan import Scan
from onnx_genai.tools.schemas import ToolSchemas

__all__ = ["ToolCallParser", "parse_tool_calls"]

_PLAIN = re.compile(r"[\w\s:]*(?:```)?")


class ToolCallParser:
    """Splits a stream of text into ordinary text and calls.

    A call is handed out when it is complete and right, so that nothing has to be taken back; what turns out to be no
    call is handed out as the text it is, as soon as that is known, and ``malformed`` counts it. So is a call that the
    model began and did not end. One that was cut, and that more text could have ended, is neither text nor a call:
    ``unfinished`` has it. However the text is cut, the result is the same. White space that stands alone
    beside calls is dropped.

    Example:
        >>> parser = ToolCallParser(FORMATS["hermes"])  # doctest: +SKIP
        >>> parser.feed('<tool_call>{"name": "f"}</tool_call>')  # doctest: +SKIP
        [Call(name='f', arguments='{}', id='')]
    """

    def __init__(self, form: ToolFormat, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """``tools`` are those of the request, as OpenAI's objects."""
        self._form = form
        self._tools = ToolSchemas(tools)
        self._scan = Scan()
        self._buffer = ""
        self._blank = ""
        """White space at the start or behind a call, which counts only if text follows."""
        self._any_text = False
        """Text since the start or since the last call."""
        self._any_call = False
        self.malformed = 0
        """Pieces that began like a call and were none."""
        self.unfinished = ""
        """What began like a call and was cut, mark and all."""

    def feed(self, text: str) -> list[str | Call]:
        """Takes more text; returns what is certain by now, in order: pieces of text and calls."""
        self._buffer += text
        return self._take(at_end=False)

    def finish(self, *, was_cut: bool = False) -> list[str | Call]:
        """Ends the text; returns the rest.

        Args:
            was_cut: More would have come, so that an opener's beginning at the end is one, and a call that was begun
                is no text.
        """
        return self._take(at_end=True, was_cut=was_cut)

    def _take(self, *, at_end: bool, was_cut: bool = False) -> list[str | Call]:
        out: list[str | Call] = []
        while self._buffer:
            start, certain = self._next_opener(at_end=at_end, was_cut=was_cut)
            self._text(self._buffer[:start], out)
            self._buffer = self._buffer[start:]
            if not self._buffer:
                break
            if not certain:
                if at_end:
                    self._region(Region(len(self._buffer), unfinished=was_cut), out)
                break
            region = self._form.parse(self._buffer, self._tools, self._scan, at_end=at_end)
            if region is None:
                break
            if region.unfinished and not was_cut:
                region = Region(region.length)
            self._region(region, out)
        if at_end and self._blank and not self._any_call:
            out.append(self._blank)
        return _joined(out)

    def _next_opener(self, *, at_end: bool, was_cut: bool) -> tuple[int, bool]:
        """Where the first opener stands, or may stand when more text comes; and whether it is one."""
        buffer = self._buffer
        if not self._any_text:
            start = len(buffer) - len(buffer.lstrip())
            for opener in (*self._form.at_start, *(self._form.after_call if self._any_call else ())):
                if buffer.startswith(opener, start):
                    return start, True
        if buffer.startswith(self._form.openers):
            return 0, True
        best = len(buffer)
        for opener in self._form.openers:
            found = buffer.find(opener)
            if 0 <= found < best:
                best = found
        if best < len(buffer):
            return best, True
        if at_end and not was_cut:
            return len(buffer), False
        for opener in self._form.openers:
            least = _telling_size(opener) if at_end else 1
            for size in range(min(len(opener) - 1, len(buffer)), least - 1, -1):
                if buffer.endswith(opener[:size]):
                    best = min(best, len(buffer) - size)
                    break
        return best, False

    def _text(self, text: str, out: list[str | Call]) -> None:
        if not text:
            return
        if not self._any_text or self._blank:
            # Held back until something else than white space comes.
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank = self._blank, ""
        self._any_text = True
        out.append(text)

    def _region(self, region: Region, out: list[str | Call]) -> None:
        self._scan = Scan()
        piece, self._buffer = self._buffer[: region.length], self._buffer[region.length :]
        if region.calls:
            self._blank = ""
            self._any_text = False
            self._any_call = True
            out.extend(region.calls)
        elif region.unfinished:
            self._blank = ""
            self.unfinished += piece
        elif not region.silent:
            self.malformed += 1
            self._text(piece, out)


def _telling_size(opener: str) -> int:
    """How many of its first characters tell an opener from words, and from a fence that ends a block of code."""
    found = _PLAIN.match(opener)
    return 1 if found is None else found.end() + 1


def _joined(items: list[str | Call]) -> list[str | Call]:
    out: list[str | Call] = []
    for item in items:
        if isinstance(item, str) and out and isinstance(out[-1], str):
            out[-1] += item
        else:
            out.append(item)
    return out


def parse_tool_calls(
    text: str, form: ToolFormat, tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, tuple[Call, ...]]:
    """Returns the text without its calls, and the calls."""
    parser = ToolCallParser(form, tools)
    items = [*parser.feed(text), *parser.finish()]
    return "".join(item for item in items if isinstance(item, str)), tuple(
        item for item in items if isinstance(item, Call)
    )
