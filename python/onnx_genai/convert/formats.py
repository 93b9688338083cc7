"""How a weight matrix is stored in the package, and the bytes of that form.

``MatMulNBits`` of ONNX Runtime wants, a block of ``block`` weights of one output row: codes of 4 or 8 bits, a float
scale, and a whole zero point. Its fast kernels know no fractional zero point, which the affine ggml types (Q4_1, Q4_K,
...) need. Two ways to carry those over:

* 8 bits: the grid of the block is refined until its offset falls on a grid point (``_refined``).
* 4 bits: the fraction that a whole zero point leaves is constant over a block, so it acts on the block's sum of inputs
  only. Those means become extra input columns, and the fractions become their 4-bit weights (``block_means``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Ggml

from onnx_genai.convert.blocks import Blocks, Bytes, carried_format, dequantized, quantize, squared_norm
from onnx_genai.convert.gguf_file import FloatArray
from onnx_genai.errors import InternalError, InvalidArgumentError

__all__ = ["Encoded", "Errors", "Format", "encode", "square_sum", "target_format"]


FAR = 0.75
"""Steps that a fraction may have; above a half only where the zero point would leave its range of 0 to 15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Form of a matrix in the package; matrices of equal form and input can be joined into one product."""

    bits: int
    """4 or 8 for block-quantised codes, 16 or 32 for floats."""
    block: int = 0
    """Weights in a block; 0 for floats."""
    zero_points: bool = False
    """A whole zero point is stored for each block; otherwise it is ``2**(bits - 1)``."""
    block_means: bool = False
    """The input is widened by the mean of each block."""

    @property
    def quantized(self) -> bool:
        return self.bits <= 8

    @property
    def label(self) -> str:
        if not self.quantized:
            return f"float{self.bits}"
        extra = " + block means" if self.block_means else " + zero points" if self.zero_points else ""
        return f"int{self.bits} block {self.block}{extra}"

    def carries(self, kind: Ggml) -> bool:
        """True when the codes of ``kind`` fit into this form as they are."""
        source = carried_format(kind)
        return source is not None and self.quantized and self.block == source.block and self.bits >= source.bits

    def blocks(self, columns: int) -> int:
        """Blocks in a row of a matrix of ``columns`` columns, those of the block means included.

        For many rows the kernels of ONNX Runtime take four blocks at once, and each of the one to three that remain
        costs as much as these four; two or three are therefore filled up to four.
        """
        count = -(-columns // self.block)
        if not self.block_means:
            return count
        count += -(-count // self.block)
        return count if count % 4 < 2 else count + -count % 4

    def width(self, columns: int) -> int:
        """Input columns of the product for a matrix of ``columns`` columns."""
        return self.blocks(columns) * self.block if self.block_means else columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Some rows in the form that ``MatMulNBits`` and ``GatherBlockQuantized`` read."""

    codes: Bytes
    """uint8 ``[rows, blocks, block * bits / 8]``, low half first."""
    scales: FloatArray
    """float32 ``[rows, blocks]``."""
    zero_points: Bytes | None
    """uint8 ``[rows, ceil(blocks * bits / 8)]``, packed as the codes."""


@dataclass(slots=True)
class Errors:
    """Sums from which the error of a whole matrix follows."""

    squared: float = 0.0
    norm: float = 0.0
    largest: float = 0.0

    def add(self, difference: FloatArray, squared_norm: float, repeat: int = 1) -> None:
        """Adds a part: its differences, each of which stands for ``repeat`` weights, and the norm of its source."""
        self.squared += repeat * square_sum(difference)
        self.norm += squared_norm
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0.0)))

    @property
    def relative(self) -> float:
        """Root of the squared error over the squared norm of the source."""
        return float(np.sqrt(self.squared / self.norm)) if self.norm else 0.0


def square_sum(values: FloatArray) -> float:
    """Sum of the squares of all elements."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return float(flat @ flat)


def target_format(kind: Ggml, dtype: str | None, block: int) -> Format:
    """The form that a matrix of ggml type ``kind`` takes.

    Args:
        kind: Type in the file.
        dtype: ``fp32``, ``fp16``, ``int4``, ``int8``, or None: what the file has, taken over where that is possible.
        block: Block size for what is rounded anew.
    """
    if dtype in ("fp32", "fp16"):
        return Format(bits=32 if dtype == "fp32" else 16)
    carried = carried_format(kind)
    if dtype is None and carried is None:
        if kind in (Ggml.F32, Ggml.F16, Ggml.BF16):
            return Format(bits=32)
        dtype = "int4" if kind not in (Ggml.IQ4_NL, Ggml.IQ4_XS) else "int8"
    if carried is not None and (dtype is None or dtype == ("int4" if carried.bits == 4 else "int8")):
        bits = 4 if carried.bits == 4 else 8
        return Format(
            bits=bits,
            block=carried.block,
            zero_points=carried.affine,
            block_means=carried.affine and bits == 4,
        )
    if dtype == "int8" and carried is not None and carried.bits <= 8:
        return Format(bits=8, block=carried.block, zero_points=carried.affine)
    if dtype not in ("int4", "int8"):
        raise InvalidArgumentError(f"dtype is {dtype!r}; allowed: fp32, fp16, int4, int8")
    return Format(bits=4 if dtype == "int4" else 8, block=block, zero_points=dtype == "int4")


def encode(form: Format, source: Blocks | FloatArray, errors: Errors) -> Encoded:
    """Brings rows into ``form`` and adds what the rounding costs to ``errors``.

    Args:
        form: A quantised form.
        source: Blocks to carry over (their block size is that of the form), or float32 ``[rows, columns]``.
        errors: Grows by this part of the matrix.
    """
    if not isinstance(source, Blocks):
        blocks = quantize(source, form.bits, form.block)
        difference = dequantized(blocks)[:, : source.shape[1]] - source
        errors.add(difference, square_sum(source))
        return _plain(form, blocks)
    if form.block_means:
        return _with_means(form, source, errors)
    if form.bits == 8 and form.zero_points:
        return _refined(source, errors)
    return _plain(form, source)


def _pack(codes: Bytes, bits: int) -> Bytes:
    """Codes to bytes along the last axis, low half first."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def _whole_zero(blocks: Blocks) -> FloatArray:
    """The zero point of blocks whose offset is a whole multiple of their scale."""
    assert blocks.offset is not None
    ratio = np.divide(-blocks.offset, blocks.scale, out=np.zeros_like(blocks.scale), where=blocks.scale != 0)
    return np.rint(ratio)


def _plain(form: Format, blocks: Blocks) -> Encoded:
    """No offset, or an offset that is a whole multiple of the scale: nothing is lost."""
    middle = 1 << (form.bits - 1)
    packed: Bytes | None = None
    codes = blocks.codes
    if blocks.offset is None:
        codes = codes + np.uint8(middle - blocks.center) if middle != blocks.center else codes
        zero = np.full_like(blocks.scale, middle)
    elif form.zero_points:
        zero = _whole_zero(blocks)
    else:
        raise InternalError(f"{form.label} has no place for the offsets of its blocks")
    if form.zero_points:
        packed = _pack(zero.astype(np.uint8), form.bits)
    return Encoded(codes=_pack(codes, form.bits), scales=blocks.scale, zero_points=packed)


def _constant_blocks(blocks: Blocks) -> Blocks:
    """Blocks whose scale is 0 hold their offset everywhere: code 1 under that scale says the same without offset."""
    assert blocks.offset is not None
    flat = blocks.scale == 0
    if not flat.any():
        return blocks
    return Blocks(
        codes=np.where(flat[..., None], np.uint8(1), blocks.codes),
        scale=np.where(flat, blocks.offset, blocks.scale),
        offset=np.where(flat, np.float32(0), blocks.offset),
        bits=blocks.bits,
        center=0,
    )


def _refined(blocks: Blocks, errors: Errors) -> Encoded:
    """Affine codes of few bits as 8-bit codes: ``step = scale / k`` with the ``k`` whose grid meets the offset best."""
    blocks = _constant_blocks(blocks)
    assert blocks.offset is not None
    top = (1 << blocks.bits) - 1
    safe = np.where(blocks.scale == 0, np.float32(1), blocks.scale)
    # Beyond 255 steps nothing fits; such an offset keeps as much of itself as 8 bits can say.
    ratio: FloatArray = np.clip(blocks.offset / safe, np.float32(-255), np.float32(255 - top))
    best = np.full(ratio.shape, np.inf, np.float32)
    factor: FloatArray = np.ones_like(ratio)
    shift: FloatArray = np.zeros_like(ratio)
    for k in range(1, 255 // top + 1):
        whole = np.rint(ratio * np.float32(k))
        # Codes are k * c + whole when that is not negative, else k * c with the zero point -whole; all within 0..255.
        fits = (np.maximum(whole, 0) + k * top <= 255) & (-whole <= 255)
        error = np.where(fits, np.abs(ratio - whole / np.float32(k)), np.float32(np.inf))
        better = error < best
        best = np.where(better, error, best)
        factor = np.where(better, np.float32(k), factor)
        shift = np.where(better, whole, shift)
    codes = blocks.codes * factor.astype(np.uint8)[..., None] + np.maximum(shift, 0).astype(np.uint8)[..., None]
    zero = np.maximum(-shift, 0).astype(np.uint8)
    scales = blocks.scale / factor
    # All weights of a block are off by the same amount.
    errors.add(shift * scales - blocks.offset, squared_norm(blocks), repeat=codes.shape[-1])
    return Encoded(codes=codes, scales=scales, zero_points=zero)


def _with_means(form: Format, blocks: Blocks, errors: Errors) -> Encoded:
    """4-bit affine codes with a whole zero point, and columns for the fractions of the offsets."""
    blocks = _constant_blocks(blocks)
    assert blocks.offset is not None
    count, block = blocks.codes.shape[1:]
    safe = np.where(blocks.scale == 0, np.float32(1), blocks.scale)
    zero: FloatArray = np.clip(np.rint(-blocks.offset / safe), 0, 15)
    fraction = blocks.offset + blocks.scale * zero
    norm = squared_norm(blocks)
    # A block that lies wholly on one side of zero has more than a fraction. Its column would coarsen those of its
    # neighbours, so it is rounded anew and has none.
    far = np.abs(fraction) > FAR * np.abs(blocks.scale)
    if far.any():
        blocks, zero, difference = _rounded_anew(blocks, zero, far)
        errors.add(difference, 0.0)
        fraction = np.where(far, np.float32(0), fraction)
    # The column holds the mean of the block, so its weight is that of the sum times the block size.
    extra = quantize(fraction * np.float32(block), 4, block)
    kept = dequantized(extra)[:, :count] / np.float32(block)
    # All weights of a block are off by the same amount.
    errors.add(kept - fraction, norm, repeat=block)
    unused = form.blocks(count * block) - count - extra.scale.shape[1]
    fill = ((0, 0), (0, unused))
    codes = np.pad(np.concatenate([blocks.codes, extra.codes], axis=1), (*fill, (0, 0)))
    scales = np.pad(np.concatenate([blocks.scale, extra.scale], axis=1), fill)
    zeros = np.pad(np.concatenate([zero, _whole_zero(extra)], axis=1), fill).astype(np.uint8)
    return Encoded(codes=_pack(codes, 4), scales=scales, zero_points=_pack(zeros, 4))


def _rounded_anew(
    blocks: Blocks, zero: FloatArray, chosen: npt.NDArray[np.bool_]
) -> tuple[Blocks, FloatArray, FloatArray]:
    """The chosen blocks get codes, scale and whole zero point of their own; also returns their differences."""
    assert blocks.offset is not None
    centered = blocks.codes[chosen].astype(np.float32)
    source = centered * blocks.scale[chosen][:, None] + blocks.offset[chosen][:, None]
    anew = quantize(source, 4, source.shape[1])
    codes, scale, zeros = blocks.codes.copy(), blocks.scale.copy(), zero.copy()
    codes[chosen] = anew.codes[:, 0]
    scale[chosen] = anew.scale[:, 0]
    zeros[chosen] = _whole_zero(anew)[:, 0]
    rounded = Blocks(codes=codes, scale=scale, offset=blocks.offset, bits=4, center=0)
    return rounded, zeros, dequantized(anew) - source
