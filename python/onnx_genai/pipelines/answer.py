"""A model's answer in parts: reasoning, text, tool calls. :class:`AnswerParser`."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_genai.reasoning import MarkedText, ReasoningMarkers, ReasoningSplitter
from onnx_genai.tools import Call, ToolCallParser, ToolFormat
from onnx_genai.types import Choice, Chunk, ToolCall

__all__ = ["AnswerForm", "AnswerParser", "AnswerPiece", "new_call_id", "was_cut"]

_ID_LETTERS = string.ascii_letters + string.digits


def was_cut(ending: Choice | Chunk) -> bool:
    """Whether something else than the model ended an answer: a limit, a stop string, the caller."""
    return ending.finish_reason != "stop" or ending.stop_reason is not None


def new_call_id() -> str:
    """A fresh id: nine letters and digits, which every chat template takes."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPiece:
    """A piece of an answer; one of the three is set."""

    reasoning: str = ""
    content: str = ""
    tool_call: ToolCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What may be in the answers of a request."""

    reasoning: ReasoningMarkers | None = None
    inside_reasoning: bool = False
    """The prompt has opened the reasoning already."""
    tool_format: ToolFormat | None = None
    """None leaves calls in the text."""
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def reasoning_marks(self) -> tuple[str, ...]:
        return () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)

    @property
    def call_marks(self) -> tuple[str, ...]:
        return () if self.tool_format is None else self.tool_format.marks

    def marked_text(self) -> MarkedText | None:
        """Tells reasoning, with its marks, and answer apart and leaves nothing out; None if there is no reasoning."""
        return None if self.reasoning is None else MarkedText(self.reasoning, inside=self.inside_reasoning)

    def parser(self, *, new_id: Callable[[], str] = new_call_id) -> AnswerParser:
        """A parser for one answer."""
        return AnswerParser(self, new_id=new_id)


class AnswerParser:
    """Takes an answer apart as it comes. However the text is cut, the parts are the same.

    Calls are looked for outside of reasoning only. What looks like a call and is none stays text, and so does a call
    that the model did not end; one that was cut is neither.
    """

    def __init__(self, form: AnswerForm, *, new_id: Callable[[], str] = new_call_id) -> None:
        """Use :meth:`AnswerForm.parser`."""
        self._splitter = (
            ReasoningSplitter(form.reasoning, inside=form.inside_reasoning) if form.reasoning is not None else None
        )
        self._calls = ToolCallParser(form.tool_format, form.tools) if form.tool_format is not None else None
        self._new_id = new_id
        self._num_calls = 0

    @property
    def unfinished_reasoning(self) -> bool:
        """The text so far ends inside reasoning, so there is no answer."""
        return self._splitter is not None and self._splitter.unfinished

    @property
    def has_reasoning(self) -> bool:
        """There was reasoning, be it empty."""
        return self._splitter is not None and self._splitter.seen

    @property
    def malformed_calls(self) -> int:
        """Pieces that began like a call and were none, or were not ended by the model."""
        return self._calls.malformed if self._calls is not None else 0

    @property
    def unfinished_call(self) -> str:
        """Text of a call that was cut; known when the text has ended."""
        return self._calls.unfinished if self._calls is not None else ""

    def feed(self, text: str) -> list[AnswerPiece]:
        """Takes more text; returns what is certain by now, in order."""
        if self._splitter is None:
            return self._answer(text, [])
        out: list[AnswerPiece] = []
        for split in self._splitter.feed(text):
            if split.reasoning:
                out.append(AnswerPiece(reasoning=split.reasoning))
            else:
                self._answer(split.answer, out)
        return out

    def finish(self, *, was_cut: bool) -> list[AnswerPiece]:
        """Ends the text; returns the rest. ``was_cut``: something else than the model ended it (:func:`was_cut`)."""
        out: list[AnswerPiece] = []
        for split in self._splitter.finish(was_cut=was_cut) if self._splitter is not None else ():
            if split.reasoning:
                out.append(AnswerPiece(reasoning=split.reasoning))
            else:
                self._answer(split.answer, out)
        if self._calls is not None:
            self._put(self._calls.finish(was_cut=was_cut), out)
        return out

    def _answer(self, text: str, out: list[AnswerPiece]) -> list[AnswerPiece]:
        if self._calls is not None:
            self._put(self._calls.feed(text), out)
        elif text:
            out.append(AnswerPiece(content=text))
        return out

    def _put(self, items: Sequence[str | Call], out: list[AnswerPiece]) -> None:
        for item in items:
            if isinstance(item, str):
                out.append(AnswerPiece(content=item))
                continue
            call = ToolCall(
                index=self._num_calls, id=item.id or self._new_id(), name=item.name, arguments=item.arguments
            )
            self._num_calls += 1
            out.append(AnswerPiece(tool_call=call))
