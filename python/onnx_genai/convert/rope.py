"""Rotary position tables: cosine and sine for every position of the context.

The angles are made the way the checkpoints' own code makes them, in float32, so that long contexts give the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnx_genai.convert.gguf_file import FloatArray
from onnx_genai.errors import PackageError, UnsupportedError

__all__ = ["SCALINGS", "Rope", "rope_tables"]

SCALINGS = ("none", "linear", "yarn", "longrope")
"""Values of ``rope.scaling.type`` that are understood; Llama 3 scaling comes as a tensor of factors instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How the layers that share one table rotate."""

    base: float
    dims: int
    """Rotated dimensions of a head, even."""
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    """Context of the pre-training; yarn needs it."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    divisors: FloatArray | None = None
    """float32 ``[dims / 2]`` that divide the frequencies (Llama 3, longrope)."""
    magnitude: float = 1.0
    """Multiplies cosine and sine."""

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise UnsupportedError(f"rope.scaling.type is {self.scaling!r}; known: {', '.join(SCALINGS)}")
        if self.base <= 0 or self.factor <= 0 or self.dims < 2 or self.dims % 2:
            raise PackageError(
                f"rope base {self.base}, factor {self.factor}, dimensions {self.dims}; "
                "expected positive numbers and an even count"
            )
        if self.divisors is not None and (self.divisors.shape != (self.dims // 2,) or not (self.divisors > 0).all()):
            raise PackageError(
                f"rope factors have shape {self.divisors.shape}; expected {self.dims // 2} positive ones"
            )
        if self.scaling == "yarn" and self.original_context < 1:
            raise PackageError("rope.scaling.original_context_length is missing; yarn scaling needs it")


def rope_tables(rope: Rope, length: int) -> tuple[FloatArray, FloatArray]:
    """Cosine and sine, float32 ``[length, dims / 2]``.

    Source: Su et al. 2021; yarn: Peng et al. 2023, sections 3.2 to 3.4.
    """
    exponent = np.arange(0, rope.dims, 2, dtype=np.float32) / np.float32(rope.dims)
    frequency = (1.0 / np.power(np.float32(rope.base), exponent)).astype(np.float32)
    if rope.divisors is not None:
        frequency = frequency / rope.divisors
    if rope.scaling == "linear":
        frequency = frequency / np.float32(rope.factor)
    elif rope.scaling == "yarn":
        frequency = _yarn(rope, frequency)
    angle = np.arange(length, dtype=np.float32)[:, None] * frequency.astype(np.float32)[None]
    exact = angle.astype(np.float64)
    magnitude = rope.magnitude
    return (np.cos(exact) * magnitude).astype(np.float32), (np.sin(exact) * magnitude).astype(np.float32)


def _yarn(rope: Rope, frequency: FloatArray) -> FloatArray:
    """Slow dimensions are interpolated, fast ones kept, with a ramp between the two turn counts."""

    def dimension(turns: float) -> float:
        ratio = rope.original_context / (turns * 2 * math.pi)
        return rope.dims * math.log(ratio) / (2 * math.log(rope.base))

    low = max(math.floor(dimension(rope.beta_fast)), 0)
    high = min(math.ceil(dimension(rope.beta_slow)), rope.dims - 1)
    span = high - low if high > low else 0.001
    ramp = np.clip((np.arange(rope.dims // 2, dtype=np.float32) - low) / span, 0, 1).astype(np.float32)
    blended: FloatArray = frequency / np.float32(rope.factor) * ramp + frequency * (1 - ramp)
    return blended
