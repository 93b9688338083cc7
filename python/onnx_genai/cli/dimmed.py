"""Reasoning as a terminal shows it: dim, with its marks, nothing left out. :class:`DimReasoning`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_genai.pipelines.answer import AnswerForm

__all__ = ["DimReasoning"]

_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class DimReasoning:
    """Puts the sequences for dim around reasoning in a stream of text, and changes nothing else."""

    def __init__(self, form: AnswerForm) -> None:
        """``form``: its marks; one without any has no reasoning."""
        self._marked = form.marked_text()

    def feed(self, text: str) -> str:
        """Takes more text; returns what can be shown by now."""
        return (
            text if self._marked is None else "".join(_shown(each.text, each.kind) for each in self._marked.feed(text))
        )

    def finish(self) -> str:
        """Ends the text; returns the rest."""
        return "" if self._marked is None else "".join(_shown(each.text, each.kind) for each in self._marked.finish())


def _shown(text: str, kind: str) -> str:
    return text if kind == "answer" else f"{_DIM}{text}{_NORMAL}"
