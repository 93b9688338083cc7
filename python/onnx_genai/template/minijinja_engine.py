"""The fast engine, for templates in which it is known to give the same text as jinja2.

minijinja prints some values in another way than Python (undefined ones, floats) and lacks some methods. So only
templates made of constructs in the tables below run on it, and it steps back (:class:`NotPortableError`) when a value
comes up that it would print differently; jinja2 then gives the answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import minijinja
from jinja2 import nodes

from onnx_genai.template.jinja2_engine import MAX_TEXT, TemplateRefusalError, to_json

__all__ = ["MinijinjaEngine", "NotPortableError", "are_portable_values", "is_portable"]

FUEL = 500_000
"""Instructions of one rendering; then jinja2 counts anew. 1,000 messages take some 60,000."""
MAX_RAW_TEXT = 64 * 1024 * 1024
"""Characters of the template's own text that these instructions may print."""
MAX_VALUE_TEXT = 64 * 1024
"""Characters in all variables together. One instruction may touch them all, so larger ones are left to jinja2."""

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
_FILTERS = frozenset({"count", "default", "first", "last", "length", "lower", "tojson", "trim", "upper"})
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


_OTHER_BLANKS = re.compile("[\x1c-\x1f]")
"""Python strips these separators as blanks, minijinja does not."""


_SAME_ESCAPES = re.compile(r"""\\(?:[nrt\\'"]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})""")
"""Escapes in strings that both engines read alike: halves of surrogate pairs are not."""


class NotPortableError(Exception):
    """A value came up that minijinja would print in another way than jinja2."""


def is_portable(source: str, tree: nodes.Template) -> bool:
    """Whether every construct of a template, and of its parsed form, is known to give the same text in both engines."""
    # jinja2 knows more escapes in strings, and makes one line end of "\r\n".
    if "\r" in source or "\\" in _SAME_ESCAPES.sub("", source):
        return False
    if not all(_is_portable_node(node) for node in tree.find_all(nodes.Node)):
        return False
    return not (_has_uncalled_method(tree) or _has_loose_view(tree) or _can_grow(tree))


def are_portable_values(values: Iterable[object]) -> bool:
    """Whether variables reach minijinja unchanged: texts, whole numbers, booleans, None, lists and dicts of them; and
    are short enough to be worth it.
    """
    size = 0
    open_values = list(values)
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            open_values += value.keys()
            open_values += value.values()
            if not all(isinstance(key, str) for key in value):
                return False
        elif isinstance(value, list):
            open_values += value
        elif isinstance(value, str):
            size += len(value)
            if _OTHER_BLANKS.search(value):
                return False
        elif value is not None and not (isinstance(value, int) and -(2**63) <= value < 2**63):
            return False
        if size > MAX_VALUE_TEXT or len(open_values) > MAX_VALUE_TEXT:
            return False
    return True


def _is_portable_node(node: nodes.Node) -> bool:
    if not isinstance(node, _NODES):
        return False
    match node:
        case nodes.Filter():
            return node.name in _FILTERS and not (node.name == "trim" and node.args)
        case nodes.Test():
            return node.name in _TESTS and (node.name not in ("even", "odd") or _is_number(node.node))
        case nodes.For():
            return not node.recursive
        case nodes.Const():
            return not isinstance(node.value, float)
        case nodes.Compare():
            return _is_portable_comparison(node)
        case nodes.Getitem() if isinstance(node.arg, nodes.Slice):
            # Of other values minijinja makes an empty list where Python refuses.
            return isinstance(node.node, nodes.Name) and node.node.name == "messages"
        case nodes.Call():
            return _is_portable_call(node)
        case nodes.Getattr():
            return not node.attr.startswith("_") and (node.attr in _METHODS or node.attr not in _PYTHON_ATTRIBUTES)
        case _:
            return True


def _is_portable_comparison(node: nodes.Compare) -> bool:
    """Whether both refuse the same: minijinja orders values of any types and looks for anything in a text."""
    operand = node.expr
    for operation in node.ops:
        if operation.op in ("in", "notin"):
            is_text = isinstance(operand, nodes.Const) and isinstance(operand.value, str)
            if not is_text and not isinstance(operation.expr, (nodes.List, nodes.Tuple)):
                return False
        elif operation.op not in ("eq", "ne") and not (_is_number(operand) and _is_number(operation.expr)):
            return False
        operand = operation.expr
    return True


def _is_number(node: nodes.Expr) -> bool:
    match node:
        case nodes.Const():
            return type(node.value) is int
        case nodes.Filter():
            return node.name in ("length", "count")
        case nodes.Getattr(node=nodes.Name(name="loop")):
            return node.attr in ("index", "index0", "revindex", "revindex0", "length")
        case nodes.Sub() | nodes.Mod():
            return _is_number(node.left) and _is_number(node.right)
        case _:
            return False


def _to_json(value: object, *args: Any, **options: Any) -> str:
    return to_json(_known(value), *args, **options)


def _is_portable_call(node: nodes.Call) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    callee = node.node
    if isinstance(callee, nodes.Getattr):
        # Arguments of other types are refused by Python, and so is an empty separator.
        given = node.args[:1] if callee.attr == "get" else node.args
        plain = all(isinstance(part, nodes.Const) and isinstance(part.value, (str, int)) for part in given)
        empty = callee.attr == "split" and any(isinstance(part, nodes.Const) and part.value == "" for part in given)
        return callee.attr in _METHODS and plain and not empty
    return isinstance(callee, nodes.Name) and callee.name in _FUNCTIONS


def _has_uncalled_method(tree: nodes.Template) -> bool:
    """``x.items`` without a call is a method in jinja2 and a key in minijinja."""
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    return any(node.attr in _METHODS and id(node) not in called for node in tree.find_all(nodes.Getattr))


def _has_loose_view(tree: nodes.Template) -> bool:
    """``x.items()`` that is not just looped over is no list in Python, but one in minijinja."""
    looped = {id(loop.iter) for loop in tree.find_all(nodes.For)}
    return any(
        isinstance(call.node, nodes.Getattr)
        and call.node.attr in ("items", "keys", "values")
        and id(call) not in looped
        for call in tree.find_all(nodes.Call)
    )


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


def _raise_exception(message: object) -> None:
    raise TemplateRefusalError(str(message))


def _is_sequence(value: object) -> bool:
    return hasattr(_known(value), "__len__") and hasattr(value, "__getitem__")


def _is_iterable(value: object) -> bool:
    return hasattr(_known(value), "__iter__")


def _known(value: object) -> object:
    """An undefined value arrives as None, but in jinja2 it is an empty sequence, and no JSON."""
    if value is None:
        raise NotPortableError
    return value


class MinijinjaEngine:
    """One template, with its tree as jinja2 parses it. Safe from any thread."""

    def __init__(self, source: str, tree: nodes.Template, *, clock: Callable[[], datetime]) -> None:
        self._printed = threading.local()
        longest = max((len(data) for data in _raw_texts(tree)), default=0)
        self._environment: minijinja.Environment = minijinja.Environment(
            templates={"template": source},
            filters={"tojson": _to_json},
            tests={"sequence": _is_sequence, "iterable": _is_iterable},
            globals={
                "raise_exception": _raise_exception,
                "strftime_now": lambda layout: clock().strftime(str(layout)),
            },
            fuel=min(FUEL, MAX_RAW_TEXT // (longest + 1)),
            auto_escape_callback=lambda _name: False,
            trim_blocks=True,
            lstrip_blocks=True,
            finalizer=self._finalize,
            # Known to the library, but not to its type hints.
            undefined_behavior="semi_strict",  # type: ignore[call-overload]
        )

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """The text; None when jinja2 has to decide: a value that prints differently, or any error."""
        self._printed.left = MAX_TEXT
        try:
            text: str = self._environment.render_template("template", **variables)
        # Python's own errors come through from its objects, and a panic of the Rust side is only a BaseException.
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            return None
        return text

    def _finalize(self, value: object) -> object:
        if isinstance(value, str):
            self._printed.left -= len(value)
            if self._printed.left >= 0:
                return value
        elif isinstance(value, int) and not isinstance(value, bool):
            return value
        raise NotPortableError


def _raw_texts(tree: nodes.Template) -> Iterator[str]:
    for data in tree.find_all(nodes.TemplateData):
        yield data.data
