"""What ``multipleOf`` may cost: :func:`check_multiples`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from onnx_genai.errors import InvalidArgumentError

__all__ = ["MAX_MULTIPLE", "check_multiples"]

MAX_MULTIPLE = 10_000
"""Remainders that a schema may tell apart: a grammar has a state for each, and takes minutes for a million."""


def check_multiples(schema: Mapping[str, Any]) -> None:
    """Bounds the work and the memory of compiling: both grow with the remainders, together for all ``multipleOf``.

    Parts that meet in one place (``allOf``, ``anyOf``, references) multiply theirs; which do is not looked at.

    Raises:
        InvalidArgumentError: It is above :data:`MAX_MULTIPLE`.
    """
    common, seen = 1, []
    for each in _multiples(schema):
        if each not in seen and each > 1:
            seen.append(each)
        common = math.lcm(common, each)
        if common > MAX_MULTIPLE:
            numbers = ", ".join(map(_short, seen))
            together = f"with {_short(common)} as their least common multiple " if len(seen) > 1 else ""
            raise InvalidArgumentError(
                f"the JSON schema has multipleOf {numbers} (decimals as fractions without their denominator), "
                f"{together}which is too expensive to enforce; allowed: up to {MAX_MULTIPLE} for a whole schema. Take "
                "multipleOf out of the schema and check the number yourself"
            )


def _multiples(schema: Any) -> Iterator[int]:
    """Numerators of all that stands under ``multipleOf``: references reach everything, ``default`` and such as well."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key != "multipleOf" or isinstance(value, (bool, Mapping, list)):
                yield from _multiples(value)
            elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
                yield max(abs(Fraction(Decimal(str(value)) if isinstance(value, float) else value).numerator), 1)
    elif isinstance(schema, (list, tuple)):
        for item in schema:
            yield from _multiples(item)


def _short(number: int) -> str:
    return str(number) if number < 10**18 else "one of more than 18 digits"
