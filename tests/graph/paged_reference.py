"""PagedAttention in NumPy, and a driver that runs a paged graph step by step: an independent check of the rewrite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx.external_data_helper import load_external_data_for_model
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnx_genai.graph import CacheStyle, DType, GraphContract, InputPort
from onnx_genai.graph.index import attributes_of

__all__ = ["PagedAttention", "PagedDriver", "Runner", "full_logits", "ort_runner", "reference_runner"]

Runner = Callable[[list[str], dict[str, np.ndarray]], list[np.ndarray]]


class PagedAttention(OpRun):
    """docs/design/paged.md, one query at a time in float64. Writes the caches in place."""

    op_domain = "genai.runtime"

    def _run(self, query: np.ndarray, *rest: Any, **_: Any) -> tuple[np.ndarray]:
        inputs = [query, *rest, *[None] * (17 - 1 - len(rest))]
        return (attend(inputs, attributes_of(self.onnx_node)),)


def attend(inputs: Sequence[Any], given: Mapping[str, Any]) -> np.ndarray:
    query, key, value, key_cache, value_cache, starts, pasts, table = inputs[:8]
    cos, sin, _, sink, q_norm, k_norm, k_scale, v_scale, _ = inputs[8:17]
    heads, kv_heads = given["num_heads"], given["kv_num_heads"]
    head_dim, block_size, value_dim = key_cache.shape[2], key_cache.shape[3], value_cache.shape[3]
    rows = query.reshape(-1, query.shape[-1]).astype(np.float64)
    if key is None:
        at = [heads * head_dim, (heads + kv_heads) * head_dim]
        q, k, v = np.split(rows, at, axis=1)
    else:
        q, k, v = rows, *(part.reshape(len(rows), -1).astype(np.float64) for part in (key, value))
    q, k, v = (part.reshape(len(rows), -1, size) for part, size in ((q, head_dim), (k, head_dim), (v, value_dim)))
    epsilon = given.get("qk_norm_epsilon", 1e-6)
    q, k = _normed(q, q_norm, epsilon), _normed(k, k_norm, epsilon)
    result = np.zeros((len(rows), heads, value_dim))
    scale = given.get("scale", 0.0) or 1 / math.sqrt(head_dim)
    for sequence, past in enumerate(pasts):
        for place, row in enumerate(range(starts[sequence], starts[sequence + 1])):
            position = int(past) + place
            query_heads, key_heads = q[row], k[row]
            if given.get("do_rotary", 0):
                interleaved = bool(given.get("rotary_interleaved", 0))
                query_heads = _turned(query_heads, cos[position], sin[position], interleaved)
                key_heads = _turned(key_heads, cos[position], sin[position], interleaved)
            block, offset = table[sequence, position // block_size], position % block_size
            assert block >= 0
            _store(key_cache[block, :, :, offset], k_scale, (block, slice(None), offset), key_heads)
            _store(value_cache[block, :, offset, :], v_scale, (block, slice(None), offset), v[row])
            blocks = [table[sequence, p // block_size] for p in range(position + 1)]
            places = [p % block_size for p in range(position + 1)]
            keys = key_cache[blocks, :, :, places].astype(np.float64)  # [positions, kv_heads, head_dim]
            values = value_cache[blocks, :, places, :].astype(np.float64)
            if k_scale is not None:
                keys *= k_scale[blocks, :, places][:, :, None]
                values *= v_scale[blocks, :, places][:, :, None]
            for head in range(heads):
                kv_head = head * kv_heads // heads
                scores = keys[:, kv_head] @ query_heads[head] * scale
                weights = _weights(scores, given, None if sink is None else float(sink[head]))
                result[row, head] = weights @ values[:, kv_head]
    return result.reshape(*query.shape[:-1], heads * value_dim).astype(query.dtype)


def _weights(scores: np.ndarray, given: Mapping[str, Any], sink: float | None) -> np.ndarray:
    if given.get("softcap", 0.0):
        scores = given["softcap"] * np.tanh(scores / given["softcap"])
    window = given.get("local_window_size", -1)
    if window > 0:
        scores = np.where(np.arange(len(scores)) > len(scores) - 1 - window, scores, -np.inf)
    beside = [0.0] if given.get("smooth_softmax", 0) and sink is None else [] if sink is None else [sink]
    top = max([scores.max(), *beside])
    powers = np.exp(scores - top)
    weights: np.ndarray = powers / (powers.sum() + sum(math.exp(item - top) for item in beside))
    return weights


def _normed(heads: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    if weight is None:
        return heads
    normed: np.ndarray = heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + epsilon) * weight
    return normed


def _turned(heads: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Rotary positions; heads [n, width], tables [width of the turned part / 2]."""
    half = len(cos)
    part, rest = heads[:, : 2 * half], heads[:, 2 * half :]
    a, b = (part[:, ::2], part[:, 1::2]) if interleaved else (part[:, :half], part[:, half:])
    pair = (a * cos - b * sin, b * cos + a * sin)
    turned = np.stack(pair, axis=2).reshape(part.shape) if interleaved else np.concatenate(pair, axis=1)
    return np.concatenate([turned, rest], axis=1)


def _store(target: np.ndarray, scales: np.ndarray | None, at: tuple[Any, ...], heads: np.ndarray) -> None:
    if scales is None:
        target[...] = heads
        return
    scale = np.maximum(np.abs(heads).max(axis=1), 1e-30) / 127
    scales[at] = scale
    target[...] = np.rint(heads / scale[:, None])


def reference_runner(contract: GraphContract) -> Runner:
    """Runs a small graph with onnx's reference implementation."""
    model = onnx.load_from_string(contract.model_bytes)
    load_external_data_for_model(model, str(contract.external_folder))
    session = ReferenceEvaluator(model, new_ops=[PagedAttention])
    return lambda names, feeds: [np.asarray(output) for output in session.run(names, feeds)]


def ort_runner(contract: GraphContract, library: Path) -> Runner:
    """Runs a graph with onnxruntime and the library that holds our operators."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(library))
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(contract.external_folder))
    session = ort.InferenceSession(contract.model_bytes, options, providers=["CPUExecutionProvider"])

    def run(names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        binding = session.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        found = [output.numpy().copy() for output in binding.get_outputs()]
        for name, value in values.items():  # the operator writes into its inputs
            feeds[name][...] = value.numpy()
        return found

    return run


def full_logits(contract: GraphContract, tokens: Sequence[int]) -> np.ndarray:
    """Logits of all tokens of one sequence, [tokens, vocab], by the graph as it is in one run."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(contract.model_path), options, providers=["CPUExecutionProvider"])
    count = len(tokens)
    feeds = {contract.input_ids.name: np.array([tokens], contract.input_ids.dtype.value)}

    def give(port: InputPort | None, array: np.ndarray) -> None:
        if port is not None:
            feeds[port.name] = array.reshape((1,) * (port.rank - array.ndim) + array.shape).astype(port.dtype.value)

    give(contract.attention_mask, np.ones(count))
    give(contract.position_ids, np.arange(count))
    give(contract.cache_position, np.arange(count))
    give(contract.seqlens_k, np.array(count - 1))
    give(contract.total_sequence_length, np.array(count))
    give(contract.past_sequence_length, np.array(0))
    give(contract.write_indices, np.array([0]))
    give(contract.nonpad_kv_seqlen, np.array([count]))
    for constant in contract.constants:
        shape = (1, count) if constant.shape == "like_ids" else constant.dims
        feeds[constant.port.name] = np.full(shape, constant.value, constant.port.dtype.value)
    for pair in contract.kv:
        dims = list(pair.dims)
        dims[pair.batch_axis] = 1
        if dims[pair.sequence_axis] < 0:
            dims[pair.sequence_axis] = 2 * count if contract.cache is CacheStyle.SLOT_STATIC else 0
        feeds[pair.past] = np.zeros(dims, pair.dtype.value)
    logits: np.ndarray = session.run([contract.logits], feeds)[0][0]
    return logits.astype(np.float32)


_NUMPY = {DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


class PagedDriver:
    """Sequences in blocks of a paged graph. Blocks are handed out in a mixed order.

    Args:
        contract: Of a paged graph.
        runner: What runs it.
        num_blocks, block_size: Room for KV; unwritten places hold NaN, or -128 with int8.
    """

    def __init__(self, contract: GraphContract, runner: Runner, *, num_blocks: int = 64, block_size: int = 4) -> None:
        self.contract = contract
        self.runner = runner
        self.block_size = block_size
        self.free = np.random.default_rng(5).permutation(num_blocks).tolist()
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.caches: dict[str, np.ndarray] = {}
        for layer in contract.paged_layers:
            dtype = _NUMPY.get(layer.dtype) or np.dtype(layer.dtype.value)
            empty = -128 if layer.dtype is DType.INT8 else np.nan
            shape = (num_blocks, layer.kv_heads)
            self.caches[layer.key_cache] = np.full((*shape, layer.head_dim, block_size), empty, dtype)
            self.caches[layer.value_cache] = np.full((*shape, block_size, layer.value_dim), empty, dtype)
            for name in (layer.key_scale, layer.value_scale):
                if name:
                    self.caches[name] = np.full((*shape, block_size), np.nan, np.float32)

    def step(self, work: Mapping[int, Sequence[int]]) -> dict[int, np.ndarray]:
        """Runs new tokens of some sequences together; the logits after the last token of each, [vocab]."""
        ids: list[int] = []
        positions: list[int] = []
        starts = [0]
        pasts = [self.lengths.get(sequence, 0) for sequence in work]
        for (sequence, tokens), past in zip(work.items(), pasts, strict=True):
            ids.extend(tokens)
            positions.extend(range(past, past + len(tokens)))
            starts.append(len(ids))
            table = self.tables.setdefault(sequence, [])
            self.lengths[sequence] = past + len(tokens)
            while len(table) * self.block_size < self.lengths[sequence]:
                table.append(self.free.pop())
        tables = np.full((len(work), max(len(self.tables[s]) for s in work) + 1), -1, np.int32)
        for row, sequence in enumerate(work):
            tables[row, : len(self.tables[sequence])] = self.tables[sequence]
        contract = self.contract
        assert contract.cumulative_sequence_length is not None
        assert contract.past_seqlens is not None
        assert contract.block_table is not None
        feeds: dict[str, np.ndarray] = {
            contract.input_ids.name: np.array([ids], np.int64),
            contract.cumulative_sequence_length.name: np.array(starts, np.int32),
            contract.past_seqlens.name: np.array(pasts, np.int32),
            contract.block_table.name: tables,
            **self.caches,
        }
        if contract.position_ids is not None:
            feeds[contract.position_ids.name] = np.array([positions], np.int64)
        for constant in contract.constants:
            feeds[constant.port.name] = np.full((1, len(ids)), constant.value, constant.port.dtype.value)
        last = [end - 1 for end in starts[1:]]
        if contract.logits_indices is not None:
            feeds[contract.logits_indices.name] = np.array(last, np.int64)
        (logits,) = self.runner([contract.logits], feeds)
        rows = range(len(last)) if contract.logits_indices is not None else last
        return {sequence: logits[0, row].astype(np.float32) for sequence, row in zip(work, rows, strict=True)}
