"""A float64 NumPy forward pass of a GGUF file, read with the gguf package: independent of the importer.

Heads of ``llama`` and ``smollm3`` are rotated in neighbouring pairs, as they lie in the file, so that putting them in
order is checked too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Reference:
    """Logits of a whole sequence at once, without a cache."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = str(self.meta["general.architecture"])
        self.weights: dict[str, Array] = {
            item.name: np.asarray(gguf.dequantize(item.data, item.tensor_type), np.float64).reshape(
                tuple(int(size) for size in item.shape[::-1])
            )
            for item in reader.tensors
        }

    def key(self, name: str, default: Any = None) -> Any:
        return self.meta.get(f"{self.arch}.{name}", default)

    def logits(self, ids: list[int]) -> Array:
        """float64 ``[len(ids), vocab]``."""
        weights = self.weights
        hidden = weights["token_embd.weight"][ids]
        gemma = self.arch.startswith("gemma")
        if gemma:
            hidden = hidden * math.sqrt(hidden.shape[1])
        for layer in range(self.key("block_count")):
            attended = self._attention(layer, self._norm(hidden, f"blk.{layer}.attn_norm.weight"))
            if gemma:
                attended = self._norm(attended, f"blk.{layer}.post_attention_norm.weight")
            hidden = hidden + attended
            fed = self._feed_forward(layer, self._norm(hidden, f"blk.{layer}.ffn_norm.weight"))
            if gemma:
                fed = self._norm(fed, f"blk.{layer}.post_ffw_norm.weight")
            hidden = hidden + fed
        head = weights.get("output.weight", weights["token_embd.weight"])
        logits: Array = self._norm(hidden, "output_norm.weight") @ head.T
        return 30.0 * np.tanh(logits / 30.0) if self.arch == "gemma2" else logits

    def _norm(self, value: Array, name: str) -> Array:
        mean = np.mean(value * value, axis=-1, keepdims=True)
        scaled: Array = value / np.sqrt(mean + self.key("attention.layer_norm_rms_epsilon")) * self.weights[name]
        return scaled

    def _feed_forward(self, layer: int, value: Array) -> Array:
        weights, prefix = self.weights, f"blk.{layer}.ffn_"
        if f"{prefix}gate.weight" in weights:
            gate, up = value @ weights[f"{prefix}gate.weight"].T, value @ weights[f"{prefix}up.weight"].T
        else:
            gate, up = np.split(value @ weights[f"{prefix}up.weight"].T, 2, axis=-1)
        if self.arch.startswith("gemma"):
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        down: Array = (gate * up) @ weights[f"{prefix}down.weight"].T
        return down

    def _attention(self, layer: int, value: Array) -> Array:
        heads, kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")
        size, length = self.key("attention.key_length"), len(value)
        sizes = [heads * size, kv_heads * size, kv_heads * size]
        prefix = f"blk.{layer}.attn_"
        if f"{prefix}qkv.weight" in self.weights:
            parts = np.split(value @ self.weights[f"{prefix}qkv.weight"].T, np.cumsum(sizes)[:2], axis=-1)
        else:
            parts = [
                value @ self.weights[f"{prefix}{letter}.weight"].T + self.weights.get(f"{prefix}{letter}.bias", 0.0)
                for letter in "qkv"
            ]
        query, key, values = (part.reshape(length, -1, size) for part in parts)
        if f"{prefix}q_norm.weight" in self.weights:
            query, key = self._norm(query, f"{prefix}q_norm.weight"), self._norm(key, f"{prefix}k_norm.weight")
        slides = {"gemma2": layer % 2 == 0, "gemma3": layer % 6 != 5}.get(self.arch, True)
        if self.arch != "smollm3" or (layer + 1) % 4:
            query, key = self._rotate(query, slides), self._rotate(key, slides)
        scores = np.einsum("qhd,khd->hqk", query, np.repeat(key, heads // kv_heads, axis=1)) / math.sqrt(size)
        if self.arch == "gemma2":
            scores = 50.0 * np.tanh(scores / 50.0)
        distance = np.arange(length)[:, None] - np.arange(length)[None]
        hidden = distance < 0
        window = self.key("attention.sliding_window", 0)
        if window and slides:
            hidden |= distance >= window
        scores = np.where(hidden[None], -np.inf, scores)
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", chances, np.repeat(values, heads // kv_heads, axis=1))
        out: Array = mixed.reshape(length, -1) @ self.weights[f"{prefix}output.weight"].T
        return out

    def _rotate(self, value: Array, slides: bool) -> Array:
        size = value.shape[-1]
        base = 10000.0 if self.arch == "gemma3" and slides else self.key("rope.freq_base")
        frequency = base ** -(np.arange(0, size, 2) / size)
        magnitude = 1.0
        if "rope_freqs.weight" in self.weights:
            frequency = frequency / self.weights["rope_freqs.weight"]
        if self.key("rope.scaling.type") == "linear":
            frequency = frequency / self.key("rope.scaling.factor")
        if "rope_factors_short.weight" in self.weights:
            original, full = self.key("rope.scaling.original_context_length"), self.key("context_length")
            frequency = frequency / self.weights["rope_factors_short.weight"]
            magnitude = math.sqrt(1 + math.log(full / original) / math.log(original))
        angle = np.arange(len(value))[:, None, None] * frequency
        cosine, sine = magnitude * np.cos(angle), magnitude * np.sin(angle)
        if self.arch in ("llama", "smollm3"):
            left, right = value[..., 0::2], value[..., 1::2]
            turned = np.stack([left * cosine - right * sine, left * sine + right * cosine], axis=-1)
            return turned.reshape(value.shape)
        left, right = value[..., : size // 2], value[..., size // 2 :]
        return np.concatenate([left * cosine - right * sine, left * sine + right * cosine], axis=-1)
