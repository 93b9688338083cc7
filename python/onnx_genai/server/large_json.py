"""Answers that may be large, as JSON: written in slices, since one large call would hold up all other threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from starlette.responses import Response

__all__ = ["json_answer", "json_pieces"]

_SLICE = 4096
"""Characters of a text, or entries of a list, that are written at once."""
_LARGE = 64 * 2**10
"""Characters from which the rest of an answer is written outside of the event loop."""
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


async def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that starlette's ``JSONResponse`` would be."""
    pieces = json_pieces(value)
    text, is_whole = _head(pieces)
    data = text.encode("utf-8") if is_whole else await asyncio.to_thread(_joined, text, pieces)
    return Response(data, status, headers=headers, media_type="application/json")


def json_pieces(value: Any) -> Iterator[str]:
    """The JSON of a value in short pieces."""
    if isinstance(value, str):
        if len(value) <= _SLICE:
            yield _ENCODE(value)
            return
        yield '"'
        for start in range(0, len(value), _SLICE):
            yield _ENCODE(value[start : start + _SLICE])[1:-1]
        yield '"'
    elif isinstance(value, Mapping):
        before = "{"
        for name, each in value.items():
            yield f"{before}{_ENCODE(name)}:"
            yield from json_pieces(each)
            before = ","
        yield "{}" if before == "{" else "}"
    elif isinstance(value, (list, tuple)):
        before = "["
        for start in range(0, len(value), _SLICE):
            entries = value[start : start + _SLICE]
            if all(map(_is_short, entries)):
                yield before + _ENCODE(entries)[1:-1]
                before = ","
                continue
            for each in entries:
                yield before
                yield from json_pieces(each)
                before = ","
        yield "[]" if before == "[" else "]"
    else:
        yield _ENCODE(value)


def _is_short(value: Any) -> bool:
    return len(value) < 64 if isinstance(value, str) else value is None or isinstance(value, (int, float))


def _head(pieces: Iterator[str]) -> tuple[str, bool]:
    """The first pieces, and whether they are all."""
    taken: list[str] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size > _LARGE:
            return "".join(taken), False
    return "".join(taken), True


def _joined(head: str, pieces: Iterator[str]) -> bytes:
    return "".join(chain((head,), pieces)).encode("utf-8")
