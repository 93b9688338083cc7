"""Tools from Python functions: :func:`function_tool`."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from onnx_genai.errors import InvalidArgumentError

__all__ = ["function_tool"]

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = (list, tuple, set, frozenset, Sequence)
_OBJECTS = (dict, Mapping)
_LITERALS = (str, int, bool, type(None))
"""What stands in a Literal and in JSON."""
_SECTION = re.compile(r"^[ \t]*Args:[ \t]*\n", re.MULTILINE)
_ARGUMENT = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def function_tool(function: Callable[..., Any]) -> dict[str, Any]:
    """The tool that a function is: name, docstring, and a JSON schema of its annotated arguments.

    Annotations may be ``str``, ``int``, ``float``, ``bool``, ``None``, ``Any``, ``Literal`` of such values, lists,
    tuples of one type, mappings, and unions of these. Arguments without a default are required. Lines of an ``Args:``
    section describe arguments.

    Args:
        function: A function or method; it is not called.

    Returns:
        A tool as in OpenAI's chat API.

    Raises:
        InvalidArgumentError: It is something else, or an argument has no annotation or one without a JSON schema.

    Example:
        >>> def add(a: int, b: int = 1) -> int:
        ...     "Adds."
        >>> function_tool(add)["function"]["parameters"]["required"]
        ['a']
    """
    name = getattr(function, "__name__", repr(function))
    if not inspect.isroutine(function):
        raise InvalidArgumentError(f"the tool {name} is no function; {_WAY_OUT}")
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function)
    except Exception as error:  # an annotation may be a text, which is code
        why = f"{type(error).__name__}: {error}"
        raise InvalidArgumentError(f"the arguments of {name} cannot be read ({why}); {_WAY_OUT}") from error
    text, about = _documented(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidArgumentError(f"{name} has the argument {parameter}, which cannot be named; {_WAY_OUT}")
        if key not in hints:
            raise InvalidArgumentError(f"the argument {key} of {name} has no annotation; write {key}: str, or its type")
        schema = _schema(hints[key], f"the argument {key} of {name}")
        properties[key] = {**schema, **({"description": about[key]} if key in about else {})}
        if parameter.default is parameter.empty:
            required.append(key)
    described = {"description": text} if text else {}
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


_WAY_OUT = (
    'give a mapping as in OpenAI\'s chat API: {"type": "function", "function": {"name": ..., "description": ..., '
    '"parameters": JSON schema}}'
)


def _schema(hint: Any, what: str) -> dict[str, Any]:
    """The JSON schema of an annotation."""
    # Compared by identity: an annotation may be anything, also what has no hash.
    if hint is Any or hint is object:
        return {}
    plain = next((name for kind, name in _PLAIN.items() if hint is kind), None)
    if plain is not None:
        return {"type": plain}
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Annotated:
        return _schema(arguments[0], what)
    if origin is Literal and all(type(each) in _LITERALS for each in arguments):
        return {"enum": list(arguments)}
    if origin is typing.Union or origin is types.UnionType:
        return {"anyOf": [_schema(each, what) for each in arguments]}
    if origin is tuple and hint is not tuple and hint is not typing.Tuple and Ellipsis not in arguments:  # noqa: UP006
        return _tuple_schema(hint, arguments, what)
    if any(origin is each for each in _LISTS) and len(arguments) - arguments.count(Ellipsis) <= 1:
        return {"type": "array", **({"items": _schema(arguments[0], what)} if arguments else {})}
    if any(origin is each for each in _OBJECTS) and (not arguments or arguments[0] is str):
        return {"type": "object", **({"additionalProperties": _schema(arguments[1], what)} if arguments else {})}
    raise _no_schema(hint, what)


def _tuple_schema(hint: Any, arguments: Sequence[Any], what: str) -> dict[str, Any]:
    """The JSON schema of a tuple of known length."""
    # Python 3.10 gives an empty tuple for the empty tuple's argument.
    kinds = [_schema(each, what) for each in arguments if each != ()]
    if not kinds:
        return {"type": "array", "maxItems": 0}
    if any(kind != kinds[0] for kind in kinds):
        raise _no_schema(hint, what)
    return {"type": "array", "items": kinds[0], "minItems": len(kinds), "maxItems": len(kinds)}


def _no_schema(hint: Any, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} is annotated {hint}, which has no JSON schema here; {_WAY_OUT}")


def _documented(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its first section, and what its ``Args:`` say of each argument."""
    head, *sections = _SECTION.split(doc, maxsplit=1)
    rest = "".join(sections)
    text = re.split(r"\n\s*(?:Returns|Raises|Example|Examples|Note):", head)[0].strip()
    about: dict[str, str] = {}
    last, indent = "", None
    for line in rest.splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            break
        indent = depth if indent is None else indent
        found = _ARGUMENT.match(line.strip()) if depth == indent else None
        if found is not None:
            last = found[1].lstrip("*")
            about[last] = found[2]
        elif last:
            about[last] = f"{about[last]} {line.strip()}".strip()
    return text, about
