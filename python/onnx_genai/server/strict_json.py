"""JSON of clients: strict, and in bounded time while others wait for the interpreter's lock."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic_core import from_json

from onnx_genai.server.errors import ApiError

__all__ = ["LARGE_BYTES", "MAX_CONTAINERS", "MAX_DEPTH", "parse_json"]

MAX_DEPTH = 64
MAX_CONTAINERS = 200_000
"""Lists and objects. Python's garbage collector goes through all of them again and again while they are made, and holds
up every other thread: three million take it ten seconds.
"""
LARGE_BYTES = 256 * 2**10
"""From here on a body is parsed beside the event loop."""
_MISSING = object()
_SLICE = 2**20
_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
"""Makes numbers of one length alike."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(raw: bytes) -> Any:
    """Strict JSON: no NaN, no infinity, no lone surrogate, no deep nesting, no millions of lists and objects.

    Raises:
        ApiError: 400; the text says what and where, without the content.
    """
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS:
        _check_containers(raw)
    value = _fast(raw) if len(raw) > LARGE_BYTES else _MISSING
    if value is _MISSING:
        value = _exact(raw)
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE.search(raw):
        _check_text(value)
    return value


def _fast(raw: bytes) -> Any:
    """The value, several times as fast; nothing where something is wrong, or may be."""
    # It takes numbers that are too large for infinite ones, and of keys that are alike only the last would show.
    shape = raw.translate(_SHAPE, b"+")
    if b"0e000" in shape or b"0" * 200 in shape:  # no number is beyond a double, 1.8e308, without one of the two
        return _MISSING
    try:
        return from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return _MISSING


def _exact(raw: bytes) -> Any:
    """The value, or an error that says what is wrong."""
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refused_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from error
    except json.JSONDecodeError as error:
        raise ApiError(
            400, f"The body is not JSON: {error.msg} (line {error.lineno} column {error.colno}).", code="invalid_json"
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # a number that Python refuses
        raise ApiError(400, "The body has a number that cannot be represented.", code="invalid_json") from error


def _refused_constant(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ApiError(
            400,
            "The body has a lone surrogate (\\ud800..\\udfff) in a text; send text that UTF-8 can hold.",
            code="invalid_json",
        ) from error


def _check_containers(raw: bytes) -> None:
    """Raises if there are too many brackets outside of strings."""
    # Behind an odd number of quotes is a string.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    plain_size, count, num_quotes = len(plain), 0, 0
    for start in range(0, plain_size, _SLICE):
        pieces = plain[start : start + _SLICE].split(b'"')
        for piece in pieces[num_quotes % 2 :: 2]:
            count += piece.count(b"[") + piece.count(b"{")
        num_quotes += len(pieces) - 1
        if count > MAX_CONTAINERS:
            raise ApiError(
                400,
                f"The body has more than {MAX_CONTAINERS} lists and objects; send fewer at once.",
                code="invalid_json",
            )


def _too_deep() -> ApiError:
    return ApiError(400, f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")
