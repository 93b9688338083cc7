"""Models whose attention is genai.runtime::PagedAttention, as the graph rewrite makes them, for tests below it.

The checksum model computes what `checksum.py` says. The random model is a small decoder in floating point, where every
key and value is different, so that a wrong block, order or scale changes the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models import checksum
from tests.models.checksum import VOCAB_SIZE
from tests.models.nodes import DTYPES, GraphWriter

__all__ = ["PAGED_STYLES", "PagedSpec", "build_paged_checksum", "build_paged_random", "write_paged_models"]

DOMAIN = "genai.runtime"
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
RANDOM_WIDTH = 64
RANDOM_HEAD_SIZE = 16
MAX_POSITIONS = 512

CacheType = Literal["float32", "float16", "bfloat16", "int8"]
_CACHE_TYPES = {**DTYPES, "bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8}


@dataclass(frozen=True, kw_only=True)
class PagedSpec:
    """Which graph to build."""

    cache_dtype: CacheType = "float32"
    logits_dtype: Literal["float32", "float16"] = "float32"
    block_size: int = 16
    picks_rows: bool = True
    """Whether the input logits_indices says which tokens' logits to return, [1,R,V]; else those of all, [1,T,V]."""
    flat: bool = False
    """Ids and positions are [T], logits [R,V]."""
    token_types: bool = False
    """The checksum model has an input token_type_ids that must be zeros of the shape of the ids."""


PAGED_STYLES: Mapping[str, PagedSpec] = {
    "checksum": PagedSpec(),
    "checksum_fp16": PagedSpec(cache_dtype="float16", logits_dtype="float16"),
    "checksum_bf16": PagedSpec(cache_dtype="bfloat16"),
    "checksum_int8": PagedSpec(cache_dtype="int8"),
    "checksum_all_logits": PagedSpec(picks_rows=False, block_size=32),
    "checksum_flat": PagedSpec(flat=True, token_types=True),
    "random": PagedSpec(),
    "random_int8": PagedSpec(cache_dtype="int8"),
}
"""The graphs that `write_paged_models` writes, by a short name."""


def write_paged_models(folder: Path) -> list[Path]:
    """Writes ``paged_<style>/model.onnx`` for every style; returns the folders."""
    folders = []
    for name, spec in PAGED_STYLES.items():
        model = build_paged_random(spec) if name.startswith("random") else build_paged_checksum(spec)
        target = folder / f"paged_{name}"
        target.mkdir(parents=True, exist_ok=True)
        onnx.save_model(model, target / "model.onnx")
        folders.append(target)
    return folders


def build_paged_checksum(spec: PagedSpec) -> onnx.ModelProto:
    """The checksum model over flattened tokens; under 100 KB. Inputs: those of `ModelSpec` of a paged graph."""
    writer = _PagedWriter(spec, checksum.HEAD_SIZE)
    g = writer.g
    ids = writer.ids
    if spec.token_types:
        ids = g.op("Add", ids, g.input("token_type_ids", "int64", writer.token_shape))
    positions = g.input("position_ids", "int64", writer.token_shape)
    first = _checksum_layer(writer, 0, positions, ids, ((1, 1), (2, 3)))
    second = _checksum_layer(writer, 1, positions, first, ((3, 1), (1, 5)))
    terms = g.op("Add", first, g.op("Mul", second, g.constant(3)))
    counts = g.op("Mul", g.add(positions, 1), g.constant(11))
    next_id = writer.pick_rows(g.op("Mod", g.op("Add", terms, counts), g.constant(VOCAB_SIZE)))
    ladder = -checksum.LADDER_STEP * ((np.arange(VOCAB_SIZE)[None, :] - np.arange(VOCAB_SIZE)[:, None]) % VOCAB_SIZE)
    logits = g.op("Gather", g.constant(ladder, "float32"), next_id, axis=0)
    return writer.model(logits, VOCAB_SIZE)


def _checksum_layer(
    writer: _PagedWriter, layer: int, positions: str, numbers: str, weights: tuple[tuple[int, int], tuple[int, int]]
) -> str:
    """One layer over int64 `numbers`, one a token; returns its folded sums."""
    g = writer.g
    heads = [
        g.op("Mod", g.op("Mul", g.add(positions, position), g.add(numbers, number)), g.constant(VOCAB_SIZE))
        for position, number in weights
    ]
    kept = g.op("Concat", *[g.op("Unsqueeze", head, g.constant([-1])) for head in heads], axis=-1)
    powers = g.constant([1 << bit for bit in range(checksum.HEAD_SIZE)])
    bits = g.op("Mod", g.op("Div", g.op("Unsqueeze", kept, g.constant([-1])), powers), g.constant(2))
    value = g.op("Reshape", g.cast(bits, "float32"), g.constant([*writer.zeros, NUM_KV_HEADS * checksum.HEAD_SIZE]))
    key = g.op("Add", g.op("Mul", value, g.constant(0, "float32")), g.constant(1, "float32"))
    mean = writer.attend(layer, g.op("Concat", key, key, axis=-1), key, value)
    # Query heads 0 and 1 read KV head 0, heads 2 and 3 read KV head 1.
    per_head = g.op("Reshape", mean, g.constant([*writer.zeros, NUM_HEADS, checksum.HEAD_SIZE]))
    means = g.op("Gather", per_head, g.constant([1, 2]), axis=-2)
    count = g.op("Unsqueeze", g.cast(g.add(positions, 1), "float32"), g.constant([-1, -2]))
    bit_sums = g.cast(g.op("Round", g.op("Mul", means, count)), "int64")
    sums = g.op("ReduceSum", g.op("Mul", bit_sums, powers), g.constant([-1]), keepdims=0)
    total = g.op("ReduceSum", g.op("Mul", sums, g.constant([1, 2])), g.constant([-1]), keepdims=0)
    return g.op("Mod", total, g.constant(VOCAB_SIZE))


def build_paged_random(spec: PagedSpec, *, seed: int = 7) -> onnx.ModelProto:
    """A decoder with rotary positions and random weights; under 200 KB."""
    random = np.random.default_rng(seed)
    writer = _PagedWriter(spec, RANDOM_HEAD_SIZE)
    g = writer.g

    def weight(*shape: int) -> str:
        return g.constant(random.normal(0, 1.5 / np.sqrt(shape[0]), shape), "float32")

    angles = np.arange(MAX_POSITIONS)[:, None] / 100.0 ** (np.arange(RANDOM_HEAD_SIZE // 2) / (RANDOM_HEAD_SIZE // 2))
    rotary = (g.constant(np.cos(angles), "float32"), g.constant(np.sin(angles), "float32"))
    embedding = g.constant(random.normal(0, 1, (VOCAB_SIZE, RANDOM_WIDTH)), "float32")
    hidden = g.op("Gather", embedding, writer.ids, axis=0)
    for layer in range(NUM_LAYERS):
        query = g.op("MatMul", hidden, weight(RANDOM_WIDTH, NUM_HEADS * RANDOM_HEAD_SIZE))
        key = g.op("MatMul", hidden, weight(RANDOM_WIDTH, NUM_KV_HEADS * RANDOM_HEAD_SIZE))
        value = g.op("MatMul", hidden, weight(RANDOM_WIDTH, NUM_KV_HEADS * RANDOM_HEAD_SIZE))
        attended = writer.attend(layer, query, key, value, rotary)
        hidden = g.op("Add", hidden, g.op("MatMul", attended, weight(NUM_HEADS * RANDOM_HEAD_SIZE, RANDOM_WIDTH)))
    return writer.model(g.op("MatMul", writer.pick_rows(hidden), weight(RANDOM_WIDTH, VOCAB_SIZE)), VOCAB_SIZE)


class _PagedWriter:
    """The parts that both models have: inputs of the step, caches, the operator, the picked rows."""

    def __init__(self, spec: PagedSpec, head_size: int) -> None:
        self.spec = spec
        self.head_size = head_size
        self.g = GraphWriter()
        self.token_shape: list[int | str] = ["tokens"] if spec.flat else [1, "tokens"]
        self.zeros = [0] * len(self.token_shape)
        self.ids = self.g.input("input_ids", "int64", self.token_shape)
        self.lengths = [
            self.g.input("cumulative_sequence_length", "int32", ["sequences_plus_1"]),
            self.g.input("past_seqlens", "int32", ["sequences"]),
            self.g.input("block_table", "int32", ["sequences", "max_blocks"]),
        ]
        self.caches: list[onnx.ValueInfoProto] = []

    def attend(self, layer: int, query: str, key: str, value: str, rotary: tuple[str, str] = ("", "")) -> str:
        block = self.spec.block_size
        caches = [
            self._cache(f"key_cache.{layer}", self.spec.cache_dtype, [self.head_size, block]),
            self._cache(f"value_cache.{layer}", self.spec.cache_dtype, [block, self.head_size]),
        ]
        inputs = [query, key, value, *caches, *self.lengths, *rotary]
        if self.spec.cache_dtype == "int8":
            scales = [self._cache(f"{kind}_scale.{layer}", "float32", [block]) for kind in ("key", "value")]
            inputs += ["", "", "", "", *scales]
        return self.g.op(
            "PagedAttention",
            *inputs,
            domain=DOMAIN,
            num_heads=NUM_HEADS,
            kv_num_heads=NUM_KV_HEADS,
            do_rotary=int(bool(rotary[0])),
        )

    def _cache(self, name: str, dtype: str, sizes: list[int]) -> str:
        shape: list[int | str] = ["num_blocks", NUM_KV_HEADS, *sizes]
        self.caches.append(helper.make_tensor_value_info(name, _CACHE_TYPES[dtype], shape))
        return name

    def pick_rows(self, tensor: str) -> str:
        if not self.spec.picks_rows:
            return tensor
        rows = self.g.input("logits_indices", "int64", ["rows"])
        return self.g.op("Gather", tensor, rows, axis=0 if self.spec.flat else 1)

    def model(self, logits: str, vocab_size: int) -> onnx.ModelProto:
        rows = "rows" if self.spec.picks_rows else "tokens"
        shape = [*self.token_shape[:-1], rows, vocab_size]
        self.g.output(self.g.cast(logits, self.spec.logits_dtype), "logits", self.spec.logits_dtype, shape)
        graph = self.g.graph("paged")
        graph.input.extend(self.caches)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        return model
