"""Tiny random models of every architecture as GGUF files.

A *checkpoint* here is a dict of float32 arrays under GGUF names but in the order and meaning of the published
checkpoints: heads not permuted, Gemma norm weights without the added one. :func:`write_gguf` applies what GGUF
converters apply. ``tests/golden/make_convert.py`` loads the same checkpoints into transformers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Checkpoint = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Sizes and options of a tiny model."""

    arch: str
    layers: int = 2
    hidden: int = 64
    feed_forward: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 96
    context: int = 64
    epsilon: float = 1e-5
    rope_base: float = 10000.0
    window: int = 0
    tied: bool = True
    biases: bool = False
    keys: dict[str, Any] = field(default_factory=dict)
    """More metadata; ``{arch}`` is filled in."""
    factors: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Tensors of rotary factors."""


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
"""Rotary scaling as published checkpoints of Llama 3 give it."""


def llama3_factors(base: float, size: int) -> tuple[float, ...]:
    """The divisors that a GGUF converter writes for :data:`LLAMA3`."""
    out = []
    for index in range(0, size, 2):
        turns = LLAMA3["original_max_position_embeddings"] / (2 * math.pi * base ** (index / size))
        low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        out.append(1 / ((1 - share) / LLAMA3["factor"] + share))
    return tuple(out)


LONGROPE = Tiny(
    arch="phi3",
    context=64,
    tied=False,
    keys={"{arch}.rope.scaling.original_context_length": 16},
    factors={
        "rope_factors_short": (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7),
        "rope_factors_long": (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5),
    },
)

TINY: dict[str, Tiny] = {
    "llama": Tiny(arch="llama", tied=False),
    "llama-tied": Tiny(arch="llama", head_dim=32, heads=2, kv_heads=1),
    "llama3": Tiny(arch="llama", factors={"rope_freqs": llama3_factors(10000.0, 16)}),
    "llama-linear": Tiny(arch="llama", keys={"{arch}.rope.scaling.type": "linear", "{arch}.rope.scaling.factor": 4.0}),
    "smollm3": Tiny(arch="smollm3", layers=4),
    "qwen2": Tiny(arch="qwen2", biases=True),
    "qwen2-yarn": Tiny(
        arch="qwen2",
        biases=True,
        context=256,
        rope_base=10000.0,
        keys={
            "{arch}.rope.scaling.type": "yarn",
            "{arch}.rope.scaling.factor": 4.0,
            "{arch}.rope.scaling.original_context_length": 64,
        },
    ),
    "qwen3": Tiny(arch="qwen3", head_dim=32, tied=False),
    "phi3": Tiny(arch="phi3", window=8, tied=False),
    "phi3-longrope": LONGROPE,
    "phi3-long": LONGROPE,
    "gemma2": Tiny(arch="gemma2", layers=4, window=8, epsilon=1e-6, head_dim=32),
    "gemma3": Tiny(arch="gemma3", layers=7, window=8, epsilon=1e-6, rope_base=1000000.0, head_dim=32),
}


def golden_ids(name: str) -> list[int]:
    """The prompt of the golden logits: within the short context for ``phi3-longrope``, beyond it for ``phi3-long``."""
    count = 16 if name == "phi3-longrope" else 24
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return [int(value * TINY[name].vocab) for value in rng.random(count)]


def is_gemma(tiny: Tiny) -> bool:
    return tiny.arch.startswith("gemma")


def checkpoint(tiny: Tiny, seed: int = 0) -> Checkpoint:
    """Random weights; only ``Generator.random`` is used, whose stream is stable between NumPy versions."""
    rng = np.random.default_rng([seed, zlib.crc32(tiny.arch.encode())])

    def uniform(*shape: int, width: float) -> npt.NDArray[np.float32]:
        return ((rng.random(shape) - 0.5) * 2 * width).astype(np.float32)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return uniform(rows, columns, width=float(np.sqrt(3.0 / columns)))

    def norm(size: int) -> npt.NDArray[np.float32]:
        return uniform(size, width=0.5) + np.float32(0.0 if is_gemma(tiny) else 1.0)

    query, key = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    weights: Checkpoint = {"token_embd.weight": uniform(tiny.vocab, tiny.hidden, width=0.5)}
    for layer in range(tiny.layers):
        block: Checkpoint = {"attn_norm.weight": norm(tiny.hidden), "ffn_norm.weight": norm(tiny.hidden)}
        for name, rows in {"attn_q": query, "attn_k": key, "attn_v": key}.items():
            block[f"{name}.weight"] = matrix(rows, tiny.hidden)
            if tiny.biases:
                block[f"{name}.bias"] = uniform(rows, width=0.5)
        block["attn_output.weight"] = matrix(tiny.hidden, query)
        block["ffn_gate.weight"] = matrix(tiny.feed_forward, tiny.hidden)
        block["ffn_up.weight"] = matrix(tiny.feed_forward, tiny.hidden)
        block["ffn_down.weight"] = matrix(tiny.hidden, tiny.feed_forward)
        if tiny.arch in ("qwen3", "gemma3"):
            block["attn_q_norm.weight"] = norm(tiny.head_dim)
            block["attn_k_norm.weight"] = norm(tiny.head_dim)
        if is_gemma(tiny):
            block["post_attention_norm.weight"] = norm(tiny.hidden)
            block["post_ffw_norm.weight"] = norm(tiny.hidden)
        weights |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    weights["output_norm.weight"] = norm(tiny.hidden)
    if not tiny.tied:
        weights["output.weight"] = matrix(tiny.vocab, tiny.hidden)
    return weights


def _permuted(weight: Array, heads: int) -> Array:
    """Halves of each head become neighbours, as GGUF stores Llama heads."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _stored(tiny: Tiny, weights: Checkpoint) -> Checkpoint:
    """What a GGUF converter writes for this checkpoint."""
    out: Checkpoint = {}
    for name, value in weights.items():
        if is_gemma(tiny) and name.endswith("norm.weight"):
            value = value + np.float32(1)
        if tiny.arch in ("llama", "smollm3") and name.endswith(("attn_q.weight", "attn_k.weight")):
            value = _permuted(value, tiny.heads if "attn_q" in name else tiny.kv_heads)
        out[name] = value
    if tiny.arch == "phi3":
        for layer in range(tiny.layers):
            prefix = f"blk.{layer}."
            parts = [out.pop(f"{prefix}attn_{letter}.weight") for letter in "qkv"]
            out[f"{prefix}attn_qkv.weight"] = np.concatenate(parts)
            gate, up = out.pop(f"{prefix}ffn_gate.weight"), out.pop(f"{prefix}ffn_up.weight")
            out[f"{prefix}ffn_up.weight"] = np.concatenate([gate, up])
    for name, factors in tiny.factors.items():
        out[f"{name}.weight"] = np.array(factors, np.float32)
    return out


def add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """A byte-level vocabulary without merges: letters, then fillers, then two control tokens."""
    tokens = [chr(ord("!") + index) for index in range(min(vocab - 2, 94))]
    tokens += [f"filler{index}" for index in range(vocab - 2 - len(tokens))] + ["<|endoftext|>", "<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (vocab - 2) + [3, 3])
    writer.add_token_merges([])
    writer.add_bos_token_id(vocab - 2)
    writer.add_eos_token_id(vocab - 1)


def write_gguf(
    path: Path,
    tiny: Tiny,
    *,
    types: Callable[[str], gguf.GGMLQuantizationType] = lambda name: gguf.GGMLQuantizationType.F32,
    seed: int = 0,
    tokenizer: Callable[[gguf.GGUFWriter, int], None] = add_tokenizer,
    raw: dict[str, tuple[npt.NDArray[np.uint8], gguf.GGMLQuantizationType]] | None = None,
    skip: Sequence[str] = (),
) -> Path:
    """Writes the model; matrices take the type that ``types`` says, vectors stay float32.

    ``raw`` replaces matrices by ready blocks (for types that gguf cannot make); ``skip`` leaves tensors out.
    """
    writer = gguf.GGUFWriter(path, tiny.arch)
    writer.add_name(f"tiny {tiny.arch}")
    writer.add_block_count(tiny.layers)
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.hidden)
    writer.add_feed_forward_length(tiny.feed_forward)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head_dim)
    writer.add_value_length(tiny.head_dim)
    writer.add_layer_norm_rms_eps(tiny.epsilon)
    writer.add_rope_freq_base(tiny.rope_base)
    writer.add_rope_dimension_count(tiny.head_dim)
    if tiny.window:
        writer.add_sliding_window(tiny.window)
    for key, value in tiny.keys.items():
        name = key.format(arch=tiny.arch)
        kind = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
        kind[type(value)](name, value)
    tokenizer(writer, tiny.vocab)
    for name, value in _stored(tiny, checkpoint(tiny, seed)).items():
        if name in skip:
            continue
        if raw is not None and name in raw:
            blocks, kind_ = raw[name]
            writer.add_tensor(name, blocks, raw_dtype=kind_)
            continue
        wanted = types(name) if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = value if wanted == gguf.GGMLQuantizationType.F32 else gguf.quantize(value, wanted)
        writer.add_tensor(name, data, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
