"""What masks, lengths and positions say, judged by their values at a few points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_genai.graph.evaluate import Array
from onnx_genai.graph.probe import Point

__all__ = ["judge_lengths", "judge_mask", "judge_positions"]

_BLOCKED = -9999.0
"""A bias this low hides a key: exporters use -inf, the lowest number of the type, or -10000."""


def judge_lengths(contents: Sequence[Array], wanted: Sequence[int]) -> str | None:
    """None if every element of a value is the wanted number at its point."""
    for content, number in zip(contents, wanted, strict=True):
        if content.size == 0 or not bool((content == number).all()):
            found = content.reshape(-1)[:1].tolist()
            return f"is {found[0] if found else 'empty'} where {number} is expected"
    return None


def judge_positions(contents: Sequence[Array], points: Sequence[Point]) -> str | None:
    """None if a value counts from the past on."""
    for content, point in zip(contents, points, strict=True):
        if content.size != point.new or not np.array_equal(content.reshape(-1), np.arange(point.past, point.total)):
            return "does not count tokens from the past on"
    return None


def judge_mask(
    contents: Sequence[Array] | None, points: Sequence[Point], *, causal: bool, padded: bool
) -> tuple[int, str | None]:
    """Returns the window that a mask leaves (-1: all keys up to the query), and why it is none.

    Args:
        contents: Bool (true: seen) or added to the scores, [..., queries, keys]; None if there is no mask.
        points: Lengths of the contents.
        causal: The operator hides later keys by itself.
        padded: The operator hides keys behind the last token by itself.
    """
    window = -1
    seen_at: list[Array] = []
    for place, point in enumerate(points):
        queries, keys = np.arange(point.past, point.total)[:, None], np.arange(point.total)[None, :]
        seen: Array = np.ones((point.new, point.total), np.bool_)
        if contents is not None:
            found = _seen(contents[place], point, padded)
            if isinstance(found, str):
                return -1, found
            seen = found
        if causal:
            seen = seen & (keys <= queries)
        seen_at.append(seen)
        last = int(np.count_nonzero(seen[-1]))
        if last < point.total:
            window = last if window < 0 else window
    for seen, point in zip(seen_at, points, strict=True):
        queries, keys = np.arange(point.past, point.total)[:, None], np.arange(point.total)[None, :]
        wanted = keys <= queries
        if window >= 0:
            wanted = wanted & (queries - keys < window)
        if not np.array_equal(seen, wanted):
            return -1, "hides other keys than those after the query, or before a window"
    return window, None


def _seen(content: Array, point: Point, padded: bool) -> Array | str:
    """Bool [new, total], the same for all heads; or what is wrong."""
    if content.ndim < 2 or content.shape[-2] not in (1, point.new):
        return f"has the shape {list(content.shape)} for {point.new} queries and {point.total} keys"
    if content.dtype == np.bool_:
        seen = content
    else:
        seen = content == 0
        if not bool((seen | (content < _BLOCKED)).all()):
            return "adds a bias to the scores"
    flat = seen.reshape(-1, *seen.shape[-2:])
    if not bool((flat == flat[:1]).all()):
        return "differs between heads"
    rows = np.broadcast_to(flat[0], (point.new, flat.shape[2]))
    if rows.shape[1] == 1 and point.total != 1:
        rows = np.broadcast_to(rows, (point.new, point.total))
    if rows.shape[1] > point.total:
        if not padded and bool(rows[:, point.total :].any()):
            return "shows keys behind the last token"
        rows = rows[:, : point.total]
    if rows.shape[1] < point.total:
        return f"has {rows.shape[1]} columns for {point.total} keys"
    return rows
