"""What a decoder must know of a graph: :class:`GraphContract`, field by field the C++ ``ModelSpec``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

__all__ = ["OPTIONAL_PORTS", "CacheStyle", "ConstantInput", "DType", "GraphContract", "InputPort", "KvPair"]

OPTIONAL_PORTS = (
    "attention_mask",
    "position_ids",
    "seqlens_k",
    "total_sequence_length",
    "past_sequence_length",
    "cache_position",
    "use_cache_branch",
    "write_indices",
    "nonpad_kv_seqlen",
)
"""Fields of :class:`GraphContract` that hold an input port, or None where the graph has no such input."""


class DType(str, Enum):
    """Element types that cross our interfaces; the values are NumPy's names."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"


class CacheStyle(str, Enum):
    """How a graph keeps its KV; decides which decoder runs it."""

    SLOT_GQA = "slot_gqa"
    """Past and present may share one buffer (GroupQueryAttention)."""
    SLOT_STATIC = "slot_static"
    """Caller-owned buffers that the graph writes at ``write_indices`` (TensorScatter exports)."""
    COPY = "copy"
    """Present is a new, longer tensor each step (concatenated past)."""
    NONE = "none"
    """No KV: the whole prefix runs again each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPort:
    """A graph input of a known role."""

    name: str
    dtype: DType
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantInput:
    """A graph input that always receives the same small tensor."""

    port: InputPort
    shape: Literal["fixed", "like_ids"] = "fixed"
    dims: tuple[int, ...] = ()
    """For ``fixed``."""
    value: int = 0
    """Every element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPair:
    """One past input and the present output that continues it."""

    past: str
    present: str
    dtype: DType
    dims: tuple[int, ...]
    """Shape of the past input; -1 for the batch and sequence axes unless static, all others are known."""
    batch_axis: int = 0
    sequence_axis: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphContract:
    """A single-graph language model, ready to be run. Made by :func:`onnx_genai.graph.resolve`.

    The fields down to ``context_source`` are those of the C++ ``genai::ModelSpec``; the others are for Python.
    """

    model_path: Path
    """Absolute path of the .onnx file."""
    model_bytes: bytes = b""
    """Serialized rewritten graph; empty to load ``model_path`` itself."""
    external_folder: Path
    """Folder of the weights when ``model_bytes`` is used."""

    cache: CacheStyle
    input_ids: InputPort
    attention_mask: InputPort | None = None
    """Ones, [batch, past + new]."""
    position_ids: InputPort | None = None
    """Absolute, [batch, new]."""
    seqlens_k: InputPort | None = None
    """Valid keys - 1 of each row, int32 [batch] or scalar."""
    total_sequence_length: InputPort | None = None
    """Past + new of the longest row, scalar or [1]."""
    past_sequence_length: InputPort | None = None
    """Past of the row, scalar or [1]."""
    cache_position: InputPort | None = None
    """arange(past, past + new), [new]."""
    use_cache_branch: InputPort | None = None
    """bool [1]: false on the first run, true with a past."""
    write_indices: InputPort | None = None
    """First position to write, [batch]."""
    nonpad_kv_seqlen: InputPort | None = None
    """Valid positions after the step, [batch]."""
    constants: tuple[ConstantInput, ...] = ()
    kv: tuple[KvPair, ...] = ()
    """By layer, key before value."""

    logits: str
    logits_dtype: DType
    last_logits_only: bool = False
    """The graph returns logits of the last position only, [batch, 1, vocab]."""

    vocab_size: int = 0
    """Width of the logits; 0 if neither graph nor package state it."""
    context_limit: int = 0
    """Tokens that a sequence may have; 0 = no limit known."""
    context_source: str = ""
    """Where the limit comes from, for errors."""

    max_batch: int = 0
    """Rows that a run may have; 0 = any. Graphs with a static batch dimension have it here."""
    cache_reason: str = ""
    """Why ``cache`` is what it is, for ``show``."""
    rewrite_reason: str = ""
    """What was rewritten in the graph, or why nothing was."""
    external_files: tuple[Path, ...] = ()
    """All files that hold weights, besides ``model_path``."""
    notes: tuple[str, ...] = ()
    """Oddities worth showing to the user."""
