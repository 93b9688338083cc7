"""The reference engine: jinja2's immutable sandbox set up as Hugging Face does, with bounds on work and size.

Packages come from anywhere, so a template may not run for ever or fill the memory: loop rounds, calls and the
characters of every text that it builds are counted, no text may grow beyond a limit, and processor time is bounded.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

__all__ = ["Jinja2Engine", "TemplateLimitError", "TemplateRefusalError", "to_json"]

MAX_STEPS = 1_000_000
"""Work in one rendering, a second or two: 1 a loop round, 10 a call, 1 for each 256 characters built. 1,000 messages
take some 10,000."""
CALL_STEPS = 10
CHARACTERS_A_STEP = 256
MAX_SECONDS = 5.0
"""Processor time of one rendering; stops work on large values that takes few steps."""
MAX_TEXT = 16 * 1024 * 1024
"""Characters (or items) of any value that a template builds."""


_WIDE = re.compile(r"[%:][^ ]{0,8}[0-9]{8}")


class TemplateRefusalError(Exception):
    """The template called ``raise_exception``."""


class TemplateLimitError(Exception):
    """The template does too much or builds something too large."""


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The ``tojson`` filter of Hugging Face: key order kept, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Counts work per thread; a rendering runs on one thread from start to end."""

    intercepted_binops = frozenset({"%", "*", "**", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            finalize=self.printed,
        )
        self._work = threading.local()
        self.filters["tojson"] = to_json
        self.filters["_counted"] = self.counted
        self.filters["_sized"] = self.sized

    def begin(self) -> None:
        self._work.left = MAX_STEPS
        self._work.end = time.thread_time() + MAX_SECONDS

    def charge(self, steps: int) -> None:
        self._work.left -= steps
        if self._work.left < 0:
            raise TemplateLimitError(
                f"it takes more than {MAX_STEPS} loop rounds (a call counts as {CALL_STEPS}, and "
                f"{CHARACTERS_A_STEP} characters of text as one)"
            )
        if time.thread_time() > self._work.end:
            raise TemplateLimitError(f"it takes more than {MAX_SECONDS:g} seconds")

    @jinja2.pass_context
    def printed(self, _context: jinja2.runtime.Context, value: Any) -> str:
        """The text of an expression in the output."""
        text: str = self.sized(value if isinstance(value, str) else str(value))
        return text

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Joins the pieces of an output or of a macro; called by jinja2's code."""
        kept: list[str] = []
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_TEXT:
                raise TemplateLimitError(f"it builds a text of more than {MAX_TEXT} characters")
            kept.append(piece)
        return "".join(kept)

    def sized(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple, dict)):
            if len(value) > MAX_TEXT:
                raise TemplateLimitError(
                    f"it builds something of {len(value)} characters or items; allowed: {MAX_TEXT}"
                )
            self.charge(len(value) // CHARACTERS_A_STEP)
        return value

    @jinja2.pass_context  # keeps the optimizer from charging constant loops once, at compile time
    def counted(self, _context: jinja2.runtime.Context, items: Iterable[Any]) -> Iterable[Any]:
        """Charges the rounds of a loop over ``items``: at once if the number is known, else one by one."""
        if isinstance(items, Sized):
            self.charge(len(items))
            return self._count(items, steps=0)
        return self._count(items, steps=1)

    def _count(self, items: Iterable[Any], *, steps: int) -> Iterator[Any]:
        for item in items:
            self.charge(steps)
            yield item

    def call(self, /, context: jinja2.runtime.Context, callee: Any, *args: Any, **kwargs: Any) -> Any:
        self.charge(CALL_STEPS)
        if isinstance(callee, jinja2.runtime.LoopContext) and args:
            args = (self.counted(context, args[0]), *args[1:])
        if isinstance(getattr(callee, "__self__", None), str):
            _check_widths(callee.__self__ if callee.__name__ == "format" else "", (*args, *kwargs.values()))
        return self.sized(super().call(context, callee, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if hasattr(sequence, "__len__") and isinstance(times, int) and len(sequence) * times > MAX_TEXT:
                    raise TemplateLimitError(f"it repeats something to more than {MAX_TEXT} characters")
        if operator == "%" and isinstance(left, str):
            _check_widths(left, right if isinstance(right, tuple) else (right,))
        if operator == "**" and isinstance(right, (int, float)) and abs(right) > 1024:
            raise TemplateLimitError(f"it raises a number to the power {right}; allowed: at most 1024")
        return self.sized(super().call_binop(context, operator, left, right))


class _Bounds(NodeTransformer):
    """Puts the counting and sizing filters into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_sized")

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # Without an operand it is the filter of a {% filter %} or {% set %} block.
        return node if node.node is None else _filtered(node, "_sized")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_sized") if isinstance(node.arg, nodes.Slice) else node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        sized = nodes.Filter(node.filter, "_sized", [], [], None, None, lineno=node.lineno)
        sized.environment = node.environment
        node.filter = sized
        return node


def _check_widths(text: str, values: Iterable[Any]) -> None:
    """Refuses what pads a text to any length (``center``, ``zfill``, ``%9999999d``) before it is built."""
    if _WIDE.search(text) or any(isinstance(each, int) and each > MAX_TEXT for each in values):
        raise TemplateLimitError(f"it pads a text to more than {MAX_TEXT} characters")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    outer = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
    outer.environment = node.environment
    return outer


class Jinja2Engine:
    """One template, parsed and ready. Safe from any thread.

    Raises jinja2's own exceptions, :class:`TemplateRefusalError`, :class:`TemplateLimitError`, and what expressions in
    the template raise (``TypeError``, ``RecursionError``, ...); jinja2.TemplateSyntaxError from the constructor.
    """

    def __init__(self, source: str, *, clock: Callable[[], datetime]) -> None:
        self._environment = _Environment()
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = lambda layout: clock().strftime(str(layout))
        self.tree = self._environment.parse(source)
        # The bounds go into a second tree, so that `tree` stays as written.
        bounded = _Bounds().visit(self._environment.parse(source))
        self._template = self._environment.from_string(bounded)

    def render(self, variables: Mapping[str, Any]) -> str:
        self._environment.begin()
        return self._template.render(variables)


def _raise_exception(message: object) -> None:
    raise TemplateRefusalError(str(message))
