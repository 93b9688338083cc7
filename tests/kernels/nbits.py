"""Quantized weights as com.microsoft::MatMulNBits and our operator read them, and what they are worth in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Quantized", "error_bound", "make_matrix", "make_weights", "silu", "unpack"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """Weights of a product, and its bias. What is said of shapes holds for ``layout`` 0."""

    k: int
    block_size: int
    bits: int
    data: Array
    """uint8 [N, blocks, block_size * bits / 8]."""
    scales: Array
    """[N, blocks]."""
    zero_points: Array | None = None
    """uint8 [N, ceil(blocks * bits / 8)]."""
    bias: Array | None = None
    """[N]."""
    layout: int = 0
    """1: [K, N], 2: [N, K], as bytes; scales [blocks, N] or [N, blocks], or one; zero points alike."""
    signed: bool = False
    columns: int = 0
    """N, if there is a ``layout``."""

    @property
    def n(self) -> int:
        return self.columns if self.layout else int(self.data.shape[0])

    def _matrix(self) -> Array:
        """The weights of another layout in float64, [N, K]."""
        block = self.block_size or self.k
        blocks = -(-self.k // block)

        def numbers(data: Array, shape: tuple[int, int], *, one: bool) -> Array:
            codes = unpack(data.reshape(1, -1), self.bits)[0][: 1 if one else shape[0] * shape[1]].astype(int)
            if self.signed:
                codes -= (codes >= 1 << (self.bits - 1)) * (1 << self.bits)
            return np.broadcast_to(codes if one else codes.reshape(shape), shape)

        rows = self.layout == 1
        by_block = (blocks, self.n) if rows else (self.n, blocks)
        codes = numbers(self.data, (self.k, self.n) if rows else (self.n, self.k), one=False)
        zeros = np.zeros(by_block, int)
        if self.zero_points is not None:
            one = self.zero_points.size == 1 if self.bits == 8 else self.scales.size == 1
            zeros = numbers(self.zero_points, by_block, one=one)
        scales = self.scales.reshape(-1).astype(np.float64)
        scales = np.broadcast_to(scales if scales.size == 1 else scales.reshape(by_block), by_block)
        if rows:
            codes, zeros, scales = codes.T, zeros.T, scales.T
        repeated = np.arange(self.k) // block
        return np.asarray((codes - zeros[:, repeated]) * scales[:, repeated])

    def dense(self) -> Array:
        """The weights in float64, [N, K]."""
        if self.layout:
            return self._matrix()
        n, blocks, _ = self.data.shape
        codes = unpack(self.data.reshape(n, -1), self.bits).reshape(n, blocks, self.block_size).astype(np.float64)
        if self.zero_points is None:
            zeros = np.full((n, blocks), 1 << (self.bits - 1))
        else:
            zeros = unpack(self.zero_points.reshape(n, -1), self.bits)[:, :blocks]
        scaled = (codes - zeros[..., None]) * self.scales.reshape(n, blocks, 1).astype(np.float64)
        return np.asarray(scaled.reshape(n, -1)[:, : self.k])

    def times(self, rows: Array) -> Array:
        """Rows [..., K] times the weights plus bias, in float64."""
        product = rows.astype(np.float64) @ self.dense().T
        return np.asarray(product if self.bias is None else product + self.bias.astype(np.float64))


def make_weights(
    n: int,
    k: int,
    *,
    bits: int = 4,
    block_size: int = 32,
    zero_points: bool = False,
    bias: bool = False,
    dtype: str = "float32",
    seed: int = 0,
) -> Quantized:
    """Random weights; what lies behind column K and behind the last zero point is random too."""
    random = np.random.default_rng([seed, n, k, bits, block_size])
    blocks = -(-k // block_size)
    return Quantized(
        k=k,
        block_size=block_size,
        bits=bits,
        data=random.integers(0, 256, (n, blocks, block_size * bits // 8), np.uint8),
        scales=random.uniform(0.002, 0.02, (n, blocks)).astype(dtype),
        zero_points=random.integers(0, 256, (n, -(-blocks * bits // 8)), np.uint8) if zero_points else None,
        bias=random.standard_normal(n).astype(dtype) if bias else None,
    )


def make_matrix(
    n: int,
    k: int,
    *,
    layout: int = 1,
    bits: int = 8,
    signed: bool = True,
    block_size: int = 0,
    one_scale: bool = False,
    zero_points: Literal["", "one", "each"] = "",
    bias: bool = False,
    dtype: str = "float32",
    seed: int = 0,
) -> Quantized:
    """Random weights of a layout other than 0."""
    random = np.random.default_rng([seed, n, k, bits, block_size])
    blocks = -(-k // block_size) if block_size else 1
    shape = (blocks, n) if layout == 1 else (n, blocks)
    zeros = 1 if zero_points == "one" else -(-blocks * n * bits // 8)
    return Quantized(
        k=k,
        block_size=block_size,
        bits=bits,
        data=random.integers(0, 256, -(-k * n * bits // 8), np.uint8),
        scales=random.uniform(0.002, 0.02, () if one_scale else shape).astype(dtype),
        zero_points=random.integers(0, 256, zeros, np.uint8) if zero_points else None,
        bias=random.standard_normal(n).astype(dtype) if bias else None,
        layout=layout,
        signed=signed,
        columns=n,
    )


def unpack(data: Array, bits: int) -> Array:
    """Codes of rows of bytes; of two codes in a byte the first is the lower half."""
    return data if bits == 8 else np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)


def silu(values: Array) -> Array:
    return np.asarray(values / (1 + np.exp(-values)))


def error_bound(rows: Array, weights: Quantized, *, rounded: bool, tiles: bool = False) -> Array:
    """What a product may differ from :meth:`Quantized.times`, element by element.

    Args:
        rows: [M, K].
        weights: Of the product.
        rounded: The kernel may round activations to int8, with one scale for at most a block of weights, or 32.
        tiles: It may round activations and weights to bfloat16 instead.
    """
    dense, sizes = np.abs(weights.dense()), np.abs(rows.astype(np.float64))
    products = sizes @ dense.T
    bound = 2.0**-20 * (products + (0 if weights.bias is None else np.abs(weights.bias.astype(np.float64)))) + 1e-30
    if not rounded:
        return np.asarray(bound)
    integers = np.zeros_like(bound)
    group = max(weights.block_size or 128, 32)
    for start in range(0, weights.k, group):
        part = slice(start, start + group)
        # Half a step of the largest of the group, and what scales are rounded by.
        integers += 0.502 / 127 * sizes[:, part].max(axis=1, keepdims=True) * dense[:, part].sum(axis=1)
    integers += 2.0**-11 * products
    halves = (2.0**-7 + 2.0**-10) * products  # 2^-8 for each of the two factors
    return np.asarray(bound + (np.maximum(integers, halves) if tiles else integers))
