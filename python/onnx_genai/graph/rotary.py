"""Rotary embeddings before an attention node that PagedAttention can do by itself: :func:`find_rotary`."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from onnx_genai.graph.index import attribute_int, attributes_of, input_of, operator_of
from onnx_genai.graph.masks import judge_positions
from onnx_genai.graph.probe import WHOLE, Probe

__all__ = ["Rotary", "find_rotary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Query and keys before they are turned, and how they are."""

    query: str
    key: str
    cos: str
    """Table [positions, turned width / 2]."""
    sin: str
    interleaved: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """One RotaryEmbedding node at the positions of its tokens."""

    source: str
    cos: str
    sin: str
    interleaved: int


def find_rotary(probe: Probe, query: str, key: str, heads: tuple[int, int], head_dim: int) -> Rotary | None:
    """Returns the RotaryEmbedding of query and keys if both are turned alike, by the natural positions; else None.

    Args:
        probe: Of the graph.
        query: Value that attention reads, [1, tokens, heads * head_dim] or [1, heads, tokens, head_dim].
        key: The same of the keys.
        heads: Of the query and of the keys.
        head_dim: Width of a head.
    """
    turns = [_turn(probe, name, count, head_dim) for name, count in zip((query, key), heads, strict=True)]
    first, second = turns
    if first is None or second is None:
        return None
    if (first.cos, first.sin, first.interleaved) != (second.cos, second.sin, second.interleaved):
        return None
    return Rotary(query=first.source, key=second.source, cos=first.cos, sin=first.sin, interleaved=first.interleaved)


def _turn(probe: Probe, name: str, heads: int, head_dim: int) -> _Turn | None:
    node = probe.index.producers.get(name)
    if node is None or operator_of(node) not in (("", "RotaryEmbedding"), ("com.microsoft", "RotaryEmbedding")):
        return None
    given = attributes_of(node)
    if given.get("is_packed_batching", 0) or given.get("scale", 1.0) != 1.0:
        return None
    microsoft = node.domain == "com.microsoft"
    cos, sin = (input_of(node, 2), input_of(node, 3)) if microsoft else (input_of(node, 1), input_of(node, 2))
    positions = input_of(node, 1 if microsoft else 3)
    if not positions:
        cos_table, cos_positions = _looked_up(probe, cos)
        sin_table, sin_positions = _looked_up(probe, sin)
        if cos_positions != sin_positions:
            return None
        cos, sin, positions = cos_table, sin_table, cos_positions
    if not _are_positions(probe, positions):
        return None
    source, tables = probe.value(input_of(node, 0)), [probe.value(cos), probe.value(sin)]
    if source is None or source.shapes is None or any(table is None or table.axis != WHOLE for table in tables):
        return None
    shapes = [table.shapes[0] for table in tables if table is not None and table.shapes is not None]
    if len(shapes) != 2 or len(shapes[0]) != 2 or shapes[0] != shapes[1]:
        return None
    turned = int(given.get("rotary_embedding_dim", 0)) or head_dim
    if 2 * shapes[0][1] != turned or turned > head_dim:
        return None
    if len(source.shapes[0]) == 3 and int(given.get("num_heads", 0)) not in ((0, heads) if microsoft else (heads,)):
        return None
    if len(source.shapes[0]) == 3 and not given.get("num_heads", 0) and turned != head_dim:
        return None
    return _Turn(input_of(node, 0), cos, sin, int(given.get("interleaved", 0)))


def _looked_up(probe: Probe, name: str) -> tuple[str, str]:
    """Table and positions of rows that a Gather takes; empty if it is something else."""
    node: onnx.NodeProto | None = probe.index.producers.get(name)
    if node is None or operator_of(node) != ("", "Gather") or attribute_int(node, "axis", 0) != 0:
        return "", ""
    return input_of(node, 0), input_of(node, 1)


def _are_positions(probe: Probe, name: str) -> bool:
    value = probe.value(name)
    return value is not None and value.contents is not None and judge_positions(value.contents, probe.points) is None
