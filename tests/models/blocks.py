"""A decoder that was exported with KV in blocks of its own, written in plain operators.

The next token is made from every position of the sequence, read through the block table:

    next = (sum over positions p of (p+1)(t_p+1) + 7 length) mod V

Keys keep t+1, values p+1. A wrong block, slot, head or position changes the answer; all numbers are small and whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from tests.models.nodes import GraphWriter
from tests.models.texts import word_level_tokenizer

__all__ = ["BLOCK_VOCAB", "BlockGraph", "block_generate", "write_block_package"]

BLOCK_VOCAB = 61
_HEADS, _WIDTH = 2, 3
_CONTEXT = 200


@dataclass(frozen=True, kw_only=True)
class BlockGraph:
    """How the graph is exported."""

    num_blocks: int | None = 64
    """None leaves it open."""
    block_size: int | None = 4
    """None leaves it open: any multiple of 4 is right."""
    logits: Literal["rows", "tokens", "picked"] = "rows"
    """Of each sequence's last token, of all tokens, or of those of the input ``logits_indices``."""
    dtype: Literal["float32", "float16"] = "float32"
    """Of the logits."""
    positions: bool = False
    """Takes ``position_ids``, and believes them."""
    checks_metadata: bool = False
    """Answers wrongly if ``attention_metadata`` is not the most new tokens and the most positions."""


def block_generate(prompt: Sequence[int], count: int) -> list[int]:
    """The `count` ids after `prompt`; the oracle."""
    ids = list(prompt)
    for _ in range(count):
        total = sum((place + 1) * (token + 1) for place, token in enumerate(ids))
        ids.append((total + 7 * len(ids)) % BLOCK_VOCAB)
    return ids[len(prompt) :]


def write_block_package(folder: Path, graph: BlockGraph, *, eos: int = BLOCK_VOCAB + 1) -> Path:
    """A package with genai_config.json and a tokenizer; returns `folder`. Without `eos` nothing ends."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_build(graph), folder / "decoder.onnx")
    word_level_tokenizer(BLOCK_VOCAB).save(str(folder / "tokenizer.json"))
    model = {
        "type": "decoder",
        "vocab_size": BLOCK_VOCAB,
        "context_length": _CONTEXT,
        "eos_token_id": eos,
        "pad_token_id": 0,
        "decoder": {
            "filename": "decoder.onnx",
            "inputs": {"input_ids": "input_ids", "block_table": "block_table"},
            "outputs": {"logits": "logits"},
        },
    }
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": {}}), encoding="utf-8")
    return folder


def _build(graph: BlockGraph) -> onnx.ModelProto:
    g = GraphWriter()
    ids = g.input("input_ids", "int64", ["num_tokens"])
    starts = g.cast(g.input("cumulative_sequence_lengths", "int32", ["batch_plus_1"]), "int64")
    past = g.cast(g.input("past_sequence_lengths", "int32", ["batch"]), "int64")
    table = g.cast(g.input("block_table", "int32", ["batch", "columns"]), "int64")
    metadata = g.cast(g.input("attention_metadata", "int32", [3]), "int64")
    shape = [graph.num_blocks or "blocks", graph.block_size or "block_size", _HEADS, _WIDTH]
    caches = [g.input(f"past_key_values.0.{part}", "float32", shape) for part in ("key", "value")]
    block = g.dim(caches[0], 1)

    # Row and position of each token.
    index = g.arange(g.dim(ids, 0))
    ends = g.slice_from(starts, g.constant([1]), 0)
    behind = g.cast(g.op("GreaterOrEqual", g.unsqueeze(index, 1), g.unsqueeze(ends, 0)), "int64")
    row = g.op("ReduceSum", behind, g.constant([1]), keepdims=0)
    place = g.op("Sub", index, g.op("Gather", starts, row))
    position = g.op("Add", place, g.op("Gather", past, row))
    if graph.positions:
        position = g.input("position_ids", "int64", ["num_tokens"])

    # Writes t+1 and p+1 to the slots.
    column = g.op("Div", position, block)
    slot = g.op("Sub", position, g.op("Mul", column, block))
    where = g.op("Concat", g.unsqueeze(row, 1), g.unsqueeze(column, 1), axis=1)
    physical = g.op("Add", g.op("Mul", g.op("GatherND", table, where), block), slot)
    written = []
    for cache, number in zip(caches, (ids, position), strict=True):
        flat = g.op("Reshape", cache, g.constant([-1, _HEADS * _WIDTH]))
        values = g.unsqueeze(g.cast(g.add(number, 1), "float32"), 1)
        ones = g.constant(np.ones((1, _HEADS * _WIDTH)), "float32")
        written.append(g.op("ScatterND", flat, g.unsqueeze(physical, 1), g.op("Mul", values, ones)))

    # Reads all slots of each row through its table.
    blocks = g.op("Max", table, g.constant(0))
    slots = g.op("Add", g.unsqueeze(g.op("Mul", blocks, block), 2), g.arange(block))
    slots = g.op("Reshape", slots, g.op("Concat", g.dim(table, 0), g.constant([-1]), axis=0))
    key, value = (
        g.op("Gather", g.op("Gather", flat, slots, axis=0), g.constant(element), axis=2)
        for flat, element in zip(written, (4, 1), strict=True)
    )
    products = g.op("Gather", g.op("Mul", key, value), row, axis=0)
    held = g.cast(g.op("LessOrEqual", g.arange(g.dim(slots, 1)), g.unsqueeze(position, 1)), "float32")
    total = g.cast(g.op("ReduceSum", g.op("Mul", products, held), g.constant([1]), keepdims=0), "int64")
    length = g.add(position, 1)
    following = g.op("Add", total, g.op("Mul", length, g.constant(7)))
    if graph.checks_metadata:
        following = g.op("Add", following, _metadata_error(g, metadata, starts, past))
    following = g.op("Mod", following, g.constant(BLOCK_VOCAB))
    if graph.logits == "rows":
        following = g.op("Gather", following, g.op("Sub", ends, g.constant(1)))
    elif graph.logits == "picked":
        following = g.op("Gather", following, g.input("logits_indices", "int64", ["num_rows"]))
    hits = g.op("Equal", g.unsqueeze(following, 1), g.constant(np.arange(BLOCK_VOCAB)[None]))
    rows = {"rows": "batch_size", "tokens": "num_tokens", "picked": "num_rows"}[graph.logits]
    g.output(g.cast(hits, graph.dtype), "logits", graph.dtype, [rows, BLOCK_VOCAB])
    for cache, flat, part in zip(caches, written, ("key", "value"), strict=True):
        g.output(g.op("Reshape", flat, g.op("Shape", cache)), f"present.0.{part}", "float32", shape)
    return g.model("blocks", 17)


def _metadata_error(g: GraphWriter, metadata: str, starts: str, past: str) -> str:
    """How far the three numbers are from what they say, as int64 [1]."""
    ends = g.slice_from(starts, g.constant([1]), 0)
    begins = g.op("Slice", starts, g.constant([0]), g.constant([-1]), g.constant([0]))
    new = g.op("Sub", ends, begins)
    most_new = g.op("ReduceMax", new, keepdims=1)
    most = g.op("ReduceMax", g.op("Add", past, new), keepdims=1)
    wanted = g.op("Concat", most_new, most, most, axis=0)
    return g.op("ReduceSum", g.op("Abs", g.op("Sub", metadata, wanted)), g.constant([0]), keepdims=1)
