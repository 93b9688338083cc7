"""The checksum model: the next token is a weighted sum of the whole history, kept in the KV cache.

A slot mix-up, a wrong position, a wrong mask, swapped layers, heads or keys and values, or a lost rewind changes the
answer. All arithmetic is on small whole numbers, so it is exact in every cache style and in any batch.

For the token ``t`` at position ``p`` (0-based), with ``V`` = 97:

    layer 0   head 0 keeps (p+1)(t+1) mod V, head 1 keeps (p+2)(t+3) mod V
              s0 = (sum of head 0 + 2 * sum of head 1) mod V      over positions 0..p
    layer 1   head 0 keeps (p+3)(s0+1) mod V, head 1 keeps (p+1)(s0+5) mod V
              s1 = the same sum
    next      (s0 + 3 s1 + 11 (p+1)) mod V

Layer 1 is made from sums, so even an error that layer 0 makes in the middle of a prompt stays in the cache. A kept
number is stored as its 8 bits in the head's 8 value channels; keys are ones. A graph with fused attention then has
equal scores and returns the mean of the bits; times the count and rounded, that is the exact sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnx

from tests.models.nodes import GraphWriter

__all__ = [
    "CHECKSUM_STYLES",
    "EOS",
    "NUM_LAYERS",
    "VOCAB_SIZE",
    "ChecksumSpec",
    "Ports",
    "build_checksum",
    "checksum_generate",
    "checksum_logits",
    "checksum_next",
]

VOCAB_SIZE = 97
EOS = 0
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_SIZE = 8
KV_WIDTH = NUM_KV_HEADS * HEAD_SIZE
LADDER_STEP = 0.5

Float = Literal["float32", "float16"]
Integer = Literal["int64", "int32"]


def checksum_next(token_ids: Iterable[int]) -> int:
    """The id that follows `token_ids`; the oracle of every style."""
    sums = [0, 0]
    folded = [0, 0]
    count = 0
    for position, token in enumerate(token_ids):
        sums[0] += (position + 1) * (token + 1) % VOCAB_SIZE + 2 * ((position + 2) * (token + 3) % VOCAB_SIZE)
        folded[0] = sums[0] % VOCAB_SIZE
        sums[1] += (position + 3) * (folded[0] + 1) % VOCAB_SIZE + 2 * ((position + 1) * (folded[0] + 5) % VOCAB_SIZE)
        folded[1] = sums[1] % VOCAB_SIZE
        count = position + 1
    return (folded[0] + 3 * folded[1] + 11 * count) % VOCAB_SIZE


def checksum_generate(prompt: Iterable[int], num_tokens: int, *, eos: int | None = None) -> list[int]:
    """`num_tokens` greedy ids after `prompt`; fewer when `eos` comes, which is then the last one."""
    history = list(prompt)
    start = len(history)
    while len(history) - start < num_tokens:
        history.append(checksum_next(history))
        if history[-1] == eos:
            break
    return history[start:]


def checksum_logits(token_ids: Iterable[int], width: int = VOCAB_SIZE) -> np.ndarray:
    """The model's logits after `token_ids`: float32 [width], a ladder that falls by 0.5 from the next id on.

    The ladder has no ties, and sampling from it picks different ids, so seeded runs differ from greedy ones.
    """
    return _ladder(width)[checksum_next(token_ids)]


def _ladder(width: int) -> np.ndarray:
    distance = (np.arange(VOCAB_SIZE)[None, :] - np.arange(VOCAB_SIZE)[:, None]) % VOCAB_SIZE
    rows = np.full((VOCAB_SIZE, width), -LADDER_STEP * VOCAB_SIZE, dtype=np.float32)
    rows[:, :VOCAB_SIZE] = -LADDER_STEP * distance
    return rows


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Names of the graph's inputs and outputs; ``{}`` is the layer. A packed cache uses `past_key` alone."""

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key: str = "past_key_values.{}.key"
    past_value: str = "past_key_values.{}.value"
    present_key: str = "present.{}.key"
    present_value: str = "present.{}.value"
    logits: str = "logits"

    @property
    def past(self) -> list[str]:
        return [name.format(layer) for layer in range(NUM_LAYERS) for name in (self.past_key, self.past_value)]

    @property
    def present(self) -> list[str]:
        return [name.format(layer) for layer in range(NUM_LAYERS) for name in (self.present_key, self.present_value)]


CUSTOM_PORTS = Ports(
    input_ids="tokens",
    attention_mask="valid",
    position_ids="places",
    past_key="k_in_{}",
    past_value="v_in_{}",
    present_key="k_out_{}",
    present_value="v_out_{}",
    logits="scores",
)
STATIC_PORTS = Ports(
    past_key="key_cache.{}",
    past_value="value_cache.{}",
    present_key="updated_key_cache.{}",
    present_value="updated_value_cache.{}",
)
PACKED_PORTS = Ports(past_key="past_{}", present_key="present_{}")


@dataclass(frozen=True, kw_only=True)
class ChecksumSpec:
    """Which graph to build.

    cache:
        ``concat``       past [B,2,P,8] -> present [B,2,P+S,8] from plain operators
        ``packed``       the same, keys and values in one tensor: past_N [2,B,2,P,8]
        ``merged``       an If over ``use_cache_branch`` [1]: without a past, or like ``concat``
        ``attention``    the standard Attention operator (opset 23) with past and present
        ``gqa``          GroupQueryAttention; past and present may share a buffer
        ``static``       TensorScatter and Attention (opset 24) on [B,capacity,16], ``write_indices``,
                         ``nonpad_kv_seqlen``
        ``static_plain`` the same inputs and outputs from plain operators
    """

    cache: Literal["concat", "packed", "merged", "attention", "gqa", "static", "static_plain"]
    lengths: Literal["mask", "seqlens", "none"] = "mask"
    """Input that tells valid tokens: attention_mask, seqlens_k and total_sequence_length (gqa only), or nothing."""
    positions: bool = True
    """Whether position_ids is an input; if not, positions follow from the lengths or the cache."""
    kv_dtype: Float = "float32"
    logits_dtype: Float = "float32"
    int_dtype: Integer = "int64"
    """Of ids, mask and positions."""
    packed_qkv: bool = False
    """gqa only: query, key and value come in one tensor."""
    last_logits_only: bool = False
    capacity: int = 64
    """Positions of a static cache; for gqa only the size that `reference.BufferDecoder` takes."""
    logits_width: int = VOCAB_SIZE
    """More than the vocabulary: the rest are the lowest logits."""
    bad_from: int | None = None
    """Logits after this many tokens or more are replaced by `bad_logits`."""
    bad_logits: Literal["nan", "one_nan", "equal", "inf", "minus_inf"] = "nan"
    ports: Ports = field(default_factory=Ports)

    @property
    def is_static(self) -> bool:
        return self.cache in {"static", "static_plain"}

    @property
    def opset(self) -> int:
        return {"static": 24, "attention": 23}.get(self.cache, 17)

    @property
    def cache_shape(self) -> list[int | str]:
        """Of one past input."""
        if self.is_static:
            return ["batch", self.capacity, KV_WIDTH]
        shape: list[int | str] = ["batch", NUM_KV_HEADS, "past", HEAD_SIZE]
        return [2, *shape] if self.cache == "packed" else shape


CONCAT = ChecksumSpec(cache="concat")
GQA = ChecksumSpec(cache="gqa", positions=False)
STATIC = ChecksumSpec(cache="static", lengths="none", ports=STATIC_PORTS)

CHECKSUM_STYLES: dict[str, ChecksumSpec] = {
    "concat": CONCAT,
    "concat_no_mask": replace(CONCAT, lengths="none", positions=False),
    "concat_fp16": replace(CONCAT, kv_dtype="float16"),
    "concat_fp16_logits": replace(CONCAT, kv_dtype="float16", logits_dtype="float16"),
    "concat_int32": replace(CONCAT, int_dtype="int32"),
    "concat_last_logits": replace(CONCAT, last_logits_only=True),
    "concat_short_names": replace(CONCAT, ports=Ports(past_key="past.{}.key", past_value="past.{}.value")),
    "concat_custom_names": replace(CONCAT, ports=CUSTOM_PORTS),
    "concat_padded_vocab": replace(CONCAT, logits_width=128),
    "packed": ChecksumSpec(cache="packed", ports=PACKED_PORTS),
    "merged": ChecksumSpec(cache="merged", positions=False),
    "attention": ChecksumSpec(cache="attention"),
    "gqa": GQA,
    "gqa_positions": replace(GQA, positions=True),
    "gqa_seqlens": replace(GQA, lengths="seqlens"),
    "gqa_packed_qkv": replace(GQA, packed_qkv=True),
    "gqa_int32": replace(GQA, int_dtype="int32"),
    "gqa_last_logits": replace(GQA, last_logits_only=True),
    "gqa_fp16": replace(GQA, kv_dtype="float16", logits_dtype="float16"),
    "static": STATIC,
    "static_no_positions": replace(STATIC, positions=False),
    "static_fp16": replace(STATIC, kv_dtype="float16"),
    "static_plain": replace(STATIC, cache="static_plain"),
}
"""The graphs that exporters make, by a short name. All compute `checksum_next`."""


def build_checksum(spec: ChecksumSpec) -> onnx.ModelProto:
    """The graph of `spec`, under 100 KB."""
    g = GraphWriter()
    inputs = _Inputs(spec, g)
    if spec.cache == "merged":
        _write_merged(spec, g, inputs)
    else:
        _write_outputs(spec, g, _Body(spec, g, inputs, use_past=True).run())
    return g.model(f"checksum_{spec.cache}", spec.opset, contrib=spec.cache == "gqa")


class _Inputs:
    """Graph inputs; integer ones as int64, absent ones as None."""

    def __init__(self, spec: ChecksumSpec, g: GraphWriter) -> None:
        ports = spec.ports

        def integer(name: str, shape: list[int | str]) -> str:
            return g.cast(g.input(name, spec.int_dtype, shape), "int64")

        self.ids = integer(ports.input_ids, ["batch", "new"])
        self.mask = integer(ports.attention_mask, ["batch", "total"]) if spec.lengths == "mask" else None
        self.positions = integer(ports.position_ids, ["batch", "new"]) if spec.positions else None
        self.past = [g.input(name, spec.kv_dtype, spec.cache_shape) for name in _cache_names(spec, ports.past)]
        self.seqlens: str | None = None
        self.total: str | None = None
        if spec.cache == "gqa" and spec.lengths == "seqlens":
            self.seqlens = g.input("seqlens_k", "int32", ["batch"])
            self.total = g.input("total_sequence_length", "int32", [])
        elif spec.cache == "gqa":
            # As exporters for onnxruntime-genai do: the lengths come from the mask.
            self.seqlens = g.cast(g.add(g.op("ReduceSum", str(self.mask), g.constant([1]), keepdims=0), -1), "int32")
            self.total = g.cast(g.op("Squeeze", g.dim(str(self.mask), 1)), "int32")
        if spec.is_static:
            self.write_indices = g.input("write_indices", "int64", ["batch"])
            self.nonpad = g.input("nonpad_kv_seqlen", "int64", ["batch"])
        if spec.cache == "merged":
            self.use_cache_branch = g.input("use_cache_branch", "bool", [1])


def _cache_names(spec: ChecksumSpec, names: list[str]) -> list[str]:
    return names[::2] if spec.cache == "packed" else names


@dataclass
class _Outputs:
    next_id: str
    """int64 [B,S]"""
    count: str
    """Tokens up to each place: int64 [B,S]"""
    present: list[str] = field(default_factory=list)


class _Body:
    """Writes both layers into `g`. Without `use_past` the cache inputs are left alone."""

    def __init__(self, spec: ChecksumSpec, g: GraphWriter, inputs: _Inputs, *, use_past: bool) -> None:
        self.spec = spec
        self.g = g
        self.inputs = inputs
        self.use_past = use_past
        self.new = g.dim(inputs.ids, 1)
        self.past = self._past_length()
        self.positions = self._positions()
        self.present: list[str] = []

    def run(self) -> _Outputs:
        g = self.g
        first, first_count = self._layer(0, self.inputs.ids, ((1, 1), (2, 3)))
        second, second_count = self._layer(1, first, ((3, 1), (1, 5)))
        terms = g.op("Add", first, g.op("Mul", second, g.constant(3)))
        counts = g.op("Add", g.op("Mul", first_count, g.constant(4)), g.op("Mul", second_count, g.constant(7)))
        next_id = g.op("Mod", g.op("Add", terms, counts), g.constant(VOCAB_SIZE))
        return _Outputs(next_id=next_id, count=first_count, present=self.present)

    def _past_length(self) -> str:
        """int64 [1], or [B,1] where rows differ."""
        g = self.g
        if not self.use_past:
            return g.constant([0])
        if self.spec.is_static:
            return g.unsqueeze(self.inputs.write_indices, 1)
        if self.spec.cache == "gqa":
            # A right-padded first prompt has rows shorter than S; their tokens still start at 0.
            valid = g.add(g.cast(str(self.inputs.seqlens), "int64"), 1)
            return g.unsqueeze(g.op("Max", g.op("Sub", valid, self.new), g.constant([0])), 1)
        return g.dim(self.inputs.past[0], 3 if self.spec.cache == "packed" else 2)

    def _positions(self) -> str:
        g = self.g
        if self.inputs.positions is not None:
            return self.inputs.positions
        if self.spec.cache == "merged":
            seen = g.add(g.op("CumSum", str(self.inputs.mask), g.constant(1)), -1)
            return g.slice_from(seen, g.op("Neg", self.new), 1)
        places = g.op("Add", self.past, g.unsqueeze(g.arange(self.new), 0))
        return g.op("Add", places, g.op("Mul", self.inputs.ids, g.constant(0)))

    def _layer(self, layer: int, numbers: str, weights: tuple[tuple[int, int], tuple[int, int]]) -> tuple[str, str]:
        """One layer over int64 [B,S] `numbers`; returns its folded sum and the count, both int64 [B,S]."""
        g = self.g
        heads = [
            g.op(
                "Mod",
                g.op("Mul", g.add(self.positions, position), g.add(numbers, number)),
                g.constant(VOCAB_SIZE),
            )
            for position, number in weights
        ]
        kept = g.op("Concat", *[g.unsqueeze(head, 2) for head in heads], axis=2)
        powers = g.constant([1 << bit for bit in range(HEAD_SIZE)])
        bits = g.op("Mod", g.op("Div", g.unsqueeze(kept, 3), powers), g.constant(2))
        value = g.cast(bits, self.spec.kv_dtype)  # [B,S,2,8]
        key = g.op("Add", g.op("Mul", value, g.constant(0, self.spec.kv_dtype)), g.constant(1, self.spec.kv_dtype))
        bit_sums, count = self._attend(layer, key, value)
        sums = g.op("ReduceSum", g.op("Mul", bit_sums, powers), g.constant([3]), keepdims=0)  # [B,S,2]
        total = g.op("ReduceSum", g.op("Mul", sums, g.constant([1, 2])), g.constant([2]), keepdims=0)
        return g.op("Mod", total, g.constant(VOCAB_SIZE)), count

    def _attend(self, layer: int, key: str, value: str) -> tuple[str, str]:
        """Sums of the bits up to each place, int64 [B,S,2,8], and how many tokens they are of, int64 [B,S]."""
        if self.spec.cache == "static_plain":
            return self._attend_scatter_plain(layer, key, value)
        if self.spec.cache in {"gqa", "static", "attention"}:
            return self._attend_fused(layer, key, value)
        return self._attend_concat(layer, key, value)

    def _attend_concat(self, layer: int, key: str, value: str) -> tuple[str, str]:
        g = self.g
        new = [g.op("Transpose", tensor, perm=[0, 2, 1, 3]) for tensor in (key, value)]
        whole = new
        if self.use_past:
            whole = [g.op("Concat", old, tail, axis=2) for old, tail in zip(self._past(layer), new, strict=True)]
        if self.spec.cache == "packed":
            self.present.append(g.op("Concat", *[g.unsqueeze(tensor, 0) for tensor in whole], axis=0))
        else:
            self.present.extend(whole)
        sums = [g.cast(tensor, "float32") for tensor in whole]
        if self.inputs.mask is not None:
            valid = g.cast(g.unsqueeze(self.inputs.mask, 1, 3), "float32")
            sums = [g.op("Mul", tensor, valid) for tensor in sums]
        sums = [g.slice_from(g.op("CumSum", tensor, g.constant(2)), self.past, 2) for tensor in sums]
        # Truncated, not rounded: one missing key of any head or channel changes the count.
        count = g.cast(g.op("ReduceMean", sums[0], axes=[1, 3], keepdims=0), "int64")
        return g.cast(g.op("Transpose", sums[1], perm=[0, 2, 1, 3]), "int64"), count

    def _past(self, layer: int) -> list[str]:
        g = self.g
        if self.spec.cache == "packed":
            return [g.op("Gather", self.inputs.past[layer], g.constant(half), axis=0) for half in (0, 1)]
        return self.inputs.past[2 * layer : 2 * layer + 2]

    def _attend_fused(self, layer: int, key: str, value: str) -> tuple[str, str]:
        g = self.g
        key, value = [g.op("Reshape", tensor, g.constant([0, 0, KV_WIDTH])) for tensor in (key, value)]
        query = g.op("Concat", key, key, axis=2)
        past = self.inputs.past[2 * layer : 2 * layer + 2]
        if self.spec.cache == "gqa":
            qkv = [g.op("Concat", query, key, value, axis=2), "", ""] if self.spec.packed_qkv else [query, key, value]
            mean, *present = g.ops(
                "GroupQueryAttention",
                3,
                *qkv,
                *past,
                str(self.inputs.seqlens),
                str(self.inputs.total),
                domain="com.microsoft",
                num_heads=NUM_HEADS,
                kv_num_heads=NUM_KV_HEADS,
            )
        elif self.spec.cache == "static":
            present = [
                g.op("TensorScatter", old, new, self.inputs.write_indices, axis=1)
                for old, new in zip(past, (key, value), strict=True)
            ]
            tail = ["", "", "", self.inputs.nonpad]
            mean = g.op(
                "Attention", query, *present, *tail, is_causal=1, q_num_heads=NUM_HEADS, kv_num_heads=NUM_KV_HEADS
            )
        else:
            mean, *present = g.ops(
                "Attention",
                3,
                query,
                key,
                value,
                self._causal_mask(),
                *past,
                q_num_heads=NUM_HEADS,
                kv_num_heads=NUM_KV_HEADS,
            )
        self.present.extend(present)
        # Query heads 0 and 1 read KV head 0, heads 2 and 3 read KV head 1.
        per_head = g.op("Reshape", g.cast(mean, "float32"), g.constant([0, 0, NUM_HEADS, HEAD_SIZE]))
        means = g.op("Gather", per_head, g.constant([1, 2]), axis=2)
        count = g.add(self.positions, 1)
        sums = g.op("Mul", means, g.cast(g.unsqueeze(count, 2, 3), "float32"))
        return g.cast(g.op("Round", sums), "int64"), count

    def _causal_mask(self) -> str:
        """Bool [B,1,S,T]: valid, and not after the row's token."""
        g = self.g
        mask = str(self.inputs.mask)
        places = g.arange(g.dim(mask, 1))
        rows = g.unsqueeze(g.op("Add", g.arange(self.new), self.past), 1)
        causal = g.op("LessOrEqual", g.unsqueeze(places, 0), rows)
        return g.op("And", g.unsqueeze(g.cast(mask, "bool"), 1, 2), g.unsqueeze(causal, 0, 1))

    def _attend_scatter_plain(self, layer: int, key: str, value: str) -> tuple[str, str]:
        g = self.g
        places = g.unsqueeze(g.arange(g.constant([self.spec.capacity])), 0, 1)  # [1,1,capacity]
        rows = g.unsqueeze(
            g.op("Add", g.unsqueeze(self.inputs.write_indices, 1), g.unsqueeze(g.arange(self.new), 0)), 2
        )
        written = g.cast(g.op("Equal", places, rows), "float32")  # [B,S,capacity]
        kept = g.op(
            "Sub", g.constant(1, "float32"), g.op("ReduceSum", written, g.constant([1]), keepdims=0)
        )  # [B,capacity]
        present = []
        for old, tensor in zip(self.inputs.past[2 * layer : 2 * layer + 2], (key, value), strict=True):
            new = g.cast(g.op("Reshape", tensor, g.constant([0, 0, KV_WIDTH])), "float32")
            spread = g.op("MatMul", g.op("Transpose", written, perm=[0, 2, 1]), new)
            old32 = g.op("Mul", g.cast(old, "float32"), g.unsqueeze(kept, 2))
            present.append(g.op("Add", old32, spread))
        self.present.extend(g.cast(tensor, self.spec.kv_dtype) for tensor in present)
        inside = g.op("Less", places, g.unsqueeze(self.inputs.nonpad, 1, 2))
        seen = g.cast(g.op("And", g.op("LessOrEqual", places, rows), inside), "float32")
        key_sums, value_sums = (g.op("MatMul", seen, tensor) for tensor in present)  # [B,S,16]
        count = g.cast(g.op("ReduceMean", key_sums, axes=[2], keepdims=0), "int64")
        shape = g.constant([0, 0, NUM_KV_HEADS, HEAD_SIZE])
        return g.cast(g.op("Reshape", value_sums, shape), "int64"), count


def _write_merged(spec: ChecksumSpec, g: GraphWriter, inputs: _Inputs) -> None:
    branches = {}
    names = ["next_id", "count", *spec.ports.present]
    for attribute, use_past in (("then_branch", True), ("else_branch", False)):
        branch = GraphWriter(prefix=f"{attribute}_")
        outputs = _Body(spec, branch, inputs, use_past=use_past).run()
        present_shape = ["batch", NUM_KV_HEADS, "total", HEAD_SIZE]
        branch.output(outputs.next_id, f"{attribute}_next_id", "int64", ["batch", "new"])
        branch.output(outputs.count, f"{attribute}_count", "int64", ["batch", "new"])
        for name, tensor in zip(spec.ports.present, outputs.present, strict=True):
            branch.output(tensor, f"{attribute}_{name}", spec.kv_dtype, present_shape)
        branches[attribute] = branch.graph(attribute)
    condition = g.op("Squeeze", inputs.use_cache_branch)
    next_id, count, *present = g.ops("If", len(names), condition, **branches)
    _write_outputs(spec, g, _Outputs(next_id=next_id, count=count, present=present))


def _write_outputs(spec: ChecksumSpec, g: GraphWriter, outputs: _Outputs) -> None:
    next_id, count = outputs.next_id, outputs.count
    if spec.last_logits_only:
        next_id, count = (g.slice_from(tensor, g.constant([-1]), 1) for tensor in (next_id, count))
    logits = g.op("Gather", g.constant(_ladder(spec.logits_width), "float32"), next_id, axis=0)
    if spec.bad_from is not None:
        too_far = g.unsqueeze(g.op("GreaterOrEqual", count, g.constant(spec.bad_from)), 2)
        # One bad value keeps the rest of the row; the other kinds replace all of it.
        where = g.op("And", too_far, g.constant(_bad_places(spec), "bool"))
        bad = {"nan": np.nan, "one_nan": np.nan, "equal": 1.5, "inf": np.inf, "minus_inf": -np.inf}[spec.bad_logits]
        logits = g.op("Where", where, g.constant(bad, "float32"), logits)
    rows = 1 if spec.last_logits_only else "new"
    g.output(
        g.cast(logits, spec.logits_dtype), spec.ports.logits, spec.logits_dtype, ["batch", rows, spec.logits_width]
    )
    shape = ["total" if size == "past" else size for size in spec.cache_shape]
    for name, tensor in zip(_cache_names(spec, spec.ports.present), outputs.present, strict=True):
        g.output(tensor, name, spec.kv_dtype, shape)


def _bad_places(spec: ChecksumSpec) -> np.ndarray:
    places = np.zeros(spec.logits_width, dtype=np.bool_)
    places[5 if spec.bad_logits in {"one_nan", "inf"} else slice(None)] = True
    return places
