"""A graph that drops KV which its window does not reach any more, as exports with sliding-window attention do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.models.nodes import GraphWriter

__all__ = ["WINDOW", "build_window", "window_next", "write_window_model"]

VOCAB_SIZE = 97
WINDOW = 4
"""Tokens that decide about the next one."""


def window_next(token_ids: list[int]) -> int:
    """The id that follows `token_ids`."""
    return (sum(token_ids[-WINDOW:]) + 1) % VOCAB_SIZE


def build_window() -> onnx.ModelProto:
    """Keys are the ids themselves, [batch, 1, past, 1]; the present has at most WINDOW - 1 of them."""
    g = GraphWriter()
    ids = g.input("input_ids", "int64", ["batch", "new"])
    past = g.input("past_key_values.0.key", "float32", ["batch", 1, "past", 1])
    whole = g.op("Concat", past, g.cast(g.unsqueeze(ids, 1, 3), "float32"), axis=2)
    sums = g.op("CumSum", whole, g.constant(2))
    earlier = g.op("Pad", sums, g.constant([0, 0, WINDOW, 0, 0, 0, 0, 0]))
    earlier = g.op("Slice", earlier, g.constant([0]), g.constant([-WINDOW]), g.constant([2]))
    seen = g.slice_from(g.op("Sub", sums, earlier), g.op("Neg", g.dim(ids, 1)), 2)
    terms = g.cast(g.op("Squeeze", seen, g.constant([1, 3])), "int64")
    next_id = g.op("Mod", g.add(terms, 1), g.constant(VOCAB_SIZE))
    logits = g.op("Gather", g.constant(np.eye(VOCAB_SIZE), "float32"), next_id, axis=0)
    g.output(logits, "logits", "float32", ["batch", "new", VOCAB_SIZE])
    kept = g.slice_from(whole, g.constant([1 - WINDOW]), 2)
    g.output(kept, "present.0.key", "float32", ["batch", 1, "kept", 1])
    return g.model("window", 17)


def write_window_model(folder: Path) -> Path:
    """Writes ``model.onnx``; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save_model(build_window(), folder / "model.onnx")
    return folder
