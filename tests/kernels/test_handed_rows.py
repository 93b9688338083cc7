"""genai.runtime::MatMulNBits with swiglu that gives its rows to the next product in the form that it multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.kernels.nbits import Quantized, make_matrix
from tests.kernels.operator import make_session
from tests.kernels.test_matmul_nbits import rows_of

DOMAIN = "genai.runtime"


def session(gate: Quantized, up: Quantized, down: Quantized, block: int) -> onnxruntime.InferenceSession:
    """silu(a gate) * (a up), times down; ``block`` 0 passes all rows as numbers."""
    initializers = []

    def constants(part: Quantized, name: str) -> list[str]:
        for letter, content in (("b", part.data), ("s", part.scales)):
            initializers.append(numpy_helper.from_array(content, f"{letter}.{name}"))
        return [f"b.{name}", f"s.{name}", "", ""]

    def attributes(part: Quantized) -> dict[str, Any]:
        found = {"K": part.k, "N": part.n, "bits": part.bits, "block_size": part.block_size, "accuracy_level": 4}
        return found | {"b_layout": part.layout, "b_signed": int(part.signed)}

    first = ["a", *constants(gate, "gate"), *constants(up, "up"), *[""] * 4, "rows"]
    second = ["h", *constants(down, "down"), *[""] * 8, "rows", *(["handed"] if block else [])]
    more = {"N_1": up.n, "swiglu": 1} | ({"handed_block": block} if block else {})
    nodes = [
        helper.make_node(
            "MatMulNBits", first, ["h", "", "", "handed"] if block else ["h"], domain=DOMAIN, **attributes(gate), **more
        ),
        helper.make_node("MatMulNBits", second, ["y"], domain=DOMAIN, **attributes(down)),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("rows", TensorProto.INT32, None),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return make_session(model.SerializeToString(), threads=2)


def matrices(hidden: int, inner: int, block_size: int) -> tuple[Quantized, Quantized, Quantized]:
    return (
        make_matrix(inner, hidden, block_size=32),
        make_matrix(inner, hidden, block_size=32, seed=2),
        make_matrix(hidden, inner, block_size=block_size, seed=3),
    )


@pytest.mark.parametrize("which", ["none", "all", "some"])
@pytest.mark.parametrize(
    ("hidden", "inner", "block_size", "count"),
    [(64, 96, 32, 1), (64, 96, 32, 37), (32, 640, 64, 31), (96, 1280, 128, 65), (32, 32, 16, 530)],
)
def test_rows_have_the_bits_that_they_have_without(
    hidden: int, inner: int, block_size: int, count: int, which: str
) -> None:
    parts = matrices(hidden, inner, block_size)
    rows = rows_of(count, hidden)
    marks: npt.NDArray[np.int32] = np.full(count, which == "all", np.int32)
    if which == "some":
        marks[::3] = 1
    given = {"a": rows, "rows": marks}

    wanted = session(*parts, 0).run(None, given)[0]
    found = session(*parts, block_size).run(None, given)[0]

    assert np.isfinite(wanted).all()
    np.testing.assert_array_equal(found, wanted)


def test_each_instruction_set_keeps_the_bits(any_isa: str) -> None:
    for inner, block_size in ((640, 32), (640, 16), (640, 128)):
        parts = matrices(96, inner, block_size)
        given = {"a": rows_of(33, 96), "rows": np.arange(33, dtype=np.int32) % 2}
        wanted = session(*parts, 0).run(None, given)[0]
        np.testing.assert_array_equal(session(*parts, block_size).run(None, given)[0], wanted)


def test_no_rows_give_none() -> None:
    found = session(*matrices(64, 96, 32), 32).run(
        None, {"a": np.zeros((0, 64), np.float32), "rows": np.zeros(0, np.int32)}
    )[0]
    assert found.shape == (0, 64)


@pytest.mark.parametrize("block", [-32, 8, 48, 64])
def test_blocks_that_do_not_fit_are_refused(block: int) -> None:
    with pytest.raises(Exception, match="handed_block needs swiglu, accuracy_level 4, and N of whole blocks"):
        session(*matrices(64, 96, 32), block)


@pytest.mark.parametrize("block", [16, 64])
def test_rows_for_other_blocks_are_refused(block: int) -> None:
    given = {"a": np.zeros((1, 64), np.float32), "rows": np.zeros(1, np.int32)}
    with pytest.raises(Exception, match="the rows handed over must have"):
        session(*matrices(64, 128, 32), block).run(None, given)
