"""The tools of a request as their parsers need them: :class:`ToolSchemas`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

__all__ = ["ToolSchemas"]

_MAX_SCHEMAS = 1000
"""Parts of a schema that are looked at for one parameter."""


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

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def is_text(self, function: str, parameter: str, value: str) -> bool:
        """Whether the parameter's schema takes ``value`` as a string; unknown parameters are texts."""
        root = self._parameters.get(function, {})
        walk = _Walk(root)
        found = list(walk.properties(root, parameter))
        return all(walk.takes(schema, value) for schema in found)


class _Walk:
    """One question to a schema, which may refer to itself."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MAX_SCHEMAS

    def properties(self, schema: object, name: str, seen: tuple[str, ...] = ()) -> Iterator[object]:
        """The schemas of a property, wherever the object's schema says something about it."""
        if not isinstance(schema, Mapping) or not self._may_go_on():
            return
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            yield properties[name]
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield schema["additionalProperties"]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            yield from self.properties(self._resolved(reference), name, (*seen, reference))
        for part in _listed(schema, "allOf"):
            yield from self.properties(part, name, seen)
        for key in ("anyOf", "oneOf"):
            # One of them holds, so that a string is taken where one of them takes it.
            parts = [list(self.properties(part, name, seen)) for part in _listed(schema, key)]
            if any(parts):
                yield {"anyOf": [{"allOf": part} for part in parts if part]}

    def takes(self, schema: object, value: str, seen: tuple[str, ...] = ()) -> bool:
        """Whether a schema may take a string; only what it says about types and values is looked at."""
        if not isinstance(schema, Mapping):
            return schema is not False
        if not self._may_go_on():
            return True
        kinds = schema.get("type", "string")
        if kinds != "string" and not (isinstance(kinds, list) and "string" in kinds):
            return False
        # Between its texts nothing has to be told apart, but "5" may stand for a number among the values.
        values = [*_listed(schema, "enum"), *([schema["const"]] if "const" in schema else [])]
        if value not in values and not all(isinstance(each, str) for each in values):
            return False
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            named = self.takes(self._resolved(reference), value, (*seen, reference))
            if not named:
                return False
        if not all(self.takes(part, value, seen) for part in _listed(schema, "allOf")):
            return False
        choices = [parts for parts in (_listed(schema, "anyOf"), _listed(schema, "oneOf")) if parts]
        return all(any(self.takes(part, value, seen) for part in parts) for parts in choices)

    def _may_go_on(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def _resolved(self, reference: str) -> object:
        """What a reference such as ``#/$defs/Name`` names; anything, if it names nothing here."""
        value: object = self._root
        if not reference.startswith("#"):
            return True
        for step in reference[1:].split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return True
        return value


def _listed(schema: Mapping[str, Any], key: str) -> list[object]:
    parts = schema.get(key)
    return parts if isinstance(parts, list) else []
