"""Splits text into reasoning and answer: :class:`ReasoningSplitter`, and :func:`split_reasoning` for a whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_genai.reasoning.marked import MarkedText, Piece
from onnx_genai.reasoning.markers import ReasoningMarkers

__all__ = ["ReasoningSplitter", "Split", "split_reasoning"]


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces of the two parts, in the order of the text: reasoning never follows an answer within one piece."""

    reasoning: str = ""
    answer: str = ""


class ReasoningSplitter:
    """Splits a stream of text. However the text is cut, the result is the same; marks belong to neither part.

    White space behind the closing mark and around the opening one belongs to no part. What a mark is,
    :class:`~onnx_genai.reasoning.marked.MarkedText` says.
    """

    def __init__(self, markers: ReasoningMarkers, *, inside: bool = False) -> None:
        """``inside``: the prompt has opened the reasoning already (:meth:`ReasoningMarkers.opened_by`)."""
        self._text = MarkedText(markers, inside=inside)
        self._blank = ""
        """White space that may turn out to stand before a mark."""
        self._trim = inside
        """White space that comes next belongs to no part."""

    @property
    def seen(self) -> bool:
        """Whether there was any reasoning."""
        return self._text.seen

    @property
    def unfinished(self) -> bool:
        """The text so far ends inside reasoning, so there is no answer yet."""
        return self._text.inside

    def feed(self, text: str) -> list[Split]:
        """Takes more text; returns what is certain by now."""
        return self._take(self._text.feed(text))

    def finish(self, *, was_cut: bool = False) -> list[Split]:
        """Ends the text; returns the rest.

        Args:
            was_cut: More would have come, so that the beginning of a mark at the end is one, and belongs to no part.
        """
        out = self._take(self._text.finish(was_cut=was_cut))
        if self._blank:
            out.append(_split(self._blank, is_reasoning=self._text.inside))
            self._blank = ""
        return out

    def _take(self, pieces: Sequence[Piece]) -> list[Split]:
        out: list[Split] = []
        for piece in pieces:
            if piece.kind == "mark":
                self._blank, self._trim = "", True
                continue
            text = self._blank + piece.text
            text = text.lstrip() if self._trim else text
            is_certain = self._text.answered and piece is pieces[-1]
            ready = text if is_certain else text.rstrip()
            self._blank = text[len(ready) :]
            if ready:
                self._trim = False
                out.append(_split(ready, is_reasoning=piece.kind == "reasoning"))
        return out


def _split(text: str, *, is_reasoning: bool) -> Split:
    return Split(reasoning=text) if is_reasoning else Split(answer=text)


def split_reasoning(text: str, markers: ReasoningMarkers, *, inside: bool = False) -> tuple[str, str, bool]:
    """Returns reasoning, answer, and whether the text ends inside reasoning."""
    splitter = ReasoningSplitter(markers, inside=inside)
    pieces = [*splitter.feed(text), *splitter.finish()]
    return (
        "".join(piece.reasoning for piece in pieces),
        "".join(piece.answer for piece in pieces),
        splitter.unfinished,
    )
