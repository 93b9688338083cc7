"""JSON schemas from what people have: dictionaries, pydantic models, dataclasses and other annotated types."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

from onnx_genai.errors import InvalidArgumentError, UnsupportedError
from onnx_genai.grammar.multiples import check_multiples

__all__ = ["bounded_schema", "parse_as", "schema_of"]

# White space between JSON tokens is what a model may go on with for ever; a line break with its indent is enough.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,24}"
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
        if key in ("properties", "$defs") and isinstance(value, Mapping)
        else value
        if key in ("const", "enum", "default", "examples")
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
        ValueError: The text is not of that form (cut off, for example).
    """
    if isinstance(source, (Mapping, bool, str)) or source is None:
        return json.loads(text)
    if hasattr(source, "model_validate_json"):
        return source.model_validate_json(text)
    return _adapter(source).validate_json(text)


def bounded_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with a bound on white space, unless it says something about that itself.

    Raises:
        InvalidArgumentError: Its ``multipleOf`` would take the compiler too long.
    """
    check_multiples(schema)
    options = {"whitespace_pattern": _WHITE_SPACE}
    given = schema.get("x-guidance")
    if isinstance(given, Mapping):
        options = {**({} if "whitespace_flexible" in given else options), **given}
    rest = {key: value for key, value in schema.items() if key != "x-guidance"}
    return {"x-guidance": options, **_enforceable(rest)}


def _enforceable(schema: Any) -> Any:
    """The same schema as the grammar compiler takes it.

    ``maxItems: 2.0`` means 2, but it takes whole numbers only; and formats that say nothing about the text are unknown
    to it.
    """
    if isinstance(schema, Mapping):
        return {
            key: int(value)
            if key in _COUNTS and isinstance(value, float) and value.is_integer()
            else value
            if key in ("const", "enum", "default", "examples")
            else _enforceable(value)
            for key, value in schema.items()
            if not (key == "format" and isinstance(value, str) and value in _FREE_FORMATS)
        }
    if isinstance(schema, list):
        return [_enforceable(item) for item in schema]
    return schema


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
