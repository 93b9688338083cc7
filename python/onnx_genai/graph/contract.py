"""What a decoder must know of a graph: :class:`GraphContract`, field by field the C++ ``ModelSpec``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

__all__ = [
    "OPTIONAL_PORTS",
    "AdapterInput",
    "CacheStyle",
    "ConstantInput",
    "Coverage",
    "CrossInput",
    "CrossSource",
    "DType",
    "EncoderGraph",
    "EncoderPort",
    "EncoderRole",
    "GraphContract",
    "InputPort",
    "KvPair",
    "OperatorCount",
    "PagedLayer",
    "Products",
]

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
    "cumulative_sequence_length",
    "past_seqlens",
    "block_table",
    "logits_indices",
    "prompt_rows",
    "attention_metadata",
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
    CROSS = "cross"
    """An encoder-decoder: the graph also reads what an encoder made of the source."""
    PAGED = "paged"
    """Rewritten to genai.runtime::PagedAttention: KV in blocks, tokens of many sequences one after another."""


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
class AdapterInput:
    """A graph input that only an adapter feeds: LoRA weights."""

    name: str
    has_default: bool
    """The graph has a value for runs without an adapter."""


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


CrossSource = Literal["encoder", "request", "decoder"]
EncoderRole = Literal["input_ids", "attention_mask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossInput:
    """A graph input of a decoder that stays the same for all tokens of a request."""

    input: str
    source: CrossSource
    """An output of the encoder; a tensor of the request by this input's name; an output of the decoder's first run."""
    name: str = ""
    """Of that output."""
    dtype: DType
    dims: tuple[int, ...]
    """Of the input, [batch, ...]; -1 where symbolic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPort:
    """An input of an encoder."""

    name: str
    dtype: DType
    dims: tuple[int, ...]
    """[batch, ...]; -1 where symbolic."""
    role: EncoderRole


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderGraph:
    """The encoder of an encoder-decoder, which runs once a request."""

    model_path: Path
    """Absolute path of the .onnx file."""
    inputs: tuple[EncoderPort, ...]
    external_files: tuple[Path, ...] = ()

    @property
    def width(self) -> int:
        """Tokens that a source has, as the graph fixes them; 0 if any number will do."""
        return max(0, *(port.dims[1] for port in self.inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayer:
    """KV of one layer of a paged graph: graph inputs that the operator reads and writes in place.

    With ``key_present`` the graph was exported with blocks of its own, [num_blocks, block_size, kv_heads, dim], and
    returns them anew.
    """

    key_cache: str
    """[num_blocks, kv_heads, head_dim, block_size]."""
    value_cache: str
    """[num_blocks, kv_heads, block_size, value_dim]."""
    key_scale: str = ""
    """float32 [num_blocks, kv_heads, block_size], with int8 KV; else empty."""
    value_scale: str = ""
    dtype: DType
    """float32, float16, bfloat16 or int8."""
    kv_heads: int
    head_dim: int
    value_dim: int
    key_present: str = ""
    value_present: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a graph the paged decoder covers."""

    attention_nodes: int = 0
    """Nodes that keep a past."""
    replaced: int = 0
    """How many of them are PagedAttention in the graph that runs: all or none."""
    problems: tuple[str, ...] = ()
    """Why the graph is not paged: one sentence a node or value, the first few of ``num_problems``."""
    num_problems: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Which quantized matrix products run in our operator."""

    nodes: int = 0
    """Quantized products of the graph."""
    replaced: int = 0
    """How many of them genai.runtime::MatMulNBits computes."""
    joined: int = 0
    """Nodes that these became: products of the same activations are one node."""
    swiglu: int = 0
    """Nodes among them that also compute silu(gate) * up."""
    norms: int = 0
    """Nodes among them that normalise their activations themselves."""
    biases: int = 0
    """Biases that are added in them."""
    kinds: tuple[str, ...] = ()
    """``4 bits, block 32: 151``: replaced products by layout."""
    problems: tuple[str, ...] = ()
    """Why the others stay with ONNX Runtime, one line a reason."""

    @property
    def backend(self) -> str:
        """Whose kernels compute quantized products: ``native`` if ours compute any, else ``ort``."""
        return "native" if self.replaced else "ort"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCount:
    """Nodes of one operator in the graph that runs."""

    kernel: str
    """``genai.runtime`` for an operator of ours, else ``onnxruntime``."""
    op_type: str
    nodes: int


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
    adapter_inputs: tuple[AdapterInput, ...] = ()
    kv: tuple[KvPair, ...] = ()
    """By layer, key before value."""
    encoder: EncoderGraph | None = None
    """Cross: what makes the source of it."""
    cross: tuple[CrossInput, ...] = ()
    states: tuple[KvPair, ...] = ()
    """Cross: of fixed size (recurrent), zero at first; ``sequence_axis`` is any static axis behind the batch axis."""

    cumulative_sequence_length: InputPort | None = None
    """Paged: int32 [num_sequences + 1], the first token of each sequence, then the end."""
    past_seqlens: InputPort | None = None
    """Paged: int32 [num_sequences], positions before the step."""
    block_table: InputPort | None = None
    """Paged: int32 [num_sequences, max_blocks]; -1 behind a row's end."""
    logits_indices: InputPort | None = None
    """Paged: int64 [num_rows], tokens whose logits are wanted; None if the graph returns those of all tokens."""
    prompt_rows: InputPort | None = None
    """Paged: int32 [num_tokens], 1 for tokens of prompts, 0 for generated ones; None if no operator asks."""
    attention_metadata: InputPort | None = None
    """Paged: int32 [3], the most new tokens of a sequence, the most positions, and the same again."""
    paged_layers: tuple[PagedLayer, ...] = ()
    """Paged: by layer. ``kv`` is then empty, and ids and positions are [1, num_tokens] or [num_tokens]."""
    block_size: int = 0
    """Paged: positions of a block; a rewritten graph leaves it open."""
    num_blocks: int = 0
    """Paged: blocks that the graph's caches have; 0 = any."""
    logits_of_rows: bool = False
    """Paged: the graph returns one row of logits for each sequence, [num_sequences, vocab]."""

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
    """Rows that a run has; 0 = any. Graphs with a static batch dimension have it here."""
    cache_reason: str = ""
    """Why ``cache`` is what it is, for ``show``."""
    rewrite_reason: str = ""
    """What was rewritten in the graph, or why nothing was."""
    coverage: Coverage = Coverage()
    """What the paged decoder covers, for ``show``."""
    products: Products = Products()
    """Which quantized products run in our operator, for ``show``."""
    operators: tuple[OperatorCount, ...] = ()
    """Nodes of the graph that runs, for ``show``."""
    external_files: tuple[Path, ...] = ()
    """All files that hold weights, besides ``model_path``."""
    notes: tuple[str, ...] = ()
    """Oddities worth showing to the user."""
