"""The parameters of a function as grammars of its arguments: an object of JSON, or ``name=value`` pieces."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar.lark import literal
from onnx_genai.grammar.schema import bounded_schema

__all__ = ["check_written_name", "keyword_rules", "object_rule"]

_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset(
    {*_DEFINITIONS, "title", "description", "$schema", "$id", "$anchor", "$comment", "default", "examples", "strict"}
    | {"deprecated", "readOnly", "writeOnly", "x-guidance"}
)
"""Keywords that say nothing about the arguments."""
_BEYOND_PAIRS = (
    "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const",
    "patternProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
)  # fmt: skip
"""Keywords about an object as a whole, which rules for one argument after the other cannot keep."""
_OPENING = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
"""Keywords by which a schema may name properties elsewhere than in its own ``properties``."""
_MAX_REFERENCES = 32
_NUMBER = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,2})?/"
"""Numbers that a double can hold."""


def object_rule(number: int, name: str, parameters: Mapping[str, Any]) -> str:
    """The rule ``arguments_<number>``: a JSON object.

    Raises:
        InvalidArgumentError: The parameters are no object, or no JSON.
    """
    schema = _object_schema(name, parameters)
    stated = schema.get("properties")
    named = stated if isinstance(stated, Mapping) else {}
    is_open = any(key in schema for key in _OPENING) or any(key not in named for key in _required(name, schema))
    # Small models invent parameters where they can.
    if not is_open and ("properties" in schema or schema.keys() <= {"type", *_NOTES}):
        schema.setdefault("additionalProperties", False)
    return f"arguments_{number}: %json {_json(schema)}"


def keyword_rules(number: int, name: str, parameters: Mapping[str, Any]) -> list[str]:
    """The rule ``arguments_<number>`` and those that it needs: ``a=1, b="x"``, required ones first, then optional ones.

    Raises:
        InvalidArgumentError: The parameters are no object, have a name that cannot be written, or a keyword that
            cannot be enforced for arguments in this form.
    """
    schema = _object_schema(name, parameters)
    stated = schema.get("properties", {})
    if not isinstance(stated, Mapping):
        raise InvalidArgumentError(f"'properties' of {name} is {stated!r:.80}; allowed: an object")
    wanted = _required(name, schema)
    _check_keywords(name, schema, stated, wanted)
    required = [key for key in stated if key in wanted]
    optional = [key for key in stated if key not in required]
    for key in stated:
        check_written_name("f", key, f"parameter {key!r} of {name}")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    values = {key: f"value_{number}_{place}" for place, key in enumerate(stated)}
    rules = [f"{values[key]}: {_value(name, key, stated[key], definitions)}" for key in stated]
    fixed = ' ", " '.join(f"{literal(key + '=')} {values[key]}" for key in required)
    if fixed:
        tail = "".join(f" ({literal(', ' + key + '=')} {values[key]})?" for key in optional)
        return [f"arguments_{number}: {fixed}{tail}", *rules]
    # Nothing is required: begin with any of the optional ones, or none.
    starts = []
    for place, key in enumerate(optional):
        tail = "".join(f" ({literal(', ' + other + '=')} {values[other]})?" for other in optional[place + 1 :])
        starts.append(f"{literal(key + '=')} {values[key]}{tail}")
    return [f"arguments_{number}: " + ("(" + " | ".join(starts) + ")?" if starts else '""'), *rules]


def check_written_name(function: str, parameter: str | None, what: str) -> None:
    """Raises InvalidArgumentError unless Python reads ``function(parameter=0)`` back with the same names."""
    parts = [*function.split("."), *([] if parameter is None else [parameter])]
    if all(part.isidentifier() for part in parts):
        try:
            call = ast.parse(f"{function}({'' if parameter is None else parameter + '=0'})", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            call = None
        if (
            isinstance(call, ast.Call)
            and ast.unparse(call.func) == function
            and [keyword.arg for keyword in call.keywords] == parts[len(function.split(".")) :]
        ):
            return
    raise InvalidArgumentError(
        f"{what} is no name that can be written in calls of this format, which are Python's; rename it"
    )


def _object_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as an object's schema of its own: a reference that is the whole of it is followed."""
    schema = dict(parameters)
    for _ in range(_MAX_REFERENCES):
        target = _target(parameters, schema.get("$ref"))
        if target is None or not schema.keys() <= {"$ref", "type", *_NOTES}:
            break
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **rest, **({"type": target["type"]} if "type" in target else {})}
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, Sequence) and not isinstance(kinds, str) and "object" in kinds):
        raise InvalidArgumentError(f"the parameters of {name} have the type {kinds!r:.80}; allowed: 'object'")
    return {**schema, "type": "object"}


def _target(root: Mapping[str, Any], reference: object) -> Mapping[str, Any] | None:
    """What ``#/$defs/name`` refers to; None for other references."""
    if not isinstance(reference, str):
        return None
    parts = reference.split("/")
    if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
        return None
    definitions = root.get(parts[1])
    found = (
        definitions.get(parts[2].replace("~1", "/").replace("~0", "~")) if isinstance(definitions, Mapping) else None
    )
    return found if isinstance(found, Mapping) else None


def _required(name: str, schema: Mapping[str, Any]) -> Sequence[str]:
    wanted = schema.get("required", ())
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise InvalidArgumentError(f"'required' of {name} is {wanted!r:.80}; allowed: a list of names")
    return wanted


def _check_keywords(name: str, schema: Mapping[str, Any], stated: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Raises for what the order of arguments alone does not keep."""
    found = [key for key in _BEYOND_PAIRS if schema.get(key) not in (None, {}, [])]
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(stated))
    if not isinstance(least, (int, float)) or least > len(set(wanted)):
        found.append("minProperties")
    if not isinstance(most, (int, float)) or most < len(stated):
        found.append("maxProperties")
    if found:
        raise InvalidArgumentError(
            f"{', '.join(found)} of the parameters of {name} cannot be enforced in calls of this format; state "
            "properties and required only, or do not require a call"
        )
    missing = [key for key in wanted if key not in stated]
    if missing:
        raise InvalidArgumentError(f"{name} requires the parameter {missing[0]!r:.80}, which is not in its properties")


def _value(name: str, key: str, schema: object, definitions: Mapping[str, Any]) -> str:
    """The right side of the rule of a value."""
    if schema is False:
        raise InvalidArgumentError(f"parameter {key!r} of {name} allows no value; leave it out of the properties")
    given = schema if isinstance(schema, Mapping) else {}
    if given.get("type") == "number" and given.keys() <= {"type", *_NOTES}:
        return _NUMBER
    outside = next((each for each in _references(given) if not each.startswith(("#/$defs/", "#/definitions/"))), None)
    if outside is not None:
        raise InvalidArgumentError(
            f"parameter {key!r} of {name} refers to {outside!r:.80}, which calls of this format cannot follow; put "
            "that into $defs"
        )
    return f"%json {_json({**definitions, **given})}"


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for each in schema.values():
            yield from _references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(bounded_schema(schema), ensure_ascii=False, allow_nan=False)
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the parameters of a tool cannot be written as JSON: {error}") from error
