"""The marks around reasoning: :data:`MARKERS`, :func:`find_markers`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["MARKERS", "ReasoningMarkers", "find_markers"]


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """A pair of marks; what stands between them is reasoning."""

    start: str
    end: str
    repeats: bool = False
    """Reasoning may come again after an answer has begun."""

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt ends inside reasoning: its last mark is an opening one.

        Give what the template wrote; a message may be about the mark.
        """
        opened = prompt.rfind(self.start)
        return opened >= 0 and prompt.find(self.end, opened + len(self.start)) < 0


MARKERS: tuple[ReasoningMarkers, ...] = (
    ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>", repeats=True),
    ReasoningMarkers("<think>", "</think>"),
    ReasoningMarkers("<|think|>", "<|/think|>"),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarkers("<seed:think>", "</seed:think>"),
    ReasoningMarkers("<thinking>", "</thinking>"),
    ReasoningMarkers("<reasoning>", "</reasoning>"),
    ReasoningMarkers("<thought>", "</thought>"),
    ReasoningMarkers("<|begin_of_thought|>", "<|end_of_thought|>"),
)
"""Known pairs, in the order in which they are looked for."""

_CHANNELS = MARKERS[0]


def find_markers(template_source: str, tokens: Collection[str] = ()) -> ReasoningMarkers | None:
    """Returns the marks that a package's model puts around its reasoning; None if it has none.

    They are looked for in the source of the chat template, where one of the two is enough, else among the tokenizer's
    added tokens, where both must be. The name of the model is never looked at.
    """
    if "<|channel|>" in template_source and "analysis" in template_source:
        return _CHANNELS
    for markers in MARKERS[1:]:
        if markers.end in template_source or markers.start in template_source:
            return markers
    known = set(tokens)
    if {"<|channel|>", "<|message|>", "<|end|>"} <= known:
        return _CHANNELS
    return next((markers for markers in MARKERS[1:] if {markers.start, markers.end} <= known), None)
