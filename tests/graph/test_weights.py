"""A reshaped tensor of a weight file is a second reference to it, not a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_genai.graph.weights import reshape_references
from tests.graph.native_cases import IDS, native, operators
from tests.graph.native_reference import compute, compute_contract
from tests.graph.quantized_forms import HIDDEN, VOCAB, Builder, node

DIMS = [6, 4, 5]


def graph_of(target: list[int], *, external: bool = True, **attributes: int) -> onnx.GraphProto:
    """Reshape of a tensor [6, 4, 5] that lies in a file from byte 32 on."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=DIMS)
    if external:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.data"), ("offset", "32"), ("length", "480")):
            tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=value))
    else:
        tensor.raw_data = bytes(480)
    shape = helper.make_tensor("shape", TensorProto.INT64, [len(target)], target)
    return helper.make_graph(
        [
            helper.make_node("Reshape", ["w", "shape"], ["wide"], **attributes),
            helper.make_node("Neg", ["wide"], ["y"]),
        ],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor, shape],
    )


@pytest.mark.parametrize(
    ("target", "dims"),
    [
        ([6, 20], [6, 20]),
        ([-1, 5], [24, 5]),
        ([0, -1], [6, 20]),
        ([0, 0, 0], DIMS),
        ([120], [120]),
    ],
)
def test_reshaped_tensor_is_a_reference_to_the_same_bytes(target: list[int], dims: list[int]) -> None:
    graph = graph_of(target)

    assert reshape_references(graph)

    assert [item.op_type for item in graph.node] == ["Neg"]
    made = next(tensor for tensor in graph.initializer if tensor.name == "wide")
    assert list(made.dims) == dims
    assert {entry.key: entry.value for entry in made.external_data} == {
        "location": "w.data", "offset": "32", "length": "480",
    }  # fmt: skip


@pytest.mark.parametrize("target", [[7, 20], [-1, -1], [-1, 7], [6, 4, 5, 0], [-2, -60], [0, 0, 0, 0]])
def test_sizes_that_do_not_fit_stay_for_onnxruntime_to_refuse(target: list[int]) -> None:
    graph = graph_of(target)

    assert not reshape_references(graph)
    assert len(graph.node) == 2


def test_zero_that_means_nothing_is_left_alone() -> None:
    assert not reshape_references(graph_of([0, 20], allowzero=1))


def test_tensor_inside_the_model_is_left_alone() -> None:
    assert not reshape_references(graph_of([6, 20], external=False))


def test_output_of_the_graph_is_left_alone() -> None:
    graph = graph_of([6, 20])
    graph.output.append(helper.make_tensor_value_info("wide", TensorProto.FLOAT, None))
    assert not reshape_references(graph)


def test_rewritten_model_reads_the_tensor_in_both_shapes(tmp_path: Path) -> None:
    graph = Builder()
    graph.constant("head", np.random.default_rng(2).standard_normal((VOCAB, HIDDEN, 20)).astype(np.float32))
    graph.add(
        helper.make_node("Constant", [], ["flat"], value=helper.make_tensor("f", TensorProto.INT64, [2], [HIDDEN, -1])),
        node("ReduceSum", ["head"], "total", keepdims=0),
        node("Reshape", ["head", "flat"], "wide"),
        node("ReduceMean", ["wide"], "mean", keepdims=0),
        node("Add", ["total", "mean"], "both"),
    )
    graph.product("hidden", "plain")
    graph.add(node("Mul", ["plain", "both"], "logits"))
    contract = native(graph, tmp_path, external=True)

    assert "Reshape" not in operators(contract)
    before = compute(graph.build(), {"input_ids": IDS})[0]
    logits = before[:, -1:] if contract.last_logits_only else before
    np.testing.assert_allclose(compute_contract(contract, {"input_ids": IDS})[0], logits, rtol=1e-5)
