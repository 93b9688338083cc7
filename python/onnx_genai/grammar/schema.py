"""JSON schemas from what people have: dictionaries, pydantic models, dataclasses and other annotated types."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx_genai.errors import InvalidArgumentError, UnsupportedError
from onnx_genai.grammar.multiples import check_multiples

__all__ = ["bounded_schema", "parse_as", "schema_of"]

# White space between JSON tokens is what a model may go on with for ever; a line break with its indent is enough.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,24}"
# What may be escaped in strings. A property's name that is escaped without need, as "\\u0061", would be one that the
# grammar takes for another; only control characters without a short escape need the "u".
_ESCAPES = 'nrbtf\\"'
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
# Keywords with values instead of schemas, and those with schemas by name.
_VALUES = frozenset({"const", "default", "enum", "examples"})
_SCHEMAS_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
# They tell what a text is for, and not what it looks like.
_FREE_FORMATS = frozenset({"binary", "directory-path", "file-path", "password", "path"})
_COUNTS = frozenset(f"{side}{what}" for side in ("min", "max") for what in ("Items", "Length", "Properties"))


def schema_of(source: Any) -> Mapping[str, Any] | bool:
    """Returns the JSON schema of a schema, a pydantic model, a dataclass, a TypedDict or another annotated type.

    A schema is taken as it is. Objects of a type have no other properties than those that it names, unless it says so
    itself (``extra="allow"``): small models otherwise invent some.

    Raises:
        InvalidArgumentError: It is none of these.
        UnsupportedError: The type needs pydantic, which is not installed.
    """
    if isinstance(source, (Mapping, bool)):
        return source
    if isinstance(source, str):
        try:
            parsed = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the JSON schema is no JSON: {error}") from error
        return schema_of(parsed) if isinstance(parsed, (Mapping, bool)) else _refuse(source)
    if hasattr(source, "model_json_schema"):
        return _closed(_of_type(source, source.model_json_schema))
    if not isinstance(source, (type, types.UnionType)) and not hasattr(source, "__origin__"):
        return _refuse(source)
    return _closed(_of_type(source, _adapter(source).json_schema))


def _of_type(source: Any, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return make()
    except Exception as error:  # pydantic raises errors of many kinds for a type that has no schema
        raise InvalidArgumentError(f"{source!r} cannot be a schema: {error}") from error


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Forbids further properties where properties are stated and nothing is said about others."""
    closed = {
        key: {name: _closed_at(each) for name, each in value.items()}
        if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping)
        else value
        if key in _VALUES
        else [_closed_at(each) for each in value]
        if isinstance(value, list)
        else _closed_at(value)
        for key, value in schema.items()
    }
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed_at(value: Any) -> Any:
    return _closed(value) if isinstance(value, Mapping) else value


def parse_as(source: Any, text: str) -> Any:
    """Returns the object that ``text`` stands for: an instance of the type, or plain JSON values for a schema.

    Raises:
        ValueError: The text is not of that form (cut off, for example), or has a number that no double can hold, which
            Python would take for an infinite one.
    """
    if isinstance(source, (Mapping, bool, str)) or source is None:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    if hasattr(source, "model_validate_json"):
        return source.model_validate_json(text)
    return _adapter(source).validate_json(text)


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is no number that a double can hold")
    return value


def bounded_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as it is enforced: with a bound on white space, and no escapes of what needs none.

    Its own ``x-guidance`` goes before both.

    Raises:
        InvalidArgumentError: ``minProperties`` or an exclusive bound that cannot be enforced, or ``multipleOf`` that
            would take the compiler too long.
    """
    check_multiples(schema)
    escapes = _ESCAPES + "u" if _has_control_value(schema) else _ESCAPES
    options = {"whitespace_pattern": _WHITE_SPACE, "json_allowed_escapes": escapes}
    given = schema.get("x-guidance")
    if isinstance(given, Mapping):
        if "whitespace_flexible" in given:
            del options["whitespace_pattern"]
        options = {**options, **given}
    rest = {key: value for key, value in schema.items() if key != "x-guidance"}
    return {"x-guidance": options, **_enforceable(rest)}


def _enforceable(schema: Any) -> Any:
    """The same schema as the grammar compiler takes it.

    ``maxItems: 2.0`` means 2, but it takes whole numbers only; and formats that say nothing about the text are unknown
    to it.
    """
    if isinstance(schema, list):
        return [_enforceable(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    _check_least(schema)
    _check_range(schema)
    enforceable: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value in _FREE_FORMATS:
            continue
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            enforceable[key] = int(value)
        elif key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            enforceable[key] = {name: _enforceable(each) for name, each in value.items()}
        else:
            enforceable[key] = value if key in _VALUES else _enforceable(value)
    return enforceable


def _check_least(schema: Mapping[str, Any]) -> None:
    """Raises for a least number of properties that the same name, written again and again, would reach."""
    least = schema.get("minProperties", 0)
    if not isinstance(least, (int, float)) or "object" not in _kinds(schema):
        return
    stated, required = schema.get("properties"), schema.get("required")
    names = stated.keys() if isinstance(stated, Mapping) else frozenset()
    sure = {name for name in required if name in names} if isinstance(required, list) else frozenset()
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if least > len(sure) + 1 and not is_closed:
        raise InvalidArgumentError(
            f"minProperties {least} cannot be enforced for an object whose properties may have any name, as a name may "
            'be written twice; name them in properties and set "additionalProperties": false, or leave it out'
        )


def _check_range(schema: Mapping[str, Any]) -> None:
    """Raises for a whole number as an exclusive bound where the other bound has the same whole part: the compiler
    takes it for an inclusive one.
    """
    if "type" in schema and "number" not in _kinds(schema):
        return
    for bound, sign, others in (
        ("exclusiveMinimum", 1, ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", -1, ("minimum", "exclusiveMinimum")),
    ):
        value = schema.get(bound)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0 or sign * value < 0:
            continue
        for other in others:
            end = schema.get(other)
            if isinstance(end, (int, float)) and not isinstance(end, bool) and 0 < sign * (end - value) < 1:
                raise InvalidArgumentError(
                    f"{bound} {value} with {other} {end} cannot be enforced, as both have the same whole part; "
                    f"write {bound.replace('exclusiveM', 'm')} {value + (end - value) / 1000:g} instead"
                )


def _has_control_value(schema: Any, *, value: bool = False) -> bool:
    """Whether a value that the schema states has a control character without a short escape."""
    if isinstance(schema, str):
        return value and _CONTROL.search(schema) is not None
    if isinstance(schema, list):
        return any(_has_control_value(item, value=value) for item in schema)
    if isinstance(schema, Mapping):
        return any(_has_control_value(item, value=value or key in ("const", "enum")) for key, item in schema.items())
    return False


def _kinds(schema: Mapping[str, Any]) -> Sequence[Any]:
    kinds = schema.get("type", ("object",))
    return (kinds,) if isinstance(kinds, str) else kinds if isinstance(kinds, Sequence) else ()


def _adapter(source: Any) -> Any:
    try:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        raise UnsupportedError(
            f"{source!r} as a schema needs pydantic: pip install pydantic, or give a JSON schema"
        ) from error
    try:
        return TypeAdapter(source)
    except (PydanticUserError, TypeError) as error:
        raise InvalidArgumentError(f"{source!r} cannot be a schema: {error}") from error


def _refuse(source: object) -> Mapping[str, Any]:
    kind = "dataclass instance" if dataclasses.is_dataclass(source) else type(source).__name__
    raise InvalidArgumentError(
        f"a schema is {source!r:.80} ({kind}); allowed: a JSON schema, a pydantic model, a dataclass or another type"
    )
