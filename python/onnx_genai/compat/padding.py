"""Which ids of an array are padding, where no mask says it: :func:`find_padding`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

__all__ = ["find_padding"]

_log = logging.getLogger("onnx_genai")


def find_padding(ids: Sequence[Sequence[int]], pad: int | None, ends: frozenset[int]) -> list[tuple[int, int]]:
    """How much of each row is padding, on its left and on its right.

    Padding is what some rows have at an end and others have not: the longest row needs none. A single pad id at the end
    of a row is the end of its text if it also ends texts and nothing shows that the array is padded on the right: no
    row has two, or rows have padding on the left. A log line then says so, as the id alone cannot tell.

    Args:
        ids: Rows of equal length, at least one.
        pad: The id that pads, if there is one.
        ends: Ids that end a text; those of many packages have the pad id among them.
    """
    width = len(ids[0])
    left = _beyond_least([_run(row, pad) for row in ids])
    right = _beyond_least([_run(row[::-1], pad) for row in ids])
    if pad in ends and max(right) == 1:
        row = right.index(1)
        right = [0] * len(ids)
        if not any(left):
            _log.warning(
                "row %d of the array ends in id %s, which pads and also ends texts: it is taken for text; give an "
                "attention_mask that is 0 there if it is padding, or a list of lists without it",
                row,
                pad,
            )
    return [(before, min(after, width - before)) for before, after in zip(left, right, strict=True)]


def _beyond_least(runs: list[int]) -> list[int]:
    return [run - min(runs) for run in runs]


def _run(row: Sequence[int], pad: int | None) -> int:
    count = 0
    while count < len(row) and row[count] == pad:
        count += 1
    return count
