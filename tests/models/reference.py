"""Greedy loops over a checksum model with plain onnxruntime: the shortest code that is right, and no speed at all.

It proves the models without the engine under test. Each class holds a batch of sequences: `prefill`, then `decode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnxruntime as ort

from tests.models.checksum import HEAD_SIZE, KV_WIDTH, NUM_KV_HEADS, ChecksumSpec, build_checksum

__all__ = ["BufferDecoder", "ConcatDecoder", "Decoder", "greedy", "make_decoder", "open_session", "why_not_runnable"]


class Decoder(Protocol):
    def prefill(self, prompts: Sequence[Sequence[int]], chunk: int | None = None) -> np.ndarray:
        """Runs prompts from empty, `chunk` tokens a step; float32 [B, width] logits after the last token of each."""

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        """Runs one token a sequence; float32 [B, width]."""


def open_session(spec: ChecksumSpec) -> ort.InferenceSession:
    """A session for `spec`; raises what onnxruntime raises when this version lacks an operator."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # TensorScatter warns when it is not run in place
    return ort.InferenceSession(build_checksum(spec).SerializeToString(), options, providers=["CPUExecutionProvider"])


def why_not_runnable(spec: ChecksumSpec) -> str | None:
    """The reason if the installed onnxruntime is too old for the operators of `spec`, else None."""
    if spec.opset <= 17:
        return None
    try:
        open_session(spec)
    except (ort.capi.onnxruntime_pybind11_state.NotImplemented, ort.capi.onnxruntime_pybind11_state.Fail) as error:
        return f"onnxruntime {ort.__version__} cannot run opset {spec.opset}: {error}"
    return None


def make_decoder(spec: ChecksumSpec, session: ort.InferenceSession) -> Decoder:
    if spec.cache == "gqa" or spec.is_static:
        return BufferDecoder(spec, session)
    return ConcatDecoder(spec, session)


def greedy(
    decoder: Decoder, prompts: Sequence[Sequence[int]], num_tokens: int, chunk: int | None = None
) -> list[list[int]]:
    """`num_tokens` ids for each prompt."""
    logits = decoder.prefill(prompts, chunk)
    steps = [logits.argmax(axis=1)]
    while len(steps) < num_tokens:
        steps.append(decoder.decode(steps[-1].tolist()).argmax(axis=1))
    return np.stack(steps, axis=1).tolist()


class ConcatDecoder:
    """For graphs whose present is a new, longer tensor. Prompts of different length are padded on the left."""

    def __init__(self, spec: ChecksumSpec, session: ort.InferenceSession) -> None:
        self.spec = spec
        self.session = session
        self.mask = np.zeros((0, 0), dtype=spec.int_dtype)
        self.past: list[np.ndarray] = []

    def prefill(self, prompts: Sequence[Sequence[int]], chunk: int | None = None) -> np.ndarray:
        width = max(len(prompt) for prompt in prompts)
        if self.spec.lengths == "none" and min(len(prompt) for prompt in prompts) < width:
            raise ValueError("prompts of different length need a mask")
        ids = np.array([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], dtype=self.spec.int_dtype)
        valid = np.array([[0] * (width - len(p)) + [1] * len(p) for p in prompts], dtype=self.spec.int_dtype)
        shape = [{"batch": len(prompts), "past": 0}.get(size, size) for size in self.spec.cache_shape]
        names = self.spec.ports.past[:: 2 if self.spec.cache == "packed" else 1]
        self.past = [np.zeros(shape, dtype=self.spec.kv_dtype) for _ in names]
        self.mask = np.zeros((len(prompts), 0), dtype=self.spec.int_dtype)
        logits = np.empty((0, 0), dtype=np.float32)
        for start in range(0, width, chunk or width):
            part = slice(start, start + (chunk or width))
            logits = self._step(ids[:, part], valid[:, part])
        return logits

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        column = np.array(ids, dtype=self.spec.int_dtype)[:, None]
        return self._step(column, np.ones_like(column))

    def _step(self, ids: np.ndarray, valid: np.ndarray) -> np.ndarray:
        ports = self.spec.ports
        first = self.mask.shape[1] == 0
        self.mask = np.concatenate([self.mask, valid], axis=1)
        packed = self.spec.cache == "packed"
        feeds = dict(zip(ports.past[:: 2 if packed else 1], self.past, strict=True))
        feeds[ports.input_ids] = ids
        if self.spec.lengths == "mask":
            feeds[ports.attention_mask] = self.mask
        if self.spec.positions:
            places = np.maximum(self.mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
            feeds[ports.position_ids] = places.astype(self.spec.int_dtype)
        if self.spec.cache == "merged":
            feeds["use_cache_branch"] = np.array([not first])
        logits, *self.past = self.session.run([ports.logits, *ports.present[:: 2 if packed else 1]], feeds)
        return logits[:, -1].astype(np.float32)


class BufferDecoder:
    """For graphs that write into a buffer of fixed capacity: GroupQueryAttention and static caches.

    Each prompt runs alone in its own row; decode steps run all rows, each with a length of its own.

    Args:
        in_place: Past and present are the same memory (GroupQueryAttention needs it to keep the capacity).
    """

    def __init__(self, spec: ChecksumSpec, session: ort.InferenceSession, *, in_place: bool = True) -> None:
        self.spec = spec
        self.session = session
        self.in_place = in_place
        self.lengths: list[int] = []
        self.buffers: list[np.ndarray] = []

    def prefill(self, prompts: Sequence[Sequence[int]], chunk: int | None = None) -> np.ndarray:
        rows = []
        caches = []
        for prompt in prompts:
            buffers = self._empty_buffers()
            logits = np.empty((1, 0), dtype=np.float32)
            size = chunk or len(prompt)
            for start in range(0, len(prompt), size):
                logits, buffers = self._step([prompt[start : start + size]], [start], buffers)
            rows.append(logits)
            caches.append(buffers)
        self.lengths = [len(prompt) for prompt in prompts]
        self.buffers = [np.concatenate(layer) for layer in zip(*caches, strict=True)]
        return np.concatenate(rows)

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        logits, self.buffers = self._step([[token] for token in ids], self.lengths, self.buffers)
        self.lengths = [length + 1 for length in self.lengths]
        return logits

    def _empty_buffers(self) -> list[np.ndarray]:
        capacity = self.spec.capacity
        shape = (1, capacity, KV_WIDTH) if self.spec.is_static else (1, NUM_KV_HEADS, capacity, HEAD_SIZE)
        return [np.zeros(shape, dtype=self.spec.kv_dtype) for _ in self.spec.ports.past]

    def _step(
        self, tokens: Sequence[Sequence[int]], computed: Sequence[int], buffers: list[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        spec, ports = self.spec, self.spec.ports
        ids = np.array(tokens, dtype=spec.int_dtype)
        starts = np.array(computed)
        ends = starts + ids.shape[1]
        feeds: dict[str, np.ndarray] = {ports.input_ids: ids}
        if spec.positions:
            feeds[ports.position_ids] = (starts[:, None] + np.arange(ids.shape[1])).astype(spec.int_dtype)
        if spec.is_static:
            feeds["write_indices"] = starts
            feeds["nonpad_kv_seqlen"] = ends
        elif spec.lengths == "seqlens":
            feeds["seqlens_k"] = (ends - 1).astype(np.int32)
            feeds["total_sequence_length"] = np.array(ends.max(), dtype=np.int32)
        else:
            feeds[ports.attention_mask] = (np.arange(ends.max()) < ends[:, None]).astype(spec.int_dtype)
        if not self.in_place:
            logits, *present = self.session.run(
                [ports.logits, *ports.present], feeds | dict(zip(ports.past, buffers, strict=True))
            )
            return logits[:, -1].astype(np.float32), present
        binding = self.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        shared = [ort.OrtValue.ortvalue_from_numpy(buffer) for buffer in buffers]
        for past, present, value in zip(ports.past, ports.present, shared, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        binding.bind_output(ports.logits)
        self.session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1].numpy().copy()
        # Copies: a view dies with its OrtValue.
        return logits[:, -1].astype(np.float32), [value.numpy().copy() for value in shared]
