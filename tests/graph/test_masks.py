"""Masks, lengths and positions are judged by their values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnx_genai.graph.masks import judge_lengths, judge_mask, judge_positions
from onnx_genai.graph.probe import Point

POINTS = [Point(0, 4), Point(3, 2), Point(9, 1)]
LOW = np.finfo(np.float32).min


def masks(seen: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Bool [1, 1, new, total] at each point from absolute positions of queries and keys."""
    found = []
    for point in POINTS:
        queries, keys = np.arange(point.past, point.total)[:, None], np.arange(point.total)[None, :]
        found.append(np.broadcast_to(seen(queries, keys), (point.new, point.total))[None, None])
    return found


def test_causal_mask_leaves_no_window() -> None:
    assert judge_mask(masks(lambda q, k: k <= q), POINTS, causal=False, padded=False) == (-1, None)


@pytest.mark.parametrize("low", [-np.inf, LOW, -10000.0])
def test_added_mask_of_any_low_number_is_one(low: float) -> None:
    added = [np.where(seen, 0, low).astype(np.float32) for seen in masks(lambda q, k: k <= q)]

    assert judge_mask(added, POINTS, causal=False, padded=False) == (-1, None)


def test_mask_of_ones_needs_a_causal_operator() -> None:
    ones = masks(lambda q, k: k >= 0)

    assert judge_mask(ones, POINTS, causal=True, padded=False) == (-1, None)
    assert judge_mask(ones, POINTS, causal=False, padded=False)[1] is not None
    assert judge_mask(None, POINTS, causal=True, padded=False) == (-1, None)


@pytest.mark.parametrize("window", [1, 2, 9])
def test_window_is_counted_with_the_query_itself(window: int) -> None:
    near = masks(lambda q, k: (k <= q) & (q - k < window))

    assert judge_mask(near, POINTS, causal=False, padded=False) == (window, None)


def test_rows_and_heads_may_broadcast() -> None:
    row = [mask[:, :, -1:, :] for mask in masks(lambda q, k: k >= 0)]
    heads = [np.repeat(mask, 3, axis=1) for mask in masks(lambda q, k: k <= q)]

    assert judge_mask(row, POINTS, causal=True, padded=False) == (-1, None)
    assert judge_mask(heads, POINTS, causal=False, padded=False) == (-1, None)


def test_columns_behind_the_last_token_must_be_hidden() -> None:
    wide = [np.pad(mask, [(0, 0), (0, 0), (0, 0), (0, 5)]) for mask in masks(lambda q, k: k <= q)]
    shown = [
        np.pad(mask, [(0, 0), (0, 0), (0, 0), (0, 5)], constant_values=True) for mask in masks(lambda q, k: k <= q)
    ]

    assert judge_mask(wide, POINTS, causal=False, padded=False) == (-1, None)
    assert judge_mask(shown, POINTS, causal=False, padded=True) == (-1, None)
    assert judge_mask(shown, POINTS, causal=False, padded=False)[1] == "shows keys behind the last token"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (lambda q, k: k < q, "hides other keys"),
        (lambda q, k: (k <= q) & (k != 1), "hides other keys"),
        (lambda q, k: (k <= q) & ((q - k < 2) | (k == 0)), "hides other keys"),
        (lambda q, k: k <= q + 1, "hides other keys"),
    ],
)
def test_other_masks_are_refused(seen: Callable[[np.ndarray, np.ndarray], np.ndarray], reason: str) -> None:
    assert reason in str(judge_mask(masks(seen), POINTS, causal=False, padded=False)[1])


def test_bias_and_heads_of_their_own_are_refused() -> None:
    causal = masks(lambda q, k: k <= q)
    tilted = [np.where(mask, -0.5, LOW) for mask in causal]
    mixed = [np.concatenate([mask, np.ones_like(mask)], axis=1) for mask in causal]
    short = [mask[..., 1:] for mask in causal]

    assert "adds a bias" in str(judge_mask(tilted, POINTS, causal=False, padded=False)[1])
    assert "differs between heads" in str(judge_mask(mixed, POINTS, causal=False, padded=False)[1])
    assert "columns" in str(judge_mask(short, POINTS, causal=False, padded=False)[1])


def test_lengths_are_compared_at_every_point() -> None:
    assert judge_lengths([np.array([4]), np.array(5), np.array([[10]])], [4, 5, 10]) is None
    assert judge_lengths([np.array([4]), np.array(6), np.array([[10]])], [4, 5, 10]) == "is 6 where 5 is expected"


def test_positions_count_from_the_past_on() -> None:
    places = [np.arange(point.past, point.total) for point in POINTS]

    assert judge_positions(places, POINTS) is None
    assert judge_positions([place - place[0] for place in places], POINTS) is not None
