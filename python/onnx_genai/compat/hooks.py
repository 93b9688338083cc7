"""Logits processors that watch steps, read rows of logits and replace them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnx_genai.compat.search import SearchOptions

__all__ = ["Capture", "CountSteps", "Replace", "apply_penalties"]

_Rows = Sequence[npt.NDArray[np.int32]]
_Logits = npt.NDArray[np.float32]


class Capture:
    """Keeps the logits of one request's step: float32 ``[vocab]``."""

    def __init__(self) -> None:
        self.logits: _Logits | None = None

    def process(self, token_ids: _Rows, logits: _Logits) -> None:
        self.logits = logits[0].copy()


class CountSteps:
    """Counts the steps of one request, whatever number of beams each has."""

    def __init__(self) -> None:
        self._lengths: set[int] = set()

    @property
    def steps(self) -> int:
        return len(self._lengths)

    def process(self, token_ids: _Rows, logits: _Logits) -> None:
        self._lengths.update(len(ids) for ids in token_ids)


class Replace:
    """Puts other logits in the place of the model's. What the engine did to those is lost, so it is done here."""

    def __init__(self, logits: _Logits, options: SearchOptions, total: int, ends: frozenset[int]) -> None:
        self._logits = logits
        self._options = options
        self._bans_ends = total < options.min_length
        self._ends = sorted(ends)

    def row(self, ids: npt.NDArray[np.int32]) -> _Logits:
        """The logits after penalties and bans, for a sequence: float32 ``[vocab]``."""
        row = self._logits.copy()
        apply_penalties(row, ids, self._options)
        if self._bans_ends:
            row[self._ends] = -np.inf
        return row

    def process(self, token_ids: _Rows, logits: _Logits) -> None:
        logits[0] = self.row(token_ids[0])[: logits.shape[1]]


def apply_penalties(logits: _Logits, ids: npt.NDArray[np.int32], options: SearchOptions) -> None:
    """Repetition penalty, then no repeated n-grams, in place. logits: float32 ``[vocab]``; ids: int32 ``[seq]``.

    Source: Keskar et al. 2019, section 4.1 (penalty, for scores of either sign); transformers ``no_repeat_ngram_size``.
    """
    if options.repetition_penalty != 1.0:
        seen = np.unique(ids)
        scores = logits[seen]
        penalty = np.float32(options.repetition_penalty)
        logits[seen] = np.where(scores < 0, scores * penalty, scores / penalty)
    size = options.no_repeat_ngram_size
    if size <= 0 or len(ids) < size:
        return
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    last = ids[len(ids) - (size - 1) :]
    banned = windows[(windows[:, : size - 1] == last).all(axis=1), size - 1]
    logits[banned] = -np.inf
