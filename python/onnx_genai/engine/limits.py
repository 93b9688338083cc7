"""The memory-limit grammar: ``auto``, bytes, a fraction of capacity, or a number with a unit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from onnx_genai.errors import InvalidArgumentError

__all__ = ["MemoryLimit", "parse_memory_limit"]

_UNITS = {
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
}
_ACCEPTED = "auto, a number of bytes (1073741824), a fraction of capacity (0.5), or a size such as 8GiB, 512MiB, 1.5GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A parsed limit; exactly one of ``size_bytes`` and ``fraction`` is set, or neither for ``auto``."""

    size_bytes: int | None = None
    fraction: float | None = None

    def resolve(self, *, capacity_bytes: int, auto_bytes: int) -> int:
        """Returns bytes. ``capacity_bytes`` is what fractions refer to, ``auto_bytes`` the answer for ``auto``."""
        if self.size_bytes is not None:
            return self.size_bytes
        if self.fraction is not None:
            return int(capacity_bytes * self.fraction)
        return auto_bytes


def parse_memory_limit(value: str | int | float, *, name: str = "memory limit") -> MemoryLimit:
    """Parses a memory limit.

    An integer is bytes, a decimal without unit is a fraction in 0..1 (so ``1`` is one byte and ``1.0`` is all), a unit
    (KiB MiB GiB 1024-based, KB MB GB 1000-based, any case) follows its number directly.

    Raises:
        InvalidArgumentError: Anything else; the text lists what is accepted.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _refuse(name, value)
    if isinstance(value, int):
        return _bytes(name, value, value)
    if isinstance(value, float):
        return _fraction(name, value, value)
    text = value.strip()
    if text.lower() == "auto":
        return MemoryLimit()
    match = re.fullmatch(r"([0-9]{1,30})(\.[0-9]{1,30})?([A-Za-z]+)?", text)
    if match is None:
        raise _refuse(name, value)
    whole, decimals, unit = match.groups()
    if unit is None:
        return _fraction(name, float(text), value) if decimals else _bytes(name, int(whole), value)
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise _refuse(name, value)
    return _bytes(name, round(float(whole + (decimals or "")) * factor) if decimals else int(whole) * factor, value)


def _bytes(name: str, size: int, value: object) -> MemoryLimit:
    if size >= 2**64:
        raise InvalidArgumentError(f"{name} is {value!r}, which overflows u64 (2**64 bytes)")
    if size < 0:
        raise _refuse(name, value)
    return MemoryLimit(size_bytes=size)


def _fraction(name: str, fraction: float, value: object) -> MemoryLimit:
    if not math.isfinite(fraction) or not 0.0 <= fraction <= 1.0:
        raise InvalidArgumentError(f"{name} is {value!r}; a fraction must be within 0.0 and 1.0. Accepted: {_ACCEPTED}")
    return MemoryLimit(fraction=fraction)


def _refuse(name: str, value: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is {value!r}; accepted: {_ACCEPTED}")
