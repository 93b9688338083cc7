"""Runs an imported package with plain onnxruntime."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

Array = npt.NDArray[Any]


class Decoder:
    """A package's graph with a growing cache, batch 1."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.past = {value.name: value for value in self.session.get_inputs() if value.name.startswith("past")}
        self.reset()

    def reset(self) -> None:
        self.length = 0
        self.cache: dict[str, Array] = {}
        for name, value in self.past.items():
            dtype = np.float16 if value.type == "tensor(float16)" else np.float32
            self.cache[name] = np.zeros((1, value.shape[1], 0, value.shape[3]), dtype)

    def step(self, ids: list[int]) -> Array:
        """Logits ``[len(ids), vocab]`` of new tokens."""
        self.length += len(ids)
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self.length), np.int64),
            **self.cache,
        }
        names = [value.name for value in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, feeds), strict=True))
        self.cache = {name: found[name.replace("past_key_values", "present")] for name in self.cache}
        logits: Array = found["logits"][0]
        return logits

    def logits(self, ids: list[int], steps: list[int]) -> Array:
        """Logits of the whole sequence, fed in pieces of these sizes."""
        self.reset()
        ends = list(itertools.accumulate(steps))
        assert ends[-1] == len(ids)
        pieces = [self.step(ids[end - size : end]) for size, end in zip(steps, ends, strict=True)]
        return np.concatenate(pieces)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """``count`` greedy tokens after the prompt; end tokens do not stop it."""
        self.reset()
        out = [int(self.step(ids)[-1].argmax())]
        while len(out) < count:
            out.append(int(self.step(out[-1:])[-1].argmax()))
        return out
