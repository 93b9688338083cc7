"""The one place where a grammar of :meth:`GeneratorParams.set_guidance` becomes part of a request.

A grammar describes an answer. :class:`Answers` remembers where answers begin, because one that is cut by ``rewind_to``,
or that the caller has written a piece of, goes on in another request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_genai import grammar
from onnx_genai.compat.rows import Rows
from onnx_genai.engine import ModelEngine, RequestOptions
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar import GrammarSpec

__all__ = ["GUIDANCE_KINDS", "Answers", "Guidance", "check_guidance", "constrained"]

GUIDANCE_KINDS = ("json_schema", "regex", "lark_grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """A constraint on what is generated."""

    kind: str
    """One of :data:`GUIDANCE_KINDS`."""
    data: str
    """The schema, expression or grammar."""
    fast_forward: bool = False
    """Tokens that the grammar forces may be appended without a choice."""


def constrained(guidance: Guidance, written: Sequence[int] = ()) -> RequestOptions:
    """Options of a request that generates what the guidance allows behind the ``written`` ids of the answer."""
    return RequestOptions(grammar=_spec(guidance), grammar_prefix=tuple(written), accept_equal_logits=True)


@dataclass(frozen=True, slots=True)
class _Mark:
    column: int
    begins: bool
    """An answer begins here; else one is over, and the next one begins behind what is appended."""


class Answers:
    """Where the answers of each row begin."""

    def __init__(self, guidance: Guidance, engine: ModelEngine) -> None:
        self._guidance = guidance
        self._engine = engine
        self._marks: dict[int, list[_Mark]] = {}

    def end(self, rows: Rows) -> None:
        """Something will be appended: behind rows that have ended it belongs to the next turn."""
        for row in range(rows.count):
            if rows.has_ended(row):
                self._marks.setdefault(row, []).append(_Mark(rows.width, begins=False))

    def cut(self, width: int) -> None:
        """All columns from ``width`` on are dropped."""
        for row, marks in self._marks.items():
            self._marks[row] = [mark for mark in marks if mark.column < width]

    def go_on(self, rows: Rows, row: int) -> tuple[list[int], bool]:
        """Returns the ids of the row's answer so far, and whether nothing may follow them.

        What was appended to an open answer is part of it where the grammar allows that; else an answer begins behind.
        """
        marks = self._marks.setdefault(row, [])
        if marks and marks[-1].begins:
            written = rows.real(row)[len(rows.real(row, marks[-1].column)) :]
            if not written:
                return [], False
            try:
                matcher = self._engine.compile_grammar(_spec(self._guidance)).begun(written).matcher()
            except InvalidArgumentError:
                pass
            else:
                return written, matcher.must_end
        marks.append(_Mark(rows.width, begins=True))
        return [], False


def check_guidance(guidance: Guidance) -> None:
    """Raises what :meth:`GeneratorParams.set_guidance` raises; a grammar that cannot be compiled is refused later.

    Raises:
        InvalidArgumentError: An unknown kind, or data that is no text or no JSON schema.
    """
    if guidance.kind not in GUIDANCE_KINDS:
        raise InvalidArgumentError(f"type is {guidance.kind!r}; allowed: {', '.join(GUIDANCE_KINDS)}")
    if not isinstance(guidance.data, str) or not guidance.data:
        raise InvalidArgumentError(f"data is {guidance.data!r}; allowed: the text of the {guidance.kind}")
    _spec(guidance)


def _spec(guidance: Guidance) -> GrammarSpec:
    make = {"json_schema": grammar.json_schema, "regex": grammar.regex, "lark_grammar": grammar.lark}
    return make[guidance.kind](guidance.data)
