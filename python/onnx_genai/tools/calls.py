"""What all tool-call formats share: a parsed call, and strict reading of JSON inside running text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onnx_genai.tools.scan import Scan
from onnx_genai.tools.schemas import ToolSchemas

__all__ = [
    "Call",
    "Region",
    "ToolFormat",
    "arguments_text",
    "call_from_object",
    "calls_from_json",
    "load_json",
]

MAX_DEPTH = 100
"""Levels of arguments: no more can be given back to the model with the next request."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model wrote: checked, not yet given to anybody."""

    name: str
    arguments: str
    """JSON text of an object."""
    id: str = ""
    """Where the format carries one."""


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of text that a format has understood. Without calls it is ordinary text, unless it is marked."""

    length: int
    """Characters, from the opener on; at least 1."""
    calls: tuple[Call, ...] = ()
    silent: bool = False
    """Marks that are neither text nor a call."""
    unfinished: bool = False
    """A call that was begun and not ended, and that more text could have ended. Only when the text has ended."""


class ToolFormat(Protocol):
    """How a family of models writes calls. Stateless."""

    @property
    def name(self) -> str: ...
    @property
    def openers(self) -> tuple[str, ...]:
        """Texts that begin a region, wherever they stand."""
        ...

    @property
    def at_start(self) -> tuple[str, ...]:
        """Texts that begin a region when nothing but white space stands before them."""
        ...

    @property
    def after_call(self) -> tuple[str, ...]:
        """Texts that begin a region when nothing but white space stands between them and a call."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts of the format that may be special tokens of a tokenizer."""
        ...

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        """Reads the region that ``text`` begins with. Raises nothing, whatever a model writes.

        Returns None while more text may make a call of it, which is never the case ``at_end``. What no text can make a
        call of is at once a region without calls: its opener alone, or more where its end is known. A region does not
        change when more text follows, so that a stream gives what the whole text gives. Until then ``scan`` is the same
        at every call for a region, so that what was looked through once is not looked through again.
        """
        ...


def load_json(text: str) -> Any:
    """Parses strict JSON: no NaN, no infinity, no number beyond a double.

    Raises:
        ValueError: Anything else.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (RecursionError, MemoryError) as error:
        raise ValueError("nested too deeply") from error


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is too large")
    return value


def arguments_text(value: Any) -> str | None:
    """JSON text of the arguments; None if they are no object, or one that is nested deeper than :data:`MAX_DEPTH`.

    A text that holds an object is taken as that object.
    """
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            return None
    if value is None:
        value = {}
    if not isinstance(value, Mapping) or _is_deep(value):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return json.dumps(value, allow_nan=False) if _SURROGATE.search(text) else text
    except ValueError:
        return None  # a number of too many digits


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, (Mapping, list, tuple))
            for item in (each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return False
    return True


def call_from_object(
    value: Any, *, name_keys: Sequence[str] = ("name",), argument_keys: Sequence[str] = ("arguments", "parameters")
) -> Call | None:
    """A call from an object such as ``{"name": ..., "arguments": {...}}``; None if it is not one."""
    if not isinstance(value, Mapping):
        return None
    name = next((value[key] for key in name_keys if key in value), None)
    if not isinstance(name, str) or not name or not name.isprintable():
        return None
    arguments = arguments_text(next((value[key] for key in argument_keys if key in value), {}))
    if arguments is None:
        return None
    identity = next((value[key] for key in ("id", "tool_call_id") if isinstance(value.get(key), str)), "")
    return Call(name, arguments, identity)


def calls_from_json(
    text: str, *, name_keys: Sequence[str] = ("name",), argument_keys: Sequence[str] = ("arguments", "parameters")
) -> tuple[Call, ...]:
    """The calls of an object or a list of objects; empty unless every one is a call."""
    try:
        value = load_json(text)
    except ValueError:
        return ()
    found = [
        call_from_object(each, name_keys=name_keys, argument_keys=argument_keys)
        for each in (value if isinstance(value, list) else [value])
    ]
    return tuple(call for call in found if call is not None) if all(found) else ()
