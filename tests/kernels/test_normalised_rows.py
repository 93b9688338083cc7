"""genai.runtime::MatMulNBits that normalises its rows, with a residual sum before that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.kernels.nbits import Quantized, error_bound, make_weights, silu
from tests.kernels.nbits_node import ours, ours_session
from tests.kernels.operator import DOMAIN, make_session
from tests.kernels.test_matmul_nbits import EXACT, PATTERNS, ROUNDED, rows_of

Array = npt.NDArray[Any]
EPSILON = 1e-5
NORM_WEIGHT, SKIP = 15, 16
_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def norm_weight(k: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(k).uniform(0.5, 1.5, k).astype(dtype)


def session(
    parts: Sequence[Quantized],
    *,
    accuracy_level: int = ROUNDED,
    skip: bool = True,
    swiglu: bool = False,
    threads: int = 1,
    weight: Array | None = None,
    **changed: Any,
) -> onnxruntime.InferenceSession:
    """One node, whose outputs are those of its products and, with ``skip``, the sum."""
    first, dtype = parts[0], str(parts[0].scales.dtype)
    weight = norm_weight(first.k, dtype) if weight is None else weight
    inputs, initializers = ["a"], [numpy_helper.from_array(weight, "w")]
    for place, part in enumerate(parts):
        for name, content in (("b", part.data), ("s", part.scales), ("z", part.zero_points), ("bias", part.bias)):
            inputs.append("" if content is None else f"{name}{place}")
            if content is not None:
                initializers.append(numpy_helper.from_array(content, inputs[-1]))
    inputs += [""] * (13 - len(inputs)) + ["rows", "", "w", *(["skip"] if skip else [])]
    names = ["y0"] if swiglu else [f"y{place}" for place in range(len(parts))]
    outputs = [*names, *[""] * (4 - len(names)), "sum"] if skip else names
    attributes = {
        "K": first.k,
        "N": first.n,
        "bits": first.bits,
        "block_size": first.block_size,
        "accuracy_level": accuracy_level,
        "norm_epsilon": EPSILON,
        "norm_skip": int(skip),
        "swiglu": int(swiglu),
        **{f"N_{place}": part.n for place, part in enumerate(parts[1:], 1)},
        **changed,
    }
    node = helper.make_node("MatMulNBits", inputs, outputs, name="product", domain=DOMAIN, **attributes)
    kind = _TYPES[dtype]
    graph = helper.make_graph(
        [node],
        "g",
        [
            *(helper.make_tensor_value_info(name, kind, None) for name in ("a", *(["skip"] if skip else []))),
            helper.make_tensor_value_info("rows", TensorProto.INT32, None),
        ],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs if name],
        initializers,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return make_session(model.SerializeToString(), threads)


def run(made: onnxruntime.InferenceSession, a: Array, skip: Array | None = None, marks: Any = 0) -> list[Array]:
    """All outputs; ``marks``: which rows are of prompts."""
    count = a.size // a.shape[-1]
    given = {"a": a, "rows": np.broadcast_to(np.asarray(marks, np.int32), [count])}
    return [np.asarray(output) for output in made.run(None, given | ({} if skip is None else {"skip": skip}))]


def normalised(total: Array, weight: Array) -> Array:
    total = total.astype(np.float64)
    return np.asarray(total / np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + EPSILON) * weight)


def residual(count: int, k: int, dtype: str = "float32") -> tuple[Array, Array]:
    return rows_of(count, k, dtype, seed=5), rows_of(count, k, dtype, seed=6)


def check(weights: Quantized, count: int, *, level: int, skip: bool, prompt: bool = False) -> None:
    dtype = str(weights.scales.dtype)
    a, other = residual(count, weights.k, dtype)
    made = session([weights], accuracy_level=level, skip=skip)
    found, *sums = run(made, a, other if skip else None, prompt)

    total = a.astype(np.float64) + (other if skip else 0)
    rows = normalised(total, norm_weight(weights.k, dtype))
    wanted = weights.times(rows)
    bound = error_bound(rows, weights, rounded=level == ROUNDED, tiles=prompt)
    # Rows that are off by a few roundings, and of integers one that falls to the other side.
    bound += 2.0**-20 * (np.abs(rows) @ np.abs(weights.dense()).T) * (2 if level == EXACT else 8)
    rounding = 0.0
    if dtype == "float16":
        rounding = 2.0**-10
        bound = bound + np.abs(wanted) * rounding + 2.0**-14
    assert (np.abs(found - wanted) <= bound).all()
    for kept in sums:
        np.testing.assert_allclose(kept, total, rtol=max(rounding, 2.0**-23), atol=2.0**-22)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("level", [EXACT, ROUNDED])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_product_is_that_of_normalised_rows(dtype: str, level: int, skip: bool) -> None:
    for n, k, block_size, count in ((48, 64, 32, 1), (33, 300, 32, 5), (20, 40, 16, 40), (7, 129, 128, 3)):
        weights = make_weights(n, k, block_size=block_size, zero_points=True, bias=True, dtype=dtype)
        check(weights, count, level=level, skip=skip)


@pytest.mark.parametrize("skip", [False, True])
def test_rows_of_prompts_are_normalised(skip: bool) -> None:
    for n, k, count in ((48, 64, 1), (33, 300, 40), (70, 1300, 17)):
        check(make_weights(n, k, zero_points=True, bias=True), count, level=ROUNDED, skip=skip, prompt=True)


def test_each_instruction_set_normalises(any_isa: str) -> None:
    assert any_isa
    for dtype in ("float32", "float16"):
        for level in (EXACT, ROUNDED):
            check(make_weights(33, 300, zero_points=True, dtype=dtype), 5, level=level, skip=True)


def test_normalised_rows_give_what_they_give_as_an_input() -> None:
    """With a weight of powers of two and rows whose root mean square is one, nothing is rounded."""
    random = np.random.default_rng(3)
    rows = random.choice(np.array([-1, 1], np.float32), (37, 96))
    weight = (2.0 ** random.integers(-2, 3, 96)).astype(np.float32)
    weights = make_weights(50, 96, bias=True)
    for level in (EXACT, ROUNDED):
        made = session([weights], accuracy_level=level, weight=weight, skip=False, norm_epsilon=0.0)
        wanted = ours(ours_session([weights], accuracy_level=level), rows * weight)[0]
        np.testing.assert_array_equal(run(made, rows)[0], wanted)


@pytest.mark.parametrize("level", [EXACT, ROUNDED])
def test_parts_and_swiglu_share_the_rows(level: int) -> None:
    parts = [make_weights(50, 96, bias=True, seed=seed) for seed in range(3)]
    a, skip = residual(9, 96)
    alone = [run(session([part], accuracy_level=level), a, skip)[0] for part in parts]

    *together, total = run(session(parts, accuracy_level=level, threads=2), a, skip)
    joined, other_total = run(session(parts[:2], accuracy_level=level, swiglu=True), a, skip)

    for found, wanted in zip(together, alone, strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(joined, silu(alone[0].astype(np.float64)) * alone[1], rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(total, a + skip)
    np.testing.assert_array_equal(other_total, a + skip)


@pytest.mark.parametrize("threads", [1, 2])
def test_row_has_the_same_bits_in_any_company(threads: int) -> None:
    weights = make_weights(77, 160, bias=True)
    made = session([weights], threads=threads)
    a, skip = residual(max(map(len, PATTERNS)), 160)
    known = {kind: run(made, a, skip, kind == "p")[0] for kind in "pd"}
    for pattern in PATTERNS:
        rows = slice(0, len(pattern))
        found, total = run(made, a[rows], skip[rows], [kind == "p" for kind in pattern])
        np.testing.assert_array_equal(found, [known[kind][row] for row, kind in enumerate(pattern)])
        np.testing.assert_array_equal(total, (a + skip)[rows])


@pytest.mark.parametrize("shape", [(4, 64), (1, 4, 64)])
def test_skip_of_fewer_rows_repeats(shape: tuple[int, ...]) -> None:
    a, skip = rows_of(12, 64), rows_of(4, 64, seed=8)
    made = session([make_weights(20, 64)])
    wanted = run(made, a, np.tile(skip, (3, 1)))

    found = run(made, a.reshape(3, 4, 64), skip.reshape(shape))

    for one, other in zip(found, wanted, strict=True):
        assert one.shape[:2] == (3, 4)
        np.testing.assert_array_equal(one.reshape(other.shape), other)


def test_no_rows_give_no_rows() -> None:
    made = session([make_weights(20, 64)])
    found = run(made, np.zeros((1, 0, 64), np.float32), np.zeros((1, 0, 64), np.float32))
    assert [output.shape for output in found] == [(1, 0, 20), (1, 0, 64)]


@pytest.mark.parametrize("shape", [(5, 64), (8, 32), (0, 64)])
def test_skip_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="it must have the rows of A"):
        run(session([make_weights(20, 64)]), rows_of(4, 64), np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"weight": np.ones(63, np.float32)}, "a norm_weight that is a constant of K elements"),
        ({"norm_epsilon": -1.0}, "norm_skip needs norm_epsilon"),
    ],
)
def test_wrong_norms_are_told_when_the_session_is_made(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(Exception, match=text):
        session([make_weights(20, 64)], **changed)
