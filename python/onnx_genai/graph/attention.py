"""Attention nodes that keep a past (:func:`find_holders`), and how PagedAttention does the same
(:func:`read_attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from onnx_genai.graph.contract import DType, KvPair
from onnx_genai.graph.evaluate import Array
from onnx_genai.graph.index import GraphIndex, attributes_of, input_of, operator_of
from onnx_genai.graph.masks import judge_lengths, judge_mask, judge_positions
from onnx_genai.graph.probe import UNKNOWN, WHOLE, Probe, Value
from onnx_genai.graph.rotary import find_rotary
from onnx_genai.words import counted

__all__ = ["Holder", "Operand", "PagedNode", "describe_node", "find_holders", "read_attention"]

_GQA = ("com.microsoft", "GroupQueryAttention")
_MHA = ("com.microsoft", "MultiHeadAttention")
_ATTENTION = ("", "Attention")
_PAST_INPUTS = {_GQA: (3, 4), _MHA: (6, 7), _ATTENTION: (4, 5)}
_SCATTER = ("", "TensorScatter")
_HEADS_INSIDE = [0, 2, 1, 3]
"""Between [batch, heads, tokens, width] and [batch, tokens, heads, width]."""


_Masks = dict[tuple[str, bool, bool], tuple[int, str | None]]
"""What was found of (mask, causal, padded): layers share their masks."""


class _UncoveredError(Exception):
    """PagedAttention cannot do what the node does; the text is the rest of "it ..."."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Query, keys or values: a value of the graph and what makes it [1, tokens, heads * width]."""

    name: str
    transpose: bool = False
    """From [1, heads, tokens, width] to [1, tokens, heads, width]."""
    reshape: bool = False
    """Joins the last two axes."""
    bias: tuple[int, int] | None = None
    """Part of the node's bias that is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedNode:
    """One attention node and the PagedAttention that replaces it."""

    node: onnx.NodeProto
    layer: int
    query: Operand
    key: Operand | None
    """None if the query holds keys and values too."""
    value: Operand | None
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType
    """Of query, result and KV in the original."""
    result_rank: int = 3
    """4 if the result is [1, heads, tokens, width]."""
    attributes: Mapping[str, int | float] = field(default_factory=dict)
    extras: Mapping[int, str] = field(default_factory=dict)
    """Other inputs of PagedAttention by place: tables, sinks and norms, which do not depend on tokens."""
    bias: str = ""

    @property
    def names(self) -> list[str]:
        """Values of the graph that are still needed."""
        operands = [item.name for item in (self.query, self.key, self.value) if item is not None]
        return [*operands, *self.extras.values(), *([self.bias] if self.bias else [])]


def describe_node(node: onnx.NodeProto) -> str:
    """Kind and name of a node for messages."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{node.op_type} {name}".rstrip()


@dataclass(slots=True)
class Holder:
    """An attention node and the pasts that it reads: 0 keys, 1 values."""

    node: onnx.NodeProto
    layer: int = 0
    pairs: dict[int, tuple[KvPair, onnx.NodeProto | None]] = field(default_factory=dict)
    """The past, and the TensorScatter between it and the node."""


def find_holders(index: GraphIndex, pairs: Sequence[KvPair]) -> tuple[list[Holder], list[str]]:
    """Returns the attention nodes that read the pasts, by layer, and which pasts are read in another way."""
    found: dict[int, Holder] = {}
    problems: list[str] = []
    for pair in pairs:
        try:
            node, side, update = _reader(index, pair)
        except _UncoveredError as why:
            problems.append(f"{pair.past} {why}")
            continue
        holder = found.setdefault(id(node), Holder(node=node, layer=len(found)))
        holder.pairs[side] = (pair, update)
    for holder in found.values():
        if len(holder.pairs) != 2:
            problems.append(f"{describe_node(holder.node)} has a past of keys only, or of values only")
    return list(found.values()), problems


def read_attention(probe: Probe, holders: Sequence[Holder]) -> tuple[dict[int, PagedNode | None], list[str]]:
    """Returns the replacements of attention nodes by id() of the node, and why others have none."""
    nodes: dict[int, PagedNode | None] = {}
    problems = []
    masks: _Masks = {}
    for holder in holders:
        try:
            nodes[id(holder.node)] = _Reader(probe, holder, masks).read()
        except _UncoveredError as why:
            nodes[id(holder.node)] = None
            problems.append(f"{describe_node(holder.node)} {why}")
    return nodes, problems


def _reader(index: GraphIndex, pair: KvPair) -> tuple[onnx.NodeProto, int, onnx.NodeProto | None]:
    """The attention node that reads a past, 0 for keys or 1 for values, and the TensorScatter between them."""
    uses = [(node, place) for node, place in index.uses[pair.past] if node.op_type != "Shape"]
    if len(pair.dims) > 4:
        raise _UncoveredError("holds keys and values in one tensor; only separate ones can be paged")
    if not uses:
        raise _UncoveredError("is read by no operator")
    if len(uses) > 1:
        readers = ", ".join(sorted({node.op_type for node, _ in uses}))
        raise _UncoveredError(f"is read in {len(uses)} places ({readers}); only one attention node may read it")
    node, place = uses[0]
    places = _PAST_INPUTS.get(operator_of(node))
    if places is not None and place in places:
        return node, places.index(place), None
    if operator_of(node) == _SCATTER and place == 0:
        after = [
            (reader, at) for reader, at in index.uses[node.output[0]] if reader.op_type not in ("Identity", "Shape")
        ]
        if len(after) == 1 and operator_of(after[0][0]) == _ATTENTION and after[0][1] in (1, 2):
            return after[0][0], after[0][1] - 1, node
    raise _UncoveredError(f"is read by {describe_node(node)}; only a fused attention node can be replaced")


class _Reader:
    """Reads one attention node."""

    def __init__(self, probe: Probe, holder: Holder, masks: _Masks) -> None:
        self.probe = probe
        self._masks = masks
        self.index: GraphIndex = probe.index
        self.node = holder.node
        self.layer = holder.layer
        self.attributes = attributes_of(holder.node)
        (self.keys, self.key_update), (self.values, self.value_update) = holder.pairs[0], holder.pairs[1]

    def read(self) -> PagedNode:
        if self.keys.dtype not in (DType.FLOAT32, DType.FLOAT16) or self.keys.dtype is not self.values.dtype:
            raise _UncoveredError(f"keeps keys as {self.keys.dtype.value}; PagedAttention computes float32 and float16")
        if len(self.node.output) > 3 and self.node.output[3]:
            raise _UncoveredError("also returns its scores")
        return _READERS[operator_of(self.node)](self)

    def input(self, place: int) -> str:
        return input_of(self.node, place)

    def need(self, place: int, what: str) -> Value:
        value = self.probe.value(self.input(place))
        if value is None:
            raise _UncoveredError(f"has no {what}")
        return value

    def refuse_inputs(self, places: Mapping[int, str]) -> None:
        for place, what in places.items():
            if self.input(place):
                raise _UncoveredError(f"has the input {what} ({self.input(place)})")

    def contents(self, place: int, what: str) -> tuple[Array, ...]:
        value = self.need(place, what)
        if value.contents is None:
            raise _UncoveredError(f"takes {what} from {self.input(place)}, which cannot be followed to lengths")
        return value.contents

    def lengths(self, place: int, what: str, less: int = 0) -> None:
        """Raises if an input is not past + new - less at every point."""
        why = judge_lengths(self.contents(place, what), [point.total - less for point in self.probe.points])
        if why is not None:
            raise _UncoveredError(f"takes {what} from {self.input(place)}, which {why}")

    def mask(self, place: int, *, causal: bool, padded: bool = False) -> int:
        """Window that a mask leaves, -1 for none; raises if it is more than causal."""
        key = (self.input(place), causal, padded)
        if key not in self._masks:
            contents = self.contents(place, "its mask") if self.input(place) else None
            self._masks[key] = judge_mask(contents, self.probe.points, causal=causal, padded=padded)
        window, why = self._masks[key]
        if why is not None:
            raise _UncoveredError(f"has the mask {self.input(place) or '(none)'}, which {why}")
        return window

    def extra(self, place: int, target: int) -> dict[int, str]:
        """An input that is handed on; it must not depend on tokens."""
        name = self.input(place)
        if not name:
            return {}
        value = self.probe.value(name)
        if value is None or value.axis == UNKNOWN:
            raise _UncoveredError(f"has the input {name}, of which nothing is known")
        if value.axis != WHOLE:
            raise _UncoveredError(f"has the input {name}, which depends on tokens")
        return {target: name}

    def operand(self, name: str, what: str) -> tuple[Operand, tuple[int, ...]]:
        """An input as [1, tokens, width], without reshapes that cancel; and its shape at the first point."""
        value = self.probe.value(name)
        if value is None or value.shapes is None or value.group != 1:
            raise _UncoveredError(f"has a {what} ({name}) of unknown shape")
        shape = value.shapes[0]
        if len(shape) == 3 and value.axis == 1:
            return Operand(name), shape
        if len(shape) != 4 or value.axis != 2:
            raise _UncoveredError(f"has a {what} ({name}) whose tokens lie along an unusual axis")
        maker = self.index.producers.get(name)
        if maker is None or maker.op_type != "Transpose" or attributes_of(maker).get("perm") != _HEADS_INSIDE:
            return Operand(name, transpose=True, reshape=True), shape
        inside = maker.input[0]
        maker = self.index.producers.get(inside)
        if maker is not None and maker.op_type == "Reshape":
            flat = self.probe.value(maker.input[0])
            if flat is not None and flat.shapes is not None and flat.axis == 1 and flat.group == 1:
                width = shape[1] * shape[3]
                if len(flat.shapes[0]) == 3 and flat.shapes[0][2] == width:
                    return Operand(maker.input[0]), shape
        return Operand(inside, reshape=True), shape

    def sizes(self, shape: tuple[int, ...], heads: int, what: str) -> tuple[int, int]:
        """Heads and width of an operand."""
        if len(shape) == 4:
            return shape[1], shape[3]
        if heads < 1 or shape[2] % heads:
            raise _UncoveredError(f"has a {what} of width {shape[2]} for {counted(heads, 'head')}")
        return heads, shape[2] // heads

    def scale_and_cap(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {"scale": float(self.attributes.get("scale", 0.0))}
        found["softcap"] = float(self.attributes.get("softcap", 0.0))
        return found


def _read_group_query(reader: _Reader) -> PagedNode:
    given = reader.attributes
    reader.refuse_inputs({10: "attention_bias", 12: "k_scale", 13: "v_scale", 16: "query_seqlens"})
    for name, usual in (("sliding_window_cache", 0), ("causal", 1), ("kv_cache_bit_width", 0), ("qk_output", 0)):
        if given.get(name, usual) != usual:
            raise _UncoveredError(f"has {name}={given[name]}")
    if any(str(given.get(name, "NONE")) != "NONE" for name in ("k_quant_type", "v_quant_type")):
        raise _UncoveredError("keeps its KV quantized")
    reader.lengths(5, "seqlens_k", less=1)
    reader.lengths(6, "total_sequence_length")
    heads, kv_heads = int(given.get("num_heads", 0)), int(given.get("kv_num_heads", 0))
    query, shape = reader.operand(reader.input(0), "query")
    key = value = None
    if len(shape) != 3 or heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise _UncoveredError(
            f"has a query of the shape {list(shape)} for {counted(heads, 'head')} and {counted(kv_heads, 'KV head')}"
        )
    if reader.input(1):
        key, key_shape = reader.operand(reader.input(1), "key")
        value, value_shape = reader.operand(reader.input(2), "value")
        head_dim = shape[2] // heads
        if key_shape[2:] != (kv_heads * head_dim,) or value_shape != key_shape:
            raise _UncoveredError(f"has keys and values of the shapes {list(key_shape)} and {list(value_shape)}")
    else:
        head_dim = reader.sizes(shape, heads + 2 * kv_heads, "query")[1]
    attributes = reader.scale_and_cap()
    extras = reader.extra(11, 11) | reader.extra(14, 12) | reader.extra(15, 13)
    if given.get("do_rotary", 0):
        if reader.input(9):
            why = judge_positions(reader.contents(9, "positions"), reader.probe.points)
            if why is not None:
                raise _UncoveredError(f"takes positions from {reader.input(9)}, which {why}")
        extras |= reader.extra(7, 8) | reader.extra(8, 9)
        attributes["do_rotary"] = 1
        attributes["rotary_interleaved"] = int(given.get("rotary_interleaved", 0))
    elif key is not None and 12 not in extras and 13 not in extras:
        rotary = find_rotary(reader.probe, reader.input(0), reader.input(1), (heads, kv_heads), head_dim)
        if rotary is not None:
            query, key = reader.operand(rotary.query, "query")[0], reader.operand(rotary.key, "key")[0]
            extras |= {8: rotary.cos, 9: rotary.sin}
            attributes |= {"do_rotary": 1, "rotary_interleaved": rotary.interleaved}
    attributes["local_window_size"] = int(given.get("local_window_size", -1))
    attributes["smooth_softmax"] = int(int(given.get("smooth_softmax", 0)) > 0)
    if 12 in extras or 13 in extras:
        attributes["qk_norm_epsilon"] = _norm_epsilon(given)
    return PagedNode(
        node=reader.node,
        layer=reader.layer,
        query=query,
        key=key,
        value=value,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        dtype=reader.keys.dtype,
        attributes=attributes,
        extras=extras,
    )


def _norm_epsilon(given: Mapping[str, Any]) -> float:
    found = {float(given[name]) for name in ("qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon") if name in given}
    if len(found) > 1:
        raise _UncoveredError("normalises queries and keys with different epsilons")
    return found.pop() if found else 1e-6


def _read_standard(reader: _Reader) -> PagedNode:
    given = reader.attributes
    for name, usual in (("left_window_size", -1), ("right_window_size", -1)):
        if given.get(name, usual) != usual:
            raise _UncoveredError(f"has {name}={given[name]}")
    static = reader.key_update is not None or reader.value_update is not None
    causal = bool(given.get("is_causal", 0))
    padded = bool(reader.input(6))
    if padded:
        reader.lengths(6, "nonpad_kv_seqlen")
    elif static and causal:
        raise _UncoveredError("counts causal positions from the start of a buffer (is_causal without nonpad_kv_seqlen)")
    window = reader.mask(3, causal=causal, padded=padded)
    names = [reader.input(1), reader.input(2)]
    for side, update in enumerate((reader.key_update, reader.value_update)):
        if (update is None) == static:
            raise _UncoveredError("writes only one of keys and values with TensorScatter")
        if update is not None:
            names[side] = _scattered(reader, update)
    query, shape = reader.operand(reader.input(0), "query")
    key, key_shape = reader.operand(names[0], "key")
    value, value_shape = reader.operand(names[1], "value")
    if not len(shape) == len(key_shape) == len(value_shape):
        raise _UncoveredError("has query, key and value of different rank")
    heads, head_dim = reader.sizes(shape, int(given.get("q_num_heads", 0)), "query")
    kv_heads, key_dim = reader.sizes(key_shape, int(given.get("kv_num_heads", 0)), "key")
    _, value_dim = reader.sizes(value_shape, kv_heads, "value")
    if key_dim != head_dim or heads % kv_heads:
        raise _UncoveredError(
            f"has {counted(heads, 'head')} of {head_dim} for {counted(kv_heads, 'KV head')} of {key_dim}"
        )
    extras, turned = {}, {}
    rotary = find_rotary(reader.probe, reader.input(0), names[0], (heads, kv_heads), head_dim)
    if rotary is not None:
        query, key = reader.operand(rotary.query, "query")[0], reader.operand(rotary.key, "key")[0]
        extras, turned = {8: rotary.cos, 9: rotary.sin}, {"do_rotary": 1, "rotary_interleaved": rotary.interleaved}
    return PagedNode(
        node=reader.node,
        layer=reader.layer,
        query=query,
        key=key,
        value=value,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=reader.keys.dtype,
        result_rank=len(shape),
        attributes={**reader.scale_and_cap(), **turned, "local_window_size": window},
        extras=extras,
    )


def _scattered(reader: _Reader, update: onnx.NodeProto) -> str:
    """Name of the new rows that a TensorScatter writes, if it writes them after the past."""
    given = attributes_of(update)
    indices = reader.probe.value(input_of(update, 2))
    if given.get("mode", "linear") != "linear":
        raise _UncoveredError(f"has a cache that {describe_node(update)} writes in the mode {given['mode']}")
    if indices is None or indices.contents is None:
        raise _UncoveredError(f"has a cache that {describe_node(update)} writes at places that are not known")
    why = judge_lengths(indices.contents, [point.past for point in reader.probe.points])
    if why is not None:
        raise _UncoveredError(f"has a cache that {describe_node(update)} writes at {input_of(update, 2)}, which {why}")
    rows = reader.probe.value(input_of(update, 1))
    rank = len(rows.shapes[0]) if rows is not None and rows.shapes is not None else 0
    axis = int(given.get("axis", -2))
    if rank not in (3, 4) or axis % rank != rank - 2:
        raise _UncoveredError(f"has a cache that {describe_node(update)} writes along axis {axis}")
    return input_of(update, 1)


def _read_multi_head(reader: _Reader) -> PagedNode:
    given = reader.attributes
    reader.refuse_inputs({8: "past_sequence_length", 9: "cache_indirection"})
    heads = int(given.get("num_heads", 0))
    if not reader.input(1) or not reader.input(2):
        raise _UncoveredError("has query, key and value in one input")
    query, shape = reader.operand(reader.input(0), "query")
    key, key_shape = reader.operand(reader.input(1), "key")
    value, value_shape = reader.operand(reader.input(2), "value")
    if not len(shape) == len(key_shape) == len(value_shape) == 3:
        raise _UncoveredError("has keys or values with a heads axis")
    _, head_dim = reader.sizes(shape, heads, "query")
    _, value_dim = reader.sizes(value_shape, heads, "value")
    if reader.input(4):
        _check_padding(reader)
    window = reader.mask(5, causal=bool(given.get("unidirectional", 0)))
    bias = reader.input(3)
    if bias:
        reader.extra(3, 3)
        width, value_width = heads * head_dim, heads * value_dim
        query = Operand(query.name, bias=(0, width))
        key = Operand(key.name, bias=(width, 2 * width))
        value = Operand(value.name, bias=(2 * width, 2 * width + value_width))
    return PagedNode(
        node=reader.node,
        layer=reader.layer,
        query=query,
        key=key,
        value=value,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=reader.keys.dtype,
        attributes={**reader.scale_and_cap(), "local_window_size": window},
        bias=bias,
    )


def _check_padding(reader: _Reader) -> None:
    """Raises if key_padding_mask hides anything."""
    name = reader.input(4)
    for content, point in zip(reader.contents(4, "key_padding_mask"), reader.probe.points, strict=True):
        if content.ndim == 1 and content.size == 1:
            full = int(content[0]) == point.total
        else:
            full = content.ndim == 2 and content.shape[-1] == point.total and bool((content != 0).all())
        if not full:
            raise _UncoveredError(f"has the key_padding_mask {name}, which hides more than padding")


_READERS: Mapping[tuple[str, str], Callable[[_Reader], PagedNode]] = {
    _GQA: _read_group_query,
    _ATTENTION: _read_standard,
    _MHA: _read_multi_head,
}
