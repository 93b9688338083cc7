"""genai.runtime::MatMulNBits against float64, ONNX Runtime's own operator, and itself in other company."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.nbits import Quantized, error_bound, make_weights, silu
from tests.kernels.nbits_node import ours, ours_session, theirs

Array = npt.NDArray[Any]

BLOCKS = [16, 32, 64, 128, 256]
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 70]
COMPANY = [1, 2, 5, 8, 16, 17, 33, 64, 100]
EXACT, ROUNDED = 1, 4
"""accuracy_level: float32 activations, and activations rounded to int8."""


def rows_of(count: int, k: int, dtype: str = "float32", seed: int = 1) -> Array:
    """Normal numbers, some rows with an outlier, as activations have."""
    random = np.random.default_rng([seed, count, k])
    rows = random.standard_normal((count, k))
    rows[::3, random.integers(0, k)] *= 20
    return rows.astype(dtype)


def check(weights: Quantized, rows: Array, level: int) -> None:
    found = ours(ours_session([weights], accuracy_level=level), rows)[0]
    assert found.dtype == rows.dtype
    bound = error_bound(rows, weights, rounded=level == ROUNDED)
    wanted = weights.times(rows)
    if rows.dtype == np.float16:
        bound = bound + np.abs(wanted) * 2.0**-10 + 2.0**-14
    assert np.abs(found - wanted).max() > 0 or level == EXACT
    assert (np.abs(found - wanted) <= bound).all(), np.max(np.abs(found - wanted) / bound)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("bits", [4, 8])
def test_product_is_that_of_dequantized_weights(bits: int, block_size: int, level: int) -> None:
    for count in (1, 5, 40):
        for zero_points in (False, True):
            weights = make_weights(48, 2 * block_size, bits=bits, block_size=block_size, zero_points=zero_points)
            check(weights, rows_of(count, weights.k), level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("n", [1, 2, 7, 15, 16, 17, 31, 33, 50, 97])
def test_any_number_of_columns(n: int, level: int) -> None:
    for count in (1, 6, 40):
        check(make_weights(n, 96, zero_points=True, bias=True), rows_of(count, 96), level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [1, 3, 16, 17, 31, 33, 40, 65, 100, 129, 300])
def test_any_length_of_sums(k: int, bits: int, level: int) -> None:
    for block_size in (16, 32, 128):
        for count in (1, 40):
            weights = make_weights(33, k, bits=bits, block_size=block_size, zero_points=True)
            check(weights, rows_of(count, k), level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("count", ROWS)
def test_any_number_of_rows(count: int, level: int) -> None:
    check(make_weights(70, 160, bias=True), rows_of(count, 160), level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("bits", [4, 8])
def test_float16_activations_scales_and_bias(bits: int, level: int) -> None:
    for count in (1, 5, 40):
        weights = make_weights(45, 96, bits=bits, zero_points=True, bias=True, dtype="float16")
        check(weights, rows_of(count, 96, "float16"), level)


def test_float16_node_between_casts_keeps_its_constants() -> None:
    """ONNX Runtime runs such a node with float32 operands, casts of its scales and bias among them."""
    weights = make_weights(45, 96, zero_points=True, bias=True, dtype="float16")
    rows = rows_of(5, 96)
    found = ours(ours_session([weights], cast=True), rows)[0]

    half = rows.astype(np.float16)
    bound = error_bound(half, weights, rounded=True) + np.abs(weights.times(half)) * 2.0**-9
    assert (np.abs(found - weights.times(half)) <= bound + np.abs(rows - half).max()).all()


def test_dimensions_before_the_last_are_kept() -> None:
    weights = make_weights(20, 64)
    session = ours_session([weights])
    rows = rows_of(12, 64)

    flat = ours(session, rows)[0]
    for shape in ((1, 12), (12, 1), (3, 4), (2, 3, 2)):
        (found,) = ours(session, rows.reshape(*shape, 64))
        assert found.shape == (*shape, 20)
        np.testing.assert_array_equal(found.reshape(12, 20), flat)
    assert ours(session, rows[0])[0].shape == (20,)


@pytest.mark.parametrize("shape", [(0, 64), (1, 0, 64), (0, 3, 64)])
def test_no_rows_give_no_rows(shape: tuple[int, ...]) -> None:
    session = ours_session([make_weights(20, 64), make_weights(3, 64)])

    first, second = ours(session, np.zeros(shape, np.float32))
    assert (first.shape, second.shape) == ((*shape[:-1], 20), (*shape[:-1], 3))


def mixed_parts(count: int, **options: Any) -> list[Quantized]:
    """Parts of different widths, of which only some have a bias."""
    widths = (50, 17, 33)[:count]
    return [make_weights(n, 96, bias=place == 1, seed=place, **options) for place, n in enumerate(widths)]


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_parts_are_the_products_by_themselves(bits: int, count: int, level: int) -> None:
    parts = mixed_parts(count, bits=bits, zero_points=True)
    together = ours_session(parts, accuracy_level=level)
    alone = [ours_session([part], accuracy_level=level) for part in parts]
    for size in (1, 5, 40):
        rows = rows_of(size, 96)
        for found, session in zip(ours(together, rows), alone, strict=True):
            np.testing.assert_array_equal(found, ours(session, rows)[0])


def test_parts_may_differ_in_having_zero_points() -> None:
    parts = [make_weights(20, 64, zero_points=True), make_weights(24, 64), make_weights(5, 64, zero_points=True)]
    rows = rows_of(3, 64)
    for found, part in zip(ours(ours_session(parts, accuracy_level=EXACT), rows), parts, strict=True):
        assert (np.abs(found - part.times(rows)) <= error_bound(rows, part, rounded=False)).all()


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_swiglu_is_silu_of_the_first_part_times_the_second(dtype: str, bits: int, level: int) -> None:
    parts = [make_weights(50, 96, bits=bits, bias=True, seed=seed, dtype=dtype) for seed in (0, 1)]
    session = ours_session(parts, accuracy_level=level, swiglu=True)
    for size in (1, 5, 40):
        rows = rows_of(size, 96, dtype)
        (found,) = ours(session, rows)
        gate, up = (part.times(rows) for part in parts)
        gate_error, up_error = (error_bound(rows, part, rounded=level == ROUNDED) for part in parts)
        # The slope of silu is below 1.1, and its value below that of its argument.
        bound = 1.1 * gate_error * (np.abs(up) + up_error) + np.abs(silu(gate)) * up_error
        bound += np.abs(silu(gate) * up) * (2.0**-9 if dtype == "float16" else 2.0**-20) + 2.0**-14
        assert found.shape == (size, 50)
        assert (np.abs(found - silu(gate) * up) <= bound).all()


def test_swiglu_of_large_gates_does_not_overflow() -> None:
    parts = [make_weights(16, 32, seed=seed) for seed in (0, 1)]
    rows = np.full((2, 32), 1e4, np.float32)
    rows[1] *= -1
    gate, up = (part.times(rows) for part in parts)
    (found,) = ours(ours_session(parts, accuracy_level=EXACT, swiglu=True), rows)

    with np.errstate(over="ignore"):
        wanted = silu(gate) * up
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("bits", [4, 8])
def test_row_has_the_same_bits_alone_and_in_any_company(bits: int, level: int, threads: int) -> None:
    for block_size, k in ((32, 160), (16, 100), (128, 300)):
        weights = make_weights(77, k, bits=bits, block_size=block_size, zero_points=block_size == 32, bias=True)
        session = ours_session([weights], accuracy_level=level, threads=threads)
        rows = rows_of(max(COMPANY), k)
        alone = np.concatenate([ours(session, rows[place : place + 1])[0] for place in range(len(rows))])
        for count in COMPANY:
            for start in (0, len(rows) - count):
                found = ours(session, rows[start : start + count])[0]
                np.testing.assert_array_equal(found, alone[start : start + count])


PATTERNS = ["p", "d", "dp", "pd", "ppppdpp", "d" * 20 + "p" * 40, "p" * 33 + "d" * 5 + "p" * 7, "pd" * 40, "p" * 530]
"""Rows of prompts and rows of decodes, in the order of a step."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_row_of_a_prompt_has_the_same_bits_in_any_company(bits: int, swiglu: bool, threads: int) -> None:
    """It may be computed otherwise than a decode's, but not otherwise in other company."""
    for block_size, k in ((32, 160), (16, 100), (128, 300), (32, 1100)):
        options: dict[str, Any] = {"bits": bits, "block_size": block_size, "bias": True}
        parts = [make_weights(77, k, seed=seed, zero_points=seed == 1, **options) for seed in range(2)]
        session = ours_session(parts, swiglu=swiglu, threads=threads, prompt_rows=True)
        rows = rows_of(max(map(len, PATTERNS)), k)
        known = {kind: ours(session, rows, [kind == "p"] * len(rows)) for kind in "pd"}
        for pattern in PATTERNS:
            marks = [kind == "p" for kind in pattern]
            for start in (0, len(rows) - len(pattern)):
                found = ours(session, rows[start : start + len(pattern)], marks)
                for place, output in enumerate(found):
                    wanted = [known[kind][place][start + row] for row, kind in enumerate(pattern)]
                    np.testing.assert_array_equal(output, np.array(wanted))


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_prompts_are_the_product_of_dequantized_weights(bits: int, block_size: int) -> None:
    for n, k, count in ((45, 2 * block_size, 1), (33, 300, 40), (70, 1300, 17)):
        weights = make_weights(n, k, bits=bits, block_size=block_size, zero_points=True, bias=True)
        rows = rows_of(count, k)
        found = ours(ours_session([weights], prompt_rows=True), rows, [1] * count)[0]
        bound = error_bound(rows, weights, rounded=True, tiles=True)
        assert (np.abs(found - weights.times(rows)) <= bound).all()


def test_marks_that_are_not_one_a_row_are_not_used() -> None:
    weights = make_weights(20, 64)
    rows = rows_of(12, 64)
    wanted = ours(ours_session([weights]), rows)[0]

    np.testing.assert_array_equal(ours(ours_session([weights], prompt_rows=True), rows, [1, 1, 1])[0], wanted)


def test_exact_product_is_the_same_for_prompts() -> None:
    weights = make_weights(20, 64)
    rows = rows_of(12, 64)
    session = ours_session([weights], accuracy_level=EXACT, prompt_rows=True)

    np.testing.assert_array_equal(ours(session, rows, [1] * 12)[0], ours(session, rows, [0] * 12)[0])


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
def test_row_has_the_same_bits_with_any_number_of_threads(level: int) -> None:
    parts = [make_weights(333, 256, seed=seed) for seed in (0, 1)]
    rows = rows_of(33, 256)
    one, two, three = (
        ours_session(parts, accuracy_level=level, swiglu=True, threads=count) for count in (1, 2, 3)
    )  # fmt: skip
    for count in (1, 5, 33):
        wanted = ours(one, rows[:count])[0]
        np.testing.assert_array_equal(ours(two, rows[:count])[0], wanted)
        np.testing.assert_array_equal(ours(three, rows[:count])[0], wanted)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("bits", [4, 8])
def test_other_rows_may_be_anything(bits: int, level: int) -> None:
    """NaN and infinity stay in their rows."""
    session = ours_session([make_weights(40, 64, bits=bits)], accuracy_level=level)
    rows = rows_of(20, 64)
    wanted = ours(session, rows)[0]
    spoilt = rows.copy()
    spoilt[::2, 5] = np.nan
    spoilt[::4, 9] = np.inf

    np.testing.assert_array_equal(ours(session, spoilt)[0][1::2], wanted[1::2])


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
def test_rows_of_zeros_give_the_bias(level: int) -> None:
    weights = make_weights(40, 64, bias=True, zero_points=True)
    for count in (1, 5, 40):
        found = ours(ours_session([weights], accuracy_level=level), np.zeros((count, 64), np.float32))[0]
        np.testing.assert_array_equal(found, np.broadcast_to(weights.bias, (count, 40)))  # type: ignore[arg-type]


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("bits", [4, 8])
def test_as_exact_as_the_operator_of_onnxruntime(bits: int, block_size: int) -> None:
    """Root mean square error against float64, both with activations rounded to int8."""
    weights = make_weights(65, 3 * block_size, bits=bits, block_size=block_size, zero_points=True)
    rows = rows_of(24, weights.k)
    wanted = weights.times(rows)

    own = ours(ours_session([weights]), rows)[0] - wanted
    other = theirs(weights, rows) - wanted

    floor = 1e-5 * np.sqrt(np.mean(wanted**2))
    assert np.sqrt(np.mean(own**2)) <= max(1.1 * np.sqrt(np.mean(other**2)), floor)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"bits": 2}, "bits"),
        ({"block_size": 24}, "block_size"),
        ({"K": 0}, "K"),
        ({"N": 21}, "B has 640 elements; 672 are needed"),
        ({"K": 128}, "B has 640 elements; 1280 are needed"),
        ({"swiglu": 1}, "swiglu"),
    ],
)
def test_wrong_attributes_are_told_when_the_session_is_made(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(Exception, match=text):
        ours_session([make_weights(20, 64)], **changed)


def test_rows_of_another_length_are_refused() -> None:
    session = ours_session([make_weights(20, 64)])

    with pytest.raises(Exception, match="64"):
        ours(session, np.zeros((2, 63), np.float32))


@pytest.mark.parametrize("bits", [4, 8])
def test_each_instruction_set_gives_the_product(any_isa: str, bits: int) -> None:
    for level in (EXACT, ROUNDED):
        for block_size, n, k, count in ((32, 70, 160, 1), (32, 33, 300, 40), (16, 17, 100, 5), (128, 45, 300, 17)):
            weights = make_weights(n, k, bits=bits, block_size=block_size, zero_points=block_size != 128, bias=True)
            check(weights, rows_of(count, k), level)
        half = make_weights(45, 96, bits=bits, zero_points=True, bias=True, dtype="float16")
        check(half, rows_of(5, 96, "float16"), level)


@pytest.mark.parametrize("bits", [4, 8])
def test_each_instruction_set_gives_parts_swiglu_and_rows_of_prompts(any_isa: str, bits: int) -> None:
    parts = [make_weights(50, 160, bits=bits, bias=True, seed=seed) for seed in (0, 1)]
    rows = rows_of(40, 160)
    gate, up = ours(ours_session(parts, threads=2, prompt_rows=True), rows, [0] * 40)
    for found, part in zip((gate, up), parts, strict=True):
        assert (np.abs(found - part.times(rows)) <= error_bound(rows, part, rounded=True)).all()

    (joined,) = ours(ours_session(parts, swiglu=True), rows)
    np.testing.assert_allclose(joined, silu(gate.astype(np.float64)) * up, rtol=2e-5, atol=2e-5)

    of_prompt = ours(ours_session(parts, threads=2, prompt_rows=True), rows, [1] * 40)
    for found, part in zip(of_prompt, parts, strict=True):
        bound = error_bound(rows, part, rounded=True, tiles=any_isa == "amx")
        assert (np.abs(found - part.times(rows)) <= bound).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_each_instruction_set_keeps_the_bits_of_a_row_in_any_company(any_isa: str, bits: int) -> None:
    for level in (EXACT, ROUNDED):
        session = ours_session([make_weights(77, 160, bits=bits, bias=True)], accuracy_level=level, threads=2)
        rows = rows_of(33, 160)
        together = ours(session, rows)[0]
        for count in (1, 2, 5, 16):
            np.testing.assert_array_equal(ours(session, rows[-count:])[0], together[-count:])
