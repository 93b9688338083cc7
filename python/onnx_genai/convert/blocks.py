"""Block-quantised weights as codes, scales and offsets: taken from ggml blocks without rounding, or made from floats.

``weight[n, k] = scale[n, k // block] * (code[n, k] - center) + offset[n, k // block]``

Layouts of the ggml blocks: ``ggml-common.h`` and ``ggml-quants.c`` of the ggml project.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Ggml

from onnx_genai.convert.gguf_file import FloatArray

__all__ = ["CARRIED", "Blocks", "carried_format", "dequantized", "quantize", "squared_norm", "unpack"]

Bytes = npt.NDArray[np.uint8]

K_BLOCK = 256
"""Weights in a super-block of the K types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Codes of some rows; see the formula above."""

    codes: Bytes
    """uint8 ``[rows, blocks, block]``, each below ``2**bits``."""
    scale: FloatArray
    """float32 ``[rows, blocks]``."""
    offset: FloatArray | None
    """float32 ``[rows, blocks]``; None is zero everywhere."""
    bits: int
    center: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A ggml type whose blocks can be taken over: codes of ``bits`` bits in blocks of ``block`` weights."""

    bits: int
    block: int
    affine: bool
    """Has an offset a block (scale and minimum) and not just a scale."""


CARRIED: dict[Ggml, Carried] = {
    Ggml.Q4_0: Carried(bits=4, block=32, affine=False),
    Ggml.Q4_1: Carried(bits=4, block=32, affine=True),
    Ggml.Q5_0: Carried(bits=5, block=32, affine=False),
    Ggml.Q5_1: Carried(bits=5, block=32, affine=True),
    Ggml.Q8_0: Carried(bits=8, block=32, affine=False),
    Ggml.Q4_K: Carried(bits=4, block=32, affine=True),
    Ggml.Q5_K: Carried(bits=5, block=32, affine=True),
    Ggml.Q6_K: Carried(bits=6, block=16, affine=False),
}


def carried_format(kind: Ggml) -> Carried | None:
    """How the blocks of ``kind`` can be taken over, or None when they can only be decoded to floats."""
    return CARRIED.get(kind)


def unpack(raw: Bytes, kind: Ggml) -> Blocks:
    """Codes, scales and offsets of raw rows, without any rounding.

    Args:
        raw: uint8 ``[rows, bytes a row]``.
        kind: One of :data:`CARRIED`.
    """
    form = CARRIED[kind]
    rows = raw.shape[0]
    if kind in (Ggml.Q4_0, Ggml.Q4_1):
        codes, scale, offset = _unpack_q4(raw.reshape(-1, 18 if kind == Ggml.Q4_0 else 20), form.affine)
    elif kind in (Ggml.Q5_0, Ggml.Q5_1):
        codes, scale, offset = _unpack_q5(raw.reshape(-1, 22 if kind == Ggml.Q5_0 else 24), form.affine)
    elif kind == Ggml.Q8_0:
        codes, scale, offset = _unpack_q8(raw.reshape(-1, 34))
    elif kind in (Ggml.Q4_K, Ggml.Q5_K):
        codes, scale, offset = _unpack_k45(raw.reshape(-1, 144 if kind == Ggml.Q4_K else 176), kind == Ggml.Q5_K)
    else:
        codes, scale, offset = _unpack_q6k(raw.reshape(-1, 210))
    return Blocks(
        codes=codes.reshape(rows, -1, form.block),
        scale=scale.reshape(rows, -1),
        offset=None if offset is None else offset.reshape(rows, -1),
        bits=form.bits,
        center=0 if form.affine else 1 << (form.bits - 1),
    )


Parts = tuple[Bytes, FloatArray, FloatArray | None]


def _half(raw: Bytes) -> FloatArray:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """``[..., n]`` bytes to ``[..., 2n]`` codes: all low halves, then all high halves."""
    return np.concatenate([raw & np.uint8(15), raw >> np.uint8(4)], axis=-1)


def _unpack_q4(raw: Bytes, affine: bool) -> Parts:
    head = 4 if affine else 2
    return _nibbles(raw[:, head:]), _half(raw[:, :2]), _half(raw[:, 2:4]) if affine else None


def _unpack_q5(raw: Bytes, affine: bool) -> Parts:
    head = 4 if affine else 2
    high = np.unpackbits(raw[:, head : head + 4], axis=-1, bitorder="little")
    codes = _nibbles(raw[:, head + 4 :]) | (high << np.uint8(4))
    return codes, _half(raw[:, :2]), _half(raw[:, 2:4]) if affine else None


def _unpack_q8(raw: Bytes) -> Parts:
    return raw[:, 2:] ^ np.uint8(0x80), _half(raw[:, :2]), None


def _unpack_k45(raw: Bytes, five: bool) -> Parts:
    """Q4_K and Q5_K: 8 blocks of 32 with 6-bit scales and minima under two half floats."""
    packed = raw[:, 4:16]
    low, mid, top = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 63, (top & 15) | (low >> 6 << 4)], axis=1)
    minimum = np.concatenate([mid & 63, (top >> 4) | (mid >> 6 << 4)], axis=1)
    quants = raw[:, 48:] if five else raw[:, 16:]
    # Bytes 32c..32c+31 hold block 2c in the low halves and block 2c+1 in the high halves.
    codes = _nibbles(quants.reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if five:
        bit = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
        codes = codes | (((raw[:, 16:48].reshape(-1, 1, 32) >> bit) & np.uint8(1)) << np.uint8(4))
    return codes, _half(raw[:, 0:2]) * scale, -(_half(raw[:, 2:4]) * minimum)


def _unpack_q6k(raw: Bytes) -> Parts:
    """Q6_K: 16 blocks of 16 with int8 scales under one half float."""
    low = raw[:, :128].reshape(-1, 2, 64)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32)
    shift = np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1)
    codes = _nibbles(low).reshape(-1, 2, 4, 32) | (((high >> shift) & np.uint8(3)) << np.uint8(4))
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    scale: FloatArray = _half(raw[:, 208:210]) * scales
    return codes, scale, None


def dequantized(blocks: Blocks) -> FloatArray:
    """float32 ``[rows, blocks * block]``."""
    values = (blocks.codes.astype(np.float32) - blocks.center) * blocks.scale[..., None]
    if blocks.offset is not None:
        values += blocks.offset[..., None]
    return values.reshape(values.shape[0], -1)


def squared_norm(blocks: Blocks) -> float:
    """Sum of the squares of all weights."""
    codes = blocks.codes.astype(np.float32) - blocks.center
    square = np.square(blocks.scale, dtype=np.float64) * np.einsum("nbk,nbk->nb", codes, codes)
    if blocks.offset is not None:
        square += 2.0 * blocks.scale * blocks.offset * codes.sum(axis=-1)
        square += codes.shape[-1] * np.square(blocks.offset, dtype=np.float64)
    return float(square.sum())


def quantize(values: FloatArray, bits: int, block: int) -> Blocks:
    """Rounds floats to codes with a scale and a whole zero point a block (4 bits) or a scale only (8 bits).

    For 4 bits a small search stretches the range by a few factors, refits scale and zero point, and keeps what has the
    least squared error weighted by the square of the value (large weights matter more).

    Args:
        values: float32 ``[rows, columns]``; the last block is filled up with zeros.
        bits: 4 or 8.
        block: Weights in a block, a power of two >= 16.
    """
    rows, columns = values.shape
    padding = -columns % block
    if padding:
        values = np.pad(values, ((0, 0), (0, padding)))
    grouped = values.reshape(rows, -1, block)
    if bits == 8:
        scale = np.abs(grouped).max(axis=-1) / np.float32(127)
        inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        codes = np.rint(grouped * inverse[..., None]).astype(np.int16) + 128
        return Blocks(codes=codes.astype(np.uint8), scale=scale, offset=None, bits=8, center=128)
    codes, scale, zero = _search_int4(grouped)
    return Blocks(codes=codes, scale=scale, offset=-scale * zero, bits=4, center=0)


def _search_int4(grouped: FloatArray) -> tuple[Bytes, FloatArray, FloatArray]:
    """The best of a few ranges a block: codes, scale and whole zero point in 0..15."""
    low = np.minimum(grouped.min(axis=-1), 0)
    high = np.maximum(grouped.max(axis=-1), 0)
    weight = grouped * grouped + np.float32(1e-12)
    best_error = np.full(low.shape, np.inf, np.float32)
    best_codes = np.zeros(grouped.shape, np.uint8)
    best_scale = np.zeros_like(low)
    best_zero = np.zeros_like(low)
    for stretch in np.linspace(0.8, 1.05, 6, dtype=np.float32):
        scale = (high - low) * (stretch / np.float32(15))
        inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        zero = np.clip(np.rint(-low * stretch * inverse), 0, 15)
        codes = np.clip(np.rint(grouped * inverse[..., None]) + zero[..., None], 0, 15)
        centered = codes - zero[..., None]
        # The scale that fits these codes best, in closed form.
        norm = np.sum(weight * centered * centered, axis=-1)
        fitted = np.divide(np.sum(weight * centered * grouped, axis=-1), norm, out=scale.copy(), where=norm > 0)
        error = np.sum(weight * np.square(centered * fitted[..., None] - grouped), axis=-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, fitted, best_scale)
        best_zero = np.where(better, zero, best_zero)
        best_codes = np.where(better[..., None], codes.astype(np.uint8), best_codes)
    return best_codes, best_scale, best_zero
