"""PagedAttention in float64 NumPy, written from docs/design/paged.md: plain loops over sequences, heads and rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.kernels.operator import Array, Case, Node

__all__ = ["absolute_bounds", "expected_output", "fill_past", "stored"]


def _quantised(rows: Array) -> tuple[Array, Array]:
    """Whole numbers of rows [..., dim], and what one of them is worth [...]: the int8 rule of the page."""
    rows = rows.astype(np.float32)
    largest = np.abs(rows).max(axis=-1)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    return np.clip(np.rint(rows / scale[..., None]), -127, 127), scale


def stored(rows: Array, kind: str) -> Array:
    """What rows [..., dim] read back as, from a cache of the element type `kind`."""
    if kind == "int8":
        codes, scale = _quantised(rows)
        return np.asarray(codes * scale[..., None].astype(np.float64))
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    return rows.astype(np.float32).astype(dtype).astype(np.float64)


def _split(case: Case) -> tuple[Array, Array, Array]:
    """Query, key and value as float64 [tokens, heads, dim]."""
    node, inputs = case.node, case.inputs
    widths = (node.num_heads * node.head_dim, node.kv_heads * node.head_dim, node.kv_heads * node.value_dim)
    rows = inputs["query"].reshape(-1, inputs["query"].shape[-1]).astype(np.float64)
    if node.packed:
        query, key, value = np.split(rows, np.cumsum(widths)[:2], axis=1)
    else:
        query, key, value = rows, *(inputs[n].reshape(len(rows), -1).astype(np.float64) for n in ("key", "value"))
    return (
        query.reshape(len(rows), node.num_heads, node.head_dim),
        key.reshape(len(rows), node.kv_heads, node.head_dim),
        value.reshape(len(rows), node.kv_heads, node.value_dim),
    )


def _prepare(case: Case, x: Array, positions: Array, weight: str) -> Array:
    """Normalised and rotated rows [tokens, heads, dim]."""
    node = case.node
    if node.norm:
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * case.inputs[weight].astype(np.float64)
    if not node.rotary:
        return x
    cos, sin = (case.inputs[n].astype(np.float64)[positions][:, None] for n in ("cos_cache", "sin_cache"))
    half = node.rotary // 2
    result = x.copy()
    first, second = (slice(0, node.rotary, 2), slice(1, node.rotary, 2))
    if not node.interleaved:
        first, second = slice(0, half), slice(half, node.rotary)
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result


def _positions(case: Case) -> Array:
    return np.concatenate([np.arange(s.past, s.past + s.new) for s in case.sequences]).astype(np.int64)


def _fill(case: Case, row: int, names: tuple[str, str], rows: Array) -> None:
    """Writes rows [past, kv_heads, dim] of sequence `row` into a cache; names: the cache and its scales."""
    node, tensors = case.node, case.blocks.tensors
    codes, scale = _quantised(rows) if node.kv == "int8" else (rows, None)
    cache = tensors[names[0]]
    for position, code in enumerate(codes):
        block = case.inputs["block_table"][row, position // node.block_size]
        offset = position % node.block_size
        at = cache[block, :, :, offset] if names[0] == "key_cache" else cache[block, :, offset, :]
        at[...] = code.astype(cache.dtype)
        if scale is not None:
            tensors[names[1]][block, :, offset] = scale[position]


def fill_past(case: Case, seed: int = 1) -> list[tuple[Array, Array]]:
    """Writes random past keys and values into the caches; gives what they read back as, a pair a sequence."""
    node = case.node
    random = np.random.default_rng(seed)
    result = []
    for row, sequence in enumerate(case.sequences):
        keys = random.standard_normal((sequence.past, node.kv_heads, node.head_dim)).astype(np.float32)
        values = random.standard_normal((sequence.past, node.kv_heads, node.value_dim)).astype(np.float32)
        _fill(case, row, ("key_cache", "k_scale"), keys)
        _fill(case, row, ("value_cache", "v_scale"), values)
        result.append((stored(keys, node.kv), stored(values, node.kv)))
    return result


def _weights(node: Node, query: Array, keys: Array, position: int, sink: float | None) -> Array:
    """One row's weights of the keys of its sequence; those that it does not see have 0."""
    scale = node.scale or 1 / np.sqrt(node.head_dim)
    scores = keys @ query * scale
    if node.softcap > 0:
        scores = node.softcap * np.tanh(scores / node.softcap)
    visible = _visible(node, len(keys), position)
    top = max(scores[visible].max(), sink if sink is not None else -np.inf)
    weights = np.where(visible, np.exp(np.where(visible, scores, top) - top), 0)
    return np.asarray(weights / (weights.sum() + (np.exp(sink - top) if sink is not None else 0)))


def _visible(node: Node, count: int, position: int) -> Array:
    places = np.arange(count)
    visible = places <= position if node.causal else np.ones(count, bool)
    if node.window > 0:
        visible &= places > position - node.window
    return visible


@dataclass(frozen=True)
class _Row:
    """A token's head: what it attends to, and its keys' weights."""

    token: int
    head: int
    query: Array
    keys: Array
    values: Array
    visible: Array
    weights: Array


def _rows(case: Case, past: list[tuple[Array, Array]]) -> Iterator[_Row]:
    node = case.node
    query, key, value = _split(case)
    positions = _positions(case)
    query = _prepare(case, query, positions, "q_norm_weight")
    key = stored(_prepare(case, key, positions, "k_norm_weight"), node.kv)
    value = stored(value, node.kv)
    starts = case.inputs["cumulative_sequence_length"]
    for row, sequence in enumerate(case.sequences):
        here = slice(starts[row], starts[row + 1])
        keys = np.concatenate([past[row][0], key[here]])
        values = np.concatenate([past[row][1], value[here]])
        for token in range(starts[row], starts[row + 1]):
            position = sequence.past + token - starts[row]
            for head in range(node.num_heads):
                group = head // (node.num_heads // node.kv_heads)
                sink = float(case.inputs["head_sink"][head]) if node.sink else 0.0 if node.smooth else None
                yield _Row(
                    token,
                    head,
                    query[token, head],
                    keys[:, group],
                    values[:, group],
                    _visible(node, len(keys), position),
                    _weights(node, query[token, head], keys[:, group], position, sink),
                )


def _empty_output(case: Case) -> Array:
    return np.zeros((sum(s.new for s in case.sequences), case.node.num_heads, case.node.value_dim))


def _shaped(case: Case, output: Array) -> Array:
    return output.reshape(*case.inputs["query"].shape[:-1], case.node.num_heads * case.node.value_dim)


def expected_output(case: Case, past: list[tuple[Array, Array]]) -> Array:
    """float64, the output's shape. `past`: keys and values of each sequence as they read back from the caches."""
    output = _empty_output(case)
    for row in _rows(case, past):
        output[row.token, row.head] = row.weights @ row.values
    return _shaped(case, output)


def absolute_bounds(case: Case, past: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """What roundings of operands are relative to, both of the output's shape: the largest of the sums of absolute
    products that a row's scores are, and its weighted sum of absolute values.
    """
    scores, values = _empty_output(case), _empty_output(case)
    scale = case.node.scale or 1 / np.sqrt(case.node.head_dim)
    for row in _rows(case, past):
        scores[row.token, row.head] = (np.abs(row.keys[row.visible]) @ np.abs(row.query)).max() * scale
        values[row.token, row.head] = row.weights @ np.abs(row.values)
    return _shaped(case, scores), _shaped(case, values)
