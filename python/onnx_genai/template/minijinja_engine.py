"""The fast engine, for templates in which it is known to give the same text as jinja2.

minijinja prints some values in another way than Python (undefined ones, floats) and lacks some methods. So only
templates made of constructs in the tables below run on it, and it steps back (:class:`NotPortableError`) when a value
comes up that it would print differently; jinja2 then gives the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import minijinja
from jinja2 import nodes

from onnx_genai.template.jinja2_engine import TemplateRefusalError, to_json

__all__ = ["MinijinjaEngine", "NotPortableError", "is_portable", "is_portable_value"]

FUEL = 5_000_000
"""Instructions of one rendering, some tenths of a second; then jinja2 counts anew."""

_NODES = (
    nodes.Add,
    nodes.And,
    nodes.Assign,
    nodes.Break,
    nodes.Call,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Const,
    nodes.Continue,
    nodes.Dict,
    nodes.Filter,
    nodes.For,
    nodes.Getattr,
    nodes.Getitem,
    nodes.If,
    nodes.Keyword,
    nodes.List,
    nodes.Mod,
    nodes.Name,
    nodes.NSRef,
    nodes.Not,
    nodes.Operand,
    nodes.Or,
    nodes.Output,
    nodes.Pair,
    nodes.Slice,
    nodes.Sub,
    nodes.Template,
    nodes.TemplateData,
    nodes.Test,
    nodes.Tuple,
)
_FILTERS = frozenset({"count", "default", "first", "last", "length", "list", "lower", "tojson", "trim", "upper"})
_TESTS = frozenset(
    {
        "boolean",
        "defined",
        "equalto",
        "even",
        "false",
        "in",
        "iterable",
        "mapping",
        "none",
        "number",
        "odd",
        "sequence",
        "string",
        "true",
        "undefined",
    }
)
_METHODS = frozenset(
    {
        "endswith",
        "find",
        "get",
        "items",
        "keys",
        "lower",
        "lstrip",
        "replace",
        "rstrip",
        "split",
        "startswith",
        "strip",
        "upper",
        "values",
    }
)
_FUNCTIONS = frozenset({"namespace", "raise_exception", "range", "strftime_now"})
_PYTHON_ATTRIBUTES = frozenset(name for kind in (dict, list, str) for name in dir(kind))


class NotPortableError(Exception):
    """A value came up that minijinja would print in another way than jinja2."""


def is_portable(tree: nodes.Template) -> bool:
    """Whether every construct of a parsed template is known to give the same text in both engines."""
    if not all(_is_portable_node(node) for node in tree.find_all(nodes.Node)):
        return False
    return not _has_uncalled_method(tree) and not _can_grow(tree)


def is_portable_value(value: object) -> bool:
    """Whether a variable reaches minijinja unchanged: texts, whole numbers, booleans, None, lists and dicts of them."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_portable_value(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_portable_value, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str)


def _is_portable_node(node: nodes.Node) -> bool:
    if not isinstance(node, _NODES):
        return False
    match node:
        case nodes.Filter():
            return node.name in _FILTERS and not (node.name == "trim" and node.args)
        case nodes.Test():
            return node.name in _TESTS
        case nodes.For():
            return not node.recursive
        case nodes.Const():
            return not isinstance(node.value, float)
        case nodes.Call():
            return _is_portable_call(node)
        case nodes.Getattr():
            return not node.attr.startswith("_") and (node.attr in _METHODS or node.attr not in _PYTHON_ATTRIBUTES)
        case _:
            return True


def _is_portable_call(node: nodes.Call) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    callee = node.node
    if isinstance(callee, nodes.Getattr):
        return callee.attr in _METHODS
    return isinstance(callee, nodes.Name) and callee.name in _FUNCTIONS


def _has_uncalled_method(tree: nodes.Template) -> bool:
    """``x.items`` without a call is a method in jinja2 and a key in minijinja."""
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    return any(node.attr in _METHODS and id(node) not in called for node in tree.find_all(nodes.Getattr))


def _can_grow(tree: nodes.Template) -> bool:
    """Whether a text may double from assignment to assignment, which minijinja does not bound."""
    return any(_joins_variables(part) for assign in tree.find_all(nodes.Assign) for part in assign.find_all(nodes.Expr))


def _joins_variables(node: nodes.Expr) -> bool:
    match node:
        case nodes.Concat():
            parts = node.nodes
        case nodes.Add():
            parts = [node.left, node.right]
        case nodes.Call():
            return isinstance(node.node, nodes.Getattr) and node.node.attr == "replace"
        case _:
            return False
    return sum(not isinstance(part, nodes.Const) for part in parts) > 1


def _finalize(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise NotPortableError


def _raise_exception(message: object) -> None:
    raise TemplateRefusalError(str(message))


def _is_sequence(value: object) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


class MinijinjaEngine:
    """One template. Safe from any thread."""

    def __init__(self, source: str, *, clock: Callable[[], datetime]) -> None:
        self._environment = minijinja.Environment(
            templates={"template": source},
            filters={"tojson": to_json},
            tests={"sequence": _is_sequence},
            globals={
                "raise_exception": _raise_exception,
                "strftime_now": lambda layout: clock().strftime(str(layout)),
            },
            fuel=FUEL,
            auto_escape_callback=lambda _name: False,
            trim_blocks=True,
            lstrip_blocks=True,
            finalizer=_finalize,
        )

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """The text; None when jinja2 has to decide: a value that prints differently, or any error."""
        try:
            return self._environment.render_template("template", **variables)
        # Python's own errors come through from its objects, and a panic of the Rust side is only a BaseException.
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            return None
