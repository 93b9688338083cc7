"""Whole texts and pairs of texts for encoders: ids, token types, and cutting what is too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tokenizers

__all__ = ["WholeText", "encode_whole"]

_BATCH = 256
"""Texts that are tokenised in one go: Ctrl-C has to wait for so many."""

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeText:
    """A text, or two, with the special tokens around them. Arrays: lists would take ten times the memory."""

    ids: Ids
    """int32 [tokens]."""
    types: Ids | None = None
    """Token types, int32 [tokens]; None: zeros."""
    start: int
    """First token of the last text."""
    end: int
    """End of the tokens of the last text: special tokens follow."""

    def cut(self, limit: int) -> WholeText | None:
        """The text with so many tokens taken from the end of the last text that ``limit`` are left.

        Returns:
            None if that text alone is shorter than what has to go.
        """
        excess = len(self.ids) - limit
        if excess <= 0:
            return self
        end = self.end - excess
        if end < self.start:
            return None
        kept = np.r_[0:end, self.end : len(self.ids)]
        types = None if self.types is None else self.types[kept]
        return WholeText(ids=self.ids[kept], types=types, start=self.start, end=end)


def encode_whole(tokenizer: tokenizers.Tokenizer, texts: Sequence[str | tuple[str, str]]) -> list[WholeText]:
    """Tokenises texts, or pairs of them, with their special tokens."""
    found: list[WholeText] = []
    for first in range(0, len(texts), _BATCH):
        # A batch uses all cores, and other Python threads run meanwhile.
        for encoding in tokenizer.encode_batch(list(texts[first : first + _BATCH])):
            found.append(_whole(encoding))
    return found


def _whole(encoding: tokenizers.Encoding) -> WholeText:
    last = encoding.n_sequences - 1
    places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == last]
    start, end = (places[0], places[-1] + 1) if places else (len(encoding.ids), len(encoding.ids))
    types = np.array(encoding.type_ids, np.int32)
    return WholeText(ids=np.array(encoding.ids, np.int32), types=types if types.any() else None, start=start, end=end)
