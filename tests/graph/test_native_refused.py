"""Quantized products that stay with ONNX Runtime say why; weights and the rest of the graph are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_genai.errors import InvalidArgumentError, UnsupportedError
from onnx_genai.graph import CacheStyle, describe, resolve
from onnx_genai.package import read
from tests.graph.native_cases import GATES, IDS, SHAPE, assert_same, mlp, native, products
from tests.graph.native_reference import compute, compute_contract
from tests.graph.quantized_forms import HIDDEN, VOCAB, Builder, node
from tests.graph.tiny import save, value
from tests.kernels.nbits import make_weights


def computed_weights(graph: Builder) -> None:
    made = make_weights(VOCAB, HIDDEN, block_size=16)
    graph.constant("raw", made.data)
    graph.add(node("Identity", ["raw"], "data"))
    graph.constant("scales", made.scales)
    graph.add(_product(["hidden", "data", "scales"]))


def float_zero_points(graph: Builder) -> None:
    made = make_weights(VOCAB, HIDDEN, block_size=16)
    names = [graph.constant("data", made.data), graph.constant("scales", made.scales)]
    graph.add(_product(["hidden", *names, graph.constant("zeros", np.full((VOCAB, 3), 7.5, np.float32))]))


def ordered(graph: Builder) -> None:
    made = make_weights(VOCAB, HIDDEN, block_size=16)
    names = [graph.constant("data", made.data), graph.constant("scales", made.scales)]
    graph.add(_product(["hidden", *names, "", graph.constant("order", np.arange(HIDDEN, dtype=np.int32))]))


def two_bits(graph: Builder) -> None:
    data = graph.constant("data", np.zeros((VOCAB, 3, 4), np.uint8))
    scales = graph.constant("scales", np.ones((VOCAB, 3), np.float32))
    graph.add(_product(["hidden", data, scales], bits=2))


def prepacked(graph: Builder) -> None:
    graph.product("hidden", "logits", attributes={"weight_prepacked": 1})


def wrong_size(graph: Builder) -> None:
    data = graph.constant("data", np.zeros((VOCAB, 3, 8), np.uint8))
    graph.add(_product(["hidden", data, graph.constant("scales", np.ones((VOCAB, 2), np.float32))]))


def bfloat16_scales(graph: Builder) -> None:
    data = graph.constant("data", np.zeros((VOCAB, 3, 8), np.uint8))
    tensor = helper.make_tensor("scales", TensorProto.BFLOAT16, [VOCAB, 3], np.ones(VOCAB * 3))
    graph.initializers.append(tensor)
    graph.add(_product(["hidden", data, "scales"]))


def _product(inputs: list[str], **attributes: int) -> onnx.NodeProto:
    given = {"K": HIDDEN, "N": VOCAB, "bits": 4, "block_size": 16, **attributes}
    return node("MatMulNBits", inputs, "logits", "com.microsoft", **given)


REFUSED: dict[Callable[[Builder], None], str] = {
    computed_weights: "node.logits has weights that are computed",
    float_zero_points: "node.logits has zero_points of float",
    ordered: "node.logits has g_idx, an order of its columns",
    two_bits: "node.logits has weights of 2 bits",
    prepacked: "node.logits has weights that are packed for other hardware",
    wrong_size: "node.logits has scales of 24 elements, not 36",
    bfloat16_scales: "node.logits has scales of bfloat16",
}


@pytest.mark.parametrize("form", REFUSED)
def test_product_that_cannot_be_replaced_says_why(tmp_path: Path, form: Callable[[Builder], None]) -> None:
    graph = Builder()
    form(graph)
    package = read(save(graph.build(), tmp_path))

    contract = resolve(package, backend="auto")
    with pytest.raises(UnsupportedError, match="backend is 'native'") as error:
        resolve(package, backend="native")

    assert contract.products.problems == (REFUSED[form],)
    assert (contract.products.nodes, contract.products.replaced, contract.products.backend) == (1, 0, "ort")
    assert REFUSED[form] in str(error.value)
    assert contract.model_bytes == resolve(package, backend="ort").model_bytes


def test_products_inside_branches_and_functions_stay_and_are_counted(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "logits")
    inner = Builder()
    inner.product("hidden", "inner")
    inner.product("hidden", "inner2")
    branches = [
        helper.make_graph(inner.nodes[place : place + 1], name, [], [value(out, 1, SHAPE)], inner.initializers[1:])
        for place, (name, out) in enumerate((("a", "inner"), ("b", "inner2")), 1)
    ]
    graph.constant("yes", np.array(True))
    graph.add(node("If", ["yes"], "seen", then_branch=branches[0], else_branch=branches[1]))
    graph.output("seen")
    contract = native(graph, tmp_path)

    assert (contract.products.nodes, contract.products.replaced) == (3, 1)
    assert contract.products.problems == ("node.inner2 is inside a graph of If (2 such nodes)",)
    assert_same(graph, contract)


INT8 = np.random.default_rng(4).integers(-127, 127, (HIDDEN, VOCAB), np.int8)


def integers(graph: Builder) -> None:
    graph.constant("head", INT8)
    graph.add(
        helper.make_node("DynamicQuantizeLinear", ["hidden"], ["a", "a.scale", "a.zero"]),
        node("MatMulInteger", ["a", "head", "a.zero"], "sums"),
        node("Cast", ["sums"], "floats", to=TensorProto.FLOAT),
        node("Mul", ["floats", "a.scale"], "logits"),
    )


def quantized_by_gemm(graph: Builder) -> None:
    names = [graph.constant(name, value) for name, value in (("s", np.float32(0.1)), ("z", np.int8(0)))]
    rows, head = graph.constant("rows", INT8[:1].astype(np.int8)), graph.constant("head", INT8)
    graph.add(node("QGemm", [rows, *names, head, *names], "logits", "com.microsoft"))


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (
            integers,
            "node.sums is MatMulInteger whose sums are not multiplied with the scales of activations and weights",
        ),
        (quantized_by_gemm, "node.logits is QGemm, whose weights have another layout"),
    ],
)
def test_quantized_products_of_other_layouts_are_named(
    tmp_path: Path, form: Callable[[Builder], None], why: str
) -> None:
    graph = Builder()
    form(graph)
    package = read(save(graph.build(), tmp_path))

    products = resolve(package, backend="auto").products
    with pytest.raises(UnsupportedError, match=why):
        resolve(package, backend="native")

    assert (products.nodes, products.replaced, products.problems) == (1, 0, (why,))


def test_native_refuses_a_graph_without_quantized_products(tmp_path: Path) -> None:
    graph = Builder()
    graph.constant("head", np.ones((HIDDEN, VOCAB), np.float32))
    graph.add(node("MatMul", ["hidden", "head"], "logits"))
    package = read(save(graph.build(), tmp_path))

    with pytest.raises(UnsupportedError, match="no quantized matrix products"):
        resolve(package, backend="native")
    assert resolve(package, backend="auto").products.nodes == 0


def test_backend_ort_leaves_the_graph_and_says_so(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "logits")
    contract = resolve(read(save(graph.build(), tmp_path)), backend="ort")

    assert products(contract) == []
    assert contract.products.problems == ("the backend is ort",)
    assert describe(contract)["products"]["backend"] == "ort"


def test_unknown_backend_is_refused(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "logits")
    with pytest.raises(InvalidArgumentError, match="backend is 'fast'; allowed: auto, ort, native"):
        resolve(read(save(graph.build(), tmp_path)), backend="fast")  # type: ignore[arg-type]


def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    graph = mlp(Builder(), GATES["gate_times_sigmoid"], zero_points=True)
    made = graph.build()
    contract = native(made, tmp_path, external=True)

    rewritten = onnx.load_from_string(contract.model_bytes).graph
    held = {tensor.name: tensor for tensor in rewritten.initializer}
    for product in products(contract):
        for name in product.input[1:]:
            assert not name or held[name].data_location == TensorProto.EXTERNAL
    assert contract.external_folder == tmp_path
    assert_same(graph, contract)


def test_graph_is_described_by_operators_and_kernels(tmp_path: Path) -> None:
    contract = native(mlp(Builder(), GATES["gate_times_sigmoid"]), tmp_path)

    facts = describe(contract)
    assert facts["operators"] == {"genai.runtime": {"MatMulNBits": 2}, "onnxruntime": {"Gather": 1, "Slice": 1}}
    assert facts["products"] == {
        "backend": "native",
        "nodes": 3,
        "replaced": 3,
        "joined": 2,
        "swiglu": 1,
        "norms": 0,
        "biases": 0,
        "kinds": ("4 bits, block 16: 3",),
        "problems": (),
    }


def test_float16_products_are_replaced(tmp_path: Path) -> None:
    graph = mlp(Builder(dtype="float16"), GATES["gate_times_sigmoid"])
    contract = native(graph, tmp_path)

    assert contract.products.replaced == 3
    before = compute(graph.build(), {"input_ids": IDS})[0][:, -1:]
    np.testing.assert_allclose(compute_contract(contract, {"input_ids": IDS})[0], before, rtol=0.01, atol=0.01)


def test_cache_style_is_not_changed(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "logits")

    assert native(graph, tmp_path).cache is CacheStyle.NONE
