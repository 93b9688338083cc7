"""What all tool-call formats share: a parsed call, and strict reading of JSON inside running text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "Call",
    "Region",
    "ToolFormat",
    "ToolSchemas",
    "arguments_text",
    "call_from_object",
    "calls_from_json",
    "could_be",
    "json_end",
    "load_json",
    "skip_space",
]

_SURROGATE = re.compile("[\ud800-\udfff]")
_OPEN, _CLOSE = "{[", "}]"


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
    """A piece of text that a format has understood. Without calls it is ordinary text, unless ``silent``."""

    length: int
    """Characters, from the opener on; at least 1."""
    calls: tuple[Call, ...] = ()
    silent: bool = False
    """Marks that are neither text nor a call."""


class ToolSchemas:
    """The tools of a request: which names exist, and which type a parameter has."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """``tools`` are OpenAI's objects, with or without the ``function`` level."""
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._parameters[function["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def is_text(self, function: str, parameter: str) -> bool:
        """Whether the parameter's schema says that a string is what is wanted; unknown parameters are texts."""
        properties = self._parameters.get(function, {}).get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        if not isinstance(schema, Mapping) or "type" not in schema:
            return True
        kinds = schema["type"]
        return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


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
    def marks(self) -> tuple[str, ...]:
        """All texts of the format that may be special tokens of a tokenizer."""
        ...

    def parse(self, text: str, tools: ToolSchemas, *, at_end: bool) -> Region | None:
        """Reads the region that ``text`` begins with.

        Returns None while more text is needed, which is never the case ``at_end``. A region does not change when more
        text follows, so that a stream gives what the whole text gives.
        """
        ...


def skip_space(text: str, position: int) -> int:
    """Index of the first character from ``position`` on that is no white space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def could_be(mark: str, text: str) -> bool:
    """Whether ``text`` begins with the mark, or may do so when more of it comes."""
    return text.startswith(mark) or mark.startswith(text)


def json_end(text: str, start: int) -> int | None:
    """Index behind the JSON object or array that begins at ``start``; None if it is not closed.

    Only brackets and strings are looked at: whether it is JSON is for :func:`load_json`.
    """
    depth, inside, position = 0, False, start
    while position < len(text):
        char = text[position]
        if inside:
            if char == "\\":
                position += 1
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth <= 0:
                return position + 1
        position += 1
    return None


def load_json(text: str) -> Any:
    """Parses strict JSON: no NaN, no infinity, no number beyond a double.

    Raises:
        ValueError: Anything else.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is too large")
    return value


def arguments_text(value: Any) -> str | None:
    """JSON text of the arguments; None if they are no object. A text that holds an object is taken as that object."""
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            return None
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        return None
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _SURROGATE.search(text) else text


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
