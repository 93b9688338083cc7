"""One PagedAttention node in plain onnxruntime: its model, its KV blocks, and a call."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper

__all__ = ["DOMAIN", "Blocks", "Case", "Node", "Sequence", "library_path", "make_case", "make_session"]

DOMAIN = "genai.runtime"
Array = npt.NDArray[Any]

_TYPES: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
}
INPUTS = [
    "query",
    "key",
    "value",
    "key_cache",
    "value_cache",
    "cumulative_sequence_length",
    "past_seqlens",
    "block_table",
    "cos_cache",
    "sin_cache",
    "slot_mapping",
    "head_sink",
    "q_norm_weight",
    "k_norm_weight",
    "k_scale",
    "v_scale",
    "attention_metadata",
    "prompt_rows",
]
_INDEX_INPUTS = {
    "cumulative_sequence_length",
    "past_seqlens",
    "block_table",
    "slot_mapping",
    "attention_metadata",
    "prompt_rows",
}


def library_path() -> str:
    """The compiled core, or another library with the operators that ``ONNX_GENAI_KERNEL_LIBRARY`` names."""
    named = os.environ.get("ONNX_GENAI_KERNEL_LIBRARY")
    if named:
        return named
    spec = importlib.util.find_spec("onnx_genai._core")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def make_session(model: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(library_path())
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, kw_only=True)
class Node:
    """Attributes and element types of a node."""

    num_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    value_dim: int = 64
    block_size: int = 16
    io: str = "float32"
    kv: str = "float32"
    scale: float = 0.0
    softcap: float = 0.0
    window: int = -1
    rotary: int = 0
    """Rotated dimensions; 0 = off."""
    interleaved: bool = False
    causal: bool = True
    smooth: bool = False
    sink: bool = False
    norm: bool = False
    packed: bool = False
    mapped: bool = False
    """Whether slot_mapping says where KV goes."""
    prompts: bool = False
    """Whether prompt_rows says which tokens are of prompts."""
    rank: int = 2
    scales: bool = True
    """Whether int8 caches come with their scales, as they must."""

    def input_type(self, name: str) -> str:
        if name in _INDEX_INPUTS:
            return "int32"
        if name in ("key_cache", "value_cache"):
            return self.kv
        return "float32" if name in ("k_scale", "v_scale") else self.io

    def present(self) -> list[str]:
        absent = {"attention_metadata"}
        if not self.prompts:
            absent.add("prompt_rows")
        if self.packed:
            absent |= {"key", "value"}
        if not self.rotary:
            absent |= {"cos_cache", "sin_cache"}
        if not self.mapped:
            absent.add("slot_mapping")
        if not self.sink:
            absent.add("head_sink")
        if not self.norm:
            absent |= {"q_norm_weight", "k_norm_weight"}
        if self.kv != "int8" or not self.scales:
            absent |= {"k_scale", "v_scale"}
        return [name for name in INPUTS if name not in absent]

    def attributes(self) -> dict[str, Any]:
        return {
            "num_heads": self.num_heads,
            "kv_num_heads": self.kv_heads,
            "scale": self.scale,
            "softcap": self.softcap,
            "local_window_size": self.window,
            "do_rotary": int(self.rotary > 0),
            "rotary_interleaved": int(self.interleaved),
            "is_causal": int(self.causal),
            "smooth_softmax": int(self.smooth),
        }

    def model(self, **attributes: Any) -> bytes:
        present = self.present()
        node = helper.make_node(
            "PagedAttention",
            [name if name in present else "" for name in INPUTS],
            ["output"],
            name="attention",
            domain=DOMAIN,
            **{**self.attributes(), **attributes},
        )
        inputs = [helper.make_tensor_value_info(name, _TYPES[self.input_type(name)], None) for name in present]
        outputs = [helper.make_tensor_value_info("output", _TYPES[self.io], None)]
        graph = helper.make_graph([node], "g", inputs, outputs)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return bytes(model.SerializeToString())


@dataclass
class Blocks:
    """The caches of a node, in memory that the operator writes."""

    node: Node
    num_blocks: int
    tensors: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        node, count = self.node, self.num_blocks
        dtype = ml_dtypes.bfloat16 if node.kv == "bfloat16" else np.dtype(node.kv)
        garbage = 99 if node.kv == "int8" else np.nan
        self.tensors = {
            "key_cache": np.full((count, node.kv_heads, node.head_dim, node.block_size), garbage, dtype),
            "value_cache": np.full((count, node.kv_heads, node.block_size, node.value_dim), garbage, dtype),
        }
        if node.kv == "int8":
            for name in ("k_scale", "v_scale"):
                self.tensors[name] = np.full((count, node.kv_heads, node.block_size), np.nan, np.float32)

    def copy(self) -> Blocks:
        other = Blocks(self.node, self.num_blocks)
        for name, tensor in self.tensors.items():
            other.tensors[name][...] = tensor
        return other


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A sequence's tokens so far and those that a call adds."""

    past: int
    new: int


@dataclass(kw_only=True)
class Case:
    """A call: rows of all sequences one after another, and the caches that it changes."""

    node: Node
    sequences: list[Sequence]
    inputs: dict[str, Array]
    blocks: Blocks

    def run(self, session: onnxruntime.InferenceSession) -> Array:
        feeds = {}
        for name, array in {**self.inputs, **self.blocks.tensors}.items():
            if name not in self.node.present():
                continue
            if array.dtype == ml_dtypes.bfloat16:
                feeds[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    array.view(np.uint16), TensorProto.BFLOAT16
                )
            else:
                feeds[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        (output,) = session.run_with_ort_values(["output"], feeds)
        return np.array(output.numpy())

    def part(self, picked: list[int]) -> Case:
        """The same call with some of its sequences only, on a copy of the caches."""
        starts = self.inputs["cumulative_sequence_length"]
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in picked])
        inputs = dict(self.inputs)
        for name in ("query", "key", "value", "slot_mapping", "prompt_rows"):
            if name in inputs:
                inputs[name] = np.ascontiguousarray(
                    inputs[name].take(rows, axis=inputs[name].ndim - 2 if inputs[name].ndim > 1 else 0)
                )
        lengths = [self.sequences[i].new for i in picked]
        inputs["cumulative_sequence_length"] = np.cumsum([0, *lengths]).astype(np.int32)
        inputs["past_seqlens"] = inputs["past_seqlens"][picked]
        inputs["block_table"] = inputs["block_table"][picked]
        return replace(self, sequences=[self.sequences[i] for i in picked], inputs=inputs, blocks=self.blocks.copy())


def make_case(node: Node, sequences: list[Sequence], seed: int = 0) -> Case:
    """Random rows and a random order of blocks. The past is not in the caches yet."""
    random = np.random.default_rng(seed)
    tokens = sum(sequence.new for sequence in sequences)
    io = np.dtype(node.io)
    needed = [-(-(s.past + s.new) // node.block_size) for s in sequences]
    blocks = Blocks(node, sum(needed) + 3)
    order = random.permutation(blocks.num_blocks).astype(np.int32)
    table = np.full((len(sequences), max(needed, default=0) + 1), -1, np.int32)
    for row, count in enumerate(needed):
        table[row, :count], order = order[:count], order[count:]

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape).astype(io)

    lead = (1, tokens) if node.rank == 3 else (tokens,)
    widths = (node.num_heads * node.head_dim, node.kv_heads * node.head_dim, node.kv_heads * node.value_dim)
    inputs: dict[str, Array] = {
        "cumulative_sequence_length": np.cumsum([0, *(s.new for s in sequences)]).astype(np.int32),
        "past_seqlens": np.array([s.past for s in sequences], np.int32),
        "block_table": table,
        "head_sink": normal(node.num_heads),
        "q_norm_weight": normal(node.head_dim),
        "k_norm_weight": normal(node.head_dim),
    }
    if node.packed:
        inputs["query"] = normal(*lead, sum(widths))
    else:
        for name, width in zip(("query", "key", "value"), widths, strict=True):
            inputs[name] = normal(*lead, width)
    longest = max((s.past + s.new for s in sequences), default=0)
    angles = np.arange(longest)[:, None] * 0.3 ** np.arange(node.rotary // 2)
    inputs["cos_cache"], inputs["sin_cache"] = np.cos(angles).astype(io), np.sin(angles).astype(io)
    slots = [
        table[row, (s.past + i) // node.block_size] * node.block_size + (s.past + i) % node.block_size
        for row, s in enumerate(sequences)
        for i in range(s.new)
    ]
    inputs["slot_mapping"] = np.array(slots, np.int32)
    inputs["prompt_rows"] = np.ones(tokens, np.int32)
    return Case(node=node, sequences=sequences, inputs=inputs, blocks=blocks)
