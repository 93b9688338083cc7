"""A beam search that is looked at step by step: :class:`Beams`."""

from __future__ import annotations

from onnx_genai.compat.rows import Rows
from onnx_genai.compat.steps import Context, Steps

__all__ = ["Beams"]


class Beams:
    """The beams of a batch. One thread at a time.

    The search runs as a whole when it begins. What the beams were in between is computed when it is asked for, by a
    search of that many steps.

    Args:
        steps: What computes.
        rows: The prompts; they must not change meanwhile.
        returned: Sequences that a row returns in the end.
    """

    def __init__(self, steps: Steps, rows: Rows, returned: int) -> None:
        self._steps = steps
        self._rows = rows
        self._returned = returned
        self._whole, self._length = steps.beams(rows)
        self._after: dict[int, list[list[list[int]]]] = {self._length: self._whole}
        self._step = 0

    @property
    def is_done(self) -> bool:
        return self._step >= self._length

    def advance(self) -> None:
        """Goes to the next step. Requires: not done."""
        self._step += 1

    @property
    def longest(self) -> int:
        """Tokens of the longest beam that is returned now, without its end token."""
        return max(len(self.tokens(row, rank)) for row in range(self._rows.count) for rank in range(self._returned))

    def tokens(self, row: int, rank: int) -> list[int]:
        """What a beam has generated, without its end token; rank 0 is the best one."""
        return self._steps.without_end(self._now()[row][rank])

    def last_tokens(self) -> list[int]:
        """The last token of each beam, row by row, best first; at the end of each returned one."""
        if self.is_done:
            beams = [self.tokens(row, rank) for row in range(self._rows.count) for rank in range(self._returned)]
            return [token for beam in beams for token in beam[-1:]]
        return [beam[-1] for row in self._now() for beam in row]

    def contexts(self) -> list[Context | None]:
        """What the model has before the next token of each beam, row by row, best first; None for one that ended."""
        apart = self._steps.source_width is not None
        return [
            None
            if self._steps.without_end(beam) != beam
            else self._steps.context(self._rows, row).then(beam, apart=apart)
            for row, beams in enumerate(self._now())
            for beam in beams
        ]

    def _now(self) -> list[list[list[int]]]:
        if self._step not in self._after:
            self._after[self._step] = self._steps.beams_after(self._rows, self._step)
        return self._after[self._step]
