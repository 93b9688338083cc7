"""Text with the marks of reasoning in it, piece by piece: :class:`MarkedText`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnx_genai.reasoning.markers import ReasoningMarkers

__all__ = ["MarkedText", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text, never empty, and what it is."""

    text: str
    kind: Literal["reasoning", "answer", "mark"]


class MarkedText:
    """Tells reasoning, marks and answer in a stream of text apart. The pieces joined are the text.

    However the text is cut, the same parts of it are of the same kind. At most a mark's length is held back. Once the
    answer has begun, marks in it are text (it may be about them), but for channels, where a mark is a token that nobody
    can write.
    """

    def __init__(self, markers: ReasoningMarkers, *, inside: bool = False) -> None:
        """``inside``: the prompt has opened the reasoning already (:meth:`ReasoningMarkers.opened_by`)."""
        self._markers = markers
        self._held = ""
        self.inside = inside
        """The text so far ends inside reasoning."""
        self.answered = False
        """All that comes is answer."""
        self.seen = inside
        """There was reasoning, be it empty."""

    def feed(self, text: str) -> list[Piece]:
        """Takes more text; returns what is certain by now."""
        self._held += text
        return self._take(was_cut=None)

    def finish(self, *, was_cut: bool = False) -> list[Piece]:
        """Ends the text; returns the rest.

        Args:
            was_cut: More would have come, so that the beginning of a mark at the end is one.
        """
        return self._take(was_cut=was_cut)

    def _take(self, *, was_cut: bool | None) -> list[Piece]:
        """``was_cut`` is None while more may come."""
        out: list[Piece] = []
        while not self.answered:
            mark = self._markers.end if self.inside else self._markers.start
            before, found, behind = self._held.partition(mark)
            if found and (self.inside or self._markers.repeats or not before.strip()):
                self._put(before, out)
                out.append(Piece(mark, "mark"))
                self._held = behind
                self.inside = not self.inside
                self.seen = True
                continue
            keep = 0 if was_cut is False else _begun(self._held, mark)
            ready = self._held[: len(self._held) - keep]
            if not self.inside and not self._markers.repeats and ready.strip():
                self.answered = True
                break
            self._put(ready, out)
            self._held = self._held[len(ready) :]
            if was_cut and self._held:
                out.append(Piece(self._held, "mark"))
            return out
        self._put(self._held, out)
        self._held = ""
        return out

    def _put(self, text: str, out: list[Piece]) -> None:
        if text:
            out.append(Piece(text, "reasoning" if self.inside else "answer"))


def _begun(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that ``mark`` may begin with."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
