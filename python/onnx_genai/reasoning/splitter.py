"""Splits text into reasoning and answer: :class:`ReasoningSplitter`, and :func:`split_reasoning` for a whole text."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_genai.reasoning.markers import ReasoningMarkers

__all__ = ["ReasoningSplitter", "Split", "split_reasoning"]


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces of the two parts, in the order of the text: reasoning never follows an answer within one piece."""

    reasoning: str = ""
    answer: str = ""


class ReasoningSplitter:
    """Splits a stream of text. However the text is cut, the result is the same; marks belong to neither part.

    White space behind the closing mark and around the opening one belongs to no part. Once the answer has begun, marks
    in it are text (it may be about them), but for channels, where a mark is a token that nobody can write.
    """

    def __init__(self, markers: ReasoningMarkers, *, inside: bool = False) -> None:
        """``inside``: the prompt has opened the reasoning already (:meth:`ReasoningMarkers.opened_by`)."""
        self._markers = markers
        self._inside = inside
        self._buffer = ""
        self._trim = inside
        """White space that comes next belongs to no part."""
        self._answered = False
        self.seen = inside
        """Whether there was any reasoning."""

    @property
    def unfinished(self) -> bool:
        """The text so far ends inside reasoning, so there is no answer yet."""
        return self._inside

    def feed(self, text: str) -> list[Split]:
        """Takes more text; returns what is certain by now."""
        self._buffer += text
        return self._take(at_end=False)

    def finish(self) -> list[Split]:
        """Ends the text; returns the rest."""
        return self._take(at_end=True)

    def _take(self, *, at_end: bool) -> list[Split]:
        out: list[Split] = []
        while True:
            if self._answered and not self._markers.repeats:
                self._emit(self._buffer, out, before_mark=False)
                self._buffer = ""
                return out
            mark = self._markers.end if self._inside else self._markers.start
            found = self._buffer.find(mark)
            if found > 0 and not self._inside and not self._markers.repeats and self._buffer[:found].strip():
                found = -1  # an answer that mentions the mark
            if found >= 0:
                self._emit(self._buffer[:found], out, before_mark=True)
                self._buffer = self._buffer[found + len(mark) :]
                self._inside = not self._inside
                self.seen = True
                self._trim = True
                continue
            keep = 0 if at_end else _overlap(self._buffer, mark)
            if not self._inside and not self._markers.repeats and self._buffer[: len(self._buffer) - keep].strip():
                keep = 0
            # White space may turn out to stand before a mark.
            ready = self._buffer[: len(self._buffer) - keep]
            if not at_end:
                ready = ready.rstrip()
            self._emit(ready, out, before_mark=False)
            self._buffer = self._buffer[len(ready) :]
            return out

    def _emit(self, text: str, out: list[Split], *, before_mark: bool) -> None:
        if self._trim:
            text = text.lstrip()
        if before_mark:
            text = text.rstrip()
        if not text:
            return
        self._trim = False
        self._answered = not self._inside
        out.append(Split(reasoning=text) if self._inside else Split(answer=text))


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that ``mark`` may begin with."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


def split_reasoning(text: str, markers: ReasoningMarkers, *, inside: bool = False) -> tuple[str, str, bool]:
    """Returns reasoning, answer, and whether the text ends inside reasoning."""
    splitter = ReasoningSplitter(markers, inside=inside)
    pieces = [*splitter.feed(text), *splitter.finish()]
    return (
        "".join(piece.reasoning for piece in pieces),
        "".join(piece.answer for piece in pieces),
        splitter.unfinished,
    )
