"""The memory-limit grammar."""

from __future__ import annotations

import pytest

from onnx_genai.engine import parse_memory_limit
from onnx_genai.errors import InvalidArgumentError

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "size_bytes", "fraction"),
    [
        ("auto", None, None),
        (" AUTO ", None, None),
        ("8GiB", 8 * GIB, None),
        ("1.5gb", 1_500_000_000, None),
        ("512KiB", 512 * 1024, None),
        ("0.9", None, 0.9),
        ("1", 1, None),
        ("1.0", None, 1.0),
        (4096, 4096, None),
        (0.25, None, 0.25),
    ],
)
def test_accepted(text: str | int | float, size_bytes: int | None, fraction: float | None) -> None:
    limit = parse_memory_limit(text)

    assert (limit.size_bytes, limit.fraction) == (size_bytes, fraction)


@pytest.mark.parametrize(
    "text", ["1TiB", "1 GiB", "-1", "1G", "1Gi", "5B", "", "1.5", "nan", "one", -1, 1.5, True, "99999999999999999GiB"]
)
def test_rejected_with_what_is_accepted(text: str | int | float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"8GiB|u64"):
        parse_memory_limit(text)


def test_resolve_uses_capacity_for_fractions_and_the_given_value_for_auto() -> None:
    assert parse_memory_limit("0.5").resolve(capacity_bytes=100, auto_bytes=7) == 50
    assert parse_memory_limit("auto").resolve(capacity_bytes=100, auto_bytes=7) == 7
    assert parse_memory_limit("64").resolve(capacity_bytes=100, auto_bytes=7) == 64
