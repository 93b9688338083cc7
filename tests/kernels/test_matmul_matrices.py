"""genai.runtime::MatMulNBits of matrices as MatMulInteger and DequantizeLinear have them, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from tests.kernels.nbits import Quantized, error_bound, make_matrix, silu
from tests.kernels.nbits_node import ours, ours_session
from tests.kernels.test_matmul_nbits import rows_of

EXACT, ROUNDED = 1, 4
"""accuracy_level: float32 activations, and activations rounded to int8."""
ROWS, COLUMNS = 1, 2
"""b_layout: [K, N] and [N, K]."""


def check(weights: Quantized, count: int, level: int) -> None:
    rows = rows_of(count, weights.k, str(weights.scales.dtype))
    found = ours(ours_session([weights], accuracy_level=level), rows)[0]
    wanted = weights.times(rows)
    bound = error_bound(rows, weights, rounded=level == ROUNDED)
    if rows.dtype == np.float16:
        bound = bound + np.abs(wanted) * 2.0**-10 + 2.0**-14
    assert found.shape == (count, weights.n)
    assert (np.abs(found - wanted) <= bound).all(), np.max(np.abs(found - wanted) / bound)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("zero_points", ["", "one", "each"])
@pytest.mark.parametrize("one_scale", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
def test_product_is_that_of_dequantized_weights(
    layout: int, signed: bool, one_scale: bool, zero_points: Literal["", "one", "each"], level: int
) -> None:
    for n, k in ((48, 128), (33, 100), (1, 7), (70, 192)):
        weights = make_matrix(
            n, k, layout=layout, signed=signed, one_scale=one_scale, zero_points=zero_points, bias=n == 33
        )
        for count in (1, 5, 40):
            check(weights, count, level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
@pytest.mark.parametrize("k", [1, 3, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 300])
def test_any_length_of_sums_and_number_of_columns(k: int, layout: int, level: int) -> None:
    for n in (1, 2, 15, 31, 32, 33, 97):
        check(make_matrix(n, k, layout=layout, signed=n % 2 == 0, zero_points="each"), 6, level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_blocks_of_rows_that_share_a_scale(block_size: int, layout: int, signed: bool, bits: int, level: int) -> None:
    options: dict[str, Any] = {"layout": layout, "signed": signed, "bits": bits, "block_size": block_size}
    for n, k in ((33, 2 * block_size), (5, 3 * block_size - 7), (64, 40)):
        for zero_points in ("", "each"):
            check(make_matrix(n, k, zero_points=zero_points, **options), 5, level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
def test_four_bits_with_one_scale_a_column(layout: int, signed: bool, level: int) -> None:
    for n, k in ((1, 1), (1, 2), (2, 1), (3, 5), (33, 99), (40, 64)):
        for one_scale, zero_points in ((False, "each"), (False, ""), (True, "one"), (True, "")):
            options: dict[str, Any] = {"one_scale": one_scale, "zero_points": zero_points}
            check(make_matrix(n, k, bits=4, layout=layout, signed=signed, **options), 3, level)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
def test_float16_activations_scales_and_bias(layout: int, level: int) -> None:
    check(make_matrix(45, 96, layout=layout, zero_points="each", bias=True, dtype="float16"), 5, level)


def test_scale_of_a_column_is_not_rounded() -> None:
    """Of numbers that int8 and bfloat16 hold exactly, the product is exact but for its last rounding."""
    weights = make_matrix(40, 256, zero_points="each")
    rows = np.random.default_rng(3).integers(-127, 128, (3, 256)).astype(np.float32)
    rows[:, ::128] = 127  # the largest of each block, so that the step is 1
    wanted = weights.times(rows)

    for marks in (None, [1, 1, 1]):
        found = ours(ours_session([weights], prompt_rows=marks is not None), rows, marks)[0]
        np.testing.assert_allclose(found, wanted, rtol=2.0**-21)


@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
def test_rows_of_prompts_are_the_product_of_dequantized_weights(layout: int) -> None:
    for n, k, count in ((45, 128, 1), (33, 300, 40), (70, 1300, 17)):
        weights = make_matrix(n, k, layout=layout, zero_points="each", bias=True)
        rows = rows_of(count, k)
        found = ours(ours_session([weights], prompt_rows=True), rows, [1] * count)[0]
        assert (np.abs(found - weights.times(rows)) <= error_bound(rows, weights, rounded=True, tiles=True)).all()


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
def test_parts_are_the_products_by_themselves(layout: int, level: int) -> None:
    parts = [
        make_matrix(50, 96, layout=layout, zero_points="each"),
        make_matrix(17, 96, layout=layout, one_scale=True, bias=True),
        make_matrix(33, 96, layout=layout, zero_points="one"),
    ]
    together = ours_session(parts, accuracy_level=level, threads=2)
    alone = [ours_session([part], accuracy_level=level) for part in parts]
    for size in (1, 5, 40):
        rows = rows_of(size, 96)
        for found, session in zip(ours(together, rows), alone, strict=True):
            np.testing.assert_array_equal(found, ours(session, rows)[0])


def test_swiglu_is_silu_of_the_first_part_times_the_second() -> None:
    gate, up = (make_matrix(50, 96, bias=True, zero_points="each", seed=seed) for seed in (0, 1))
    rows = rows_of(5, 96)
    (found,) = ours(ours_session([gate, up], accuracy_level=EXACT, swiglu=True), rows)

    errors = [error_bound(rows, part, rounded=False) for part in (gate, up)]
    values = [part.times(rows) for part in (gate, up)]
    bound = 1.1 * errors[0] * (np.abs(values[1]) + errors[1]) + np.abs(silu(values[0])) * errors[1] + 2.0**-14
    wanted = silu(values[0]) * values[1]
    assert (np.abs(found - wanted) <= bound + np.abs(wanted) * 2.0**-20).all()


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
def test_row_has_the_same_bits_alone_and_in_any_company(level: int) -> None:
    weights = make_matrix(77, 300, zero_points="each", bias=True)
    session = ours_session([weights], accuracy_level=level)
    rows = rows_of(64, 300)
    alone = np.concatenate([ours(session, rows[place : place + 1])[0] for place in range(len(rows))])

    for count in (2, 8, 17, 64):
        np.testing.assert_array_equal(ours(session, rows[:count])[0], alone[:count])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"b_layout": 3}, "b_layout is 3; 0, 1 and 2 are known"),
        ({"b_layout": 0, "block_size": 32}, "b_signed needs a b_layout of 1 or 2"),
        ({"b_layout": 0, "b_signed": 0}, "block_size is 0"),
        ({"block_size": 24}, "block_size is 24"),
        ({"block_size": 32}, "scales has 20 elements; 40 are needed"),
        ({"K": 65}, "B has 1280 elements; 1300 are needed"),
        ({"bits": 4}, "B has 1280 elements; 640 are needed"),
    ],
)
def test_wrong_attributes_are_told_when_the_session_is_made(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(Exception, match=text):
        ours_session([make_matrix(20, 64)], **changed)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS])
@pytest.mark.parametrize("bits", [4, 8])
def test_parts_may_be_columns_of_one_matrix(bits: int, layout: int, level: int) -> None:
    whole = make_matrix(91, 96, layout=layout, bits=bits, zero_points="each")
    pieces = {"N": 50, "N_1": 33, "N_2": 7, "b_columns": 91, "b_first": 0, "b_first_1": 50, "b_first_2": 84}
    session = ours_session([whole] * 3, accuracy_level=level, **pieces)
    rows = rows_of(5, 96)
    wanted, bound = whole.times(rows), error_bound(rows, whole, rounded=level == ROUNDED)

    for place, found in zip((slice(0, 50), slice(50, 83), slice(84, 91)), ours(session, rows), strict=True):
        assert (np.abs(found - wanted[:, place]) <= bound[:, place]).all()


def test_columns_that_the_matrix_does_not_have_are_told() -> None:
    with pytest.raises(Exception, match="N is 7 from column 14 on; B has 20"):
        ours_session([make_matrix(20, 64)], N=7, b_columns=20, b_first=14)


def test_wrong_number_of_zero_points_is_told() -> None:
    weights = replace(make_matrix(20, 64), zero_points=np.zeros(7, np.uint8))
    with pytest.raises(Exception, match="zero_points has 7 elements; 20 are needed"):
        ours_session([weights])
