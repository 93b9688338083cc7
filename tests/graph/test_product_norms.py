"""RMS norms, and the residual sums before them, become part of the products that read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.native_cases import GATES, INNER, SHAPE, assert_same, attributes, native, operators, products
from tests.graph.quantized_forms import HIDDEN, VOCAB, Builder, node
from tests.graph.tiny import value

OPSET = 23
WEIGHT = np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32)


def epsilon_of(item: onnx.NodeProto) -> float:
    (found,) = (attribute.f for attribute in item.attribute if attribute.name == "norm_epsilon")
    return found


def skip_norm(
    graph: Builder, left: str, right: str, output: str, *, total: str = "", more: tuple[str, ...] = (), **given: float
) -> None:
    inputs = [left, right, graph.constant(f"{output}.w", WEIGHT), *more]
    outputs = [output, "", "", total] if total else [output]
    graph.add(helper.make_node("SkipSimplifiedLayerNormalization", inputs, outputs, domain="com.microsoft", **given))


def norm(graph: Builder, source: str, output: str, op_type: str = "RMSNormalization", **given: float) -> None:
    graph.add(node(op_type, [source, graph.constant(f"{output}.w", WEIGHT)], output, **given))


@pytest.mark.parametrize(
    ("op_type", "given", "epsilon"),
    [
        ("SimplifiedLayerNormalization", {}, 1e-5),
        ("SimplifiedLayerNormalization", {"epsilon": 0.25, "axis": -1, "stash_type": 1}, 0.25),
        ("RMSNormalization", {}, 1e-5),
        ("RMSNormalization", {"epsilon": 0.5}, 0.5),
    ],
)
def test_norm_becomes_part_of_the_product_behind_it(
    tmp_path: Path, op_type: str, given: dict[str, float], epsilon: float
) -> None:
    graph = Builder(opset=OPSET)
    norm(graph, "hidden", "x", op_type, **given)
    graph.product("x", "y", INNER, zero_points=True)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    first, _ = products(contract)
    assert list(first.input) == ["hidden", "y.q", "y.s", "y.z", *[""] * 11, "x.w"]
    assert list(first.output) == ["y"]
    assert epsilon_of(first) == np.float32(epsilon)
    assert "norm_skip" not in attributes(first)
    assert op_type not in operators(contract)
    assert contract.products.norms == 1
    assert_same(graph, contract)


def layer(graph: Builder, *, total: str = "sum") -> Builder:
    """Attention-like and gated products with a residual around each; ``total`` names the first sum."""
    norm(graph, "hidden", "n0")
    for name, width in (("q", 24), ("k", 7), ("v", 5)):
        graph.product("n0", name, width)
    graph.add(node("Concat", ["q", "k", "v"], "joined", axis=-1))
    graph.product("joined", "o", HIDDEN, 36)
    skip_norm(graph, "hidden", "o", "n1", total=total, epsilon=1e-6)
    graph.product("n1", "gate", INNER)
    graph.product("n1", "up", INNER)
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "down", HIDDEN, INNER)
    skip_norm(graph, total or "hidden", "down", "n2")
    graph.product("n2", "logits")
    return graph


def test_residual_of_a_layer_becomes_part_of_its_products(tmp_path: Path) -> None:
    graph = layer(Builder(opset=OPSET))
    graph.output("sum")
    contract = native(graph, tmp_path)

    first, _, gated, _, last = products(contract)
    assert (first.input[0], first.input[15], list(first.output)) == ("hidden", "n0.w", ["q", "k", "v"])
    assert (gated.input[0], *gated.input[15:]) == ("hidden", "n1.w", "o")
    assert list(gated.output) == ["y", "", "", "", "sum"]
    assert (attributes(gated)["norm_skip"], attributes(gated)["swiglu"]) == (1, 1)
    assert epsilon_of(gated) == np.float32(1e-6)
    assert list(last.input) == ["genai.last_logits.0.rows", "logits.q", "logits.s"]
    assert contract.products.norms == 2
    assert operators(contract).count("SkipSimplifiedLayerNormalization") == 1  # of which one row is taken
    assert_same(graph, contract)


def test_sum_that_nothing_reads_gets_a_name(tmp_path: Path) -> None:
    graph = layer(Builder(opset=OPSET), total="")
    contract = native(graph, tmp_path)

    gated = products(contract)[2]
    assert list(gated.output) == ["y", "", "", "", "genai.n1.sum"]
    assert_same(graph, contract)


def test_sum_may_be_read_before_the_first_product_stands(tmp_path: Path) -> None:
    graph = Builder(opset=OPSET)
    skip_norm(graph, "hidden", "hidden", "x", total="sum")
    graph.add(node("Neg", ["sum"], "less"))
    graph.product("x", "y", HIDDEN)
    graph.add(node("Add", ["less", "y"], "z"))
    graph.product("z", "logits")
    contract = native(graph, tmp_path)

    assert products(contract)[0].output[-1] == "sum"
    assert_same(graph, contract)


def test_packed_products_normalise_too(tmp_path: Path) -> None:
    graph = Builder(opset=OPSET)
    norm(graph, "hidden", "n")
    graph.product("n", "both", 2 * INNER)
    graph.add(
        helper.make_node("Split", ["both", graph.constant("sizes", np.array([INNER, INNER]))], ["gate", "up"], axis=-1)
    )
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert (contract.products.norms, contract.products.swiglu) == (1, 1)
    assert_same(graph, contract)


def test_weight_in_a_constant_node_becomes_an_initializer(tmp_path: Path) -> None:
    graph = Builder(opset=OPSET)
    norm(graph, "hidden", "x")
    tensor = graph.initializers.pop()
    graph.nodes.insert(1, helper.make_node("Constant", [], ["x.w"], value=tensor))
    graph.product("x", "y", INNER)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert contract.products.norms == 1
    assert "Constant" not in operators(contract)
    assert_same(graph, contract)


def mixed(*nodes: onnx.NodeProto, source: str = "h") -> Builder:
    """A float16 product behind a norm of ``source`` whose weight is float16; ``hidden`` is float32."""
    graph = Builder(opset=OPSET)
    graph.dtype = "float16"
    graph.add(*nodes)
    graph.constant("w", WEIGHT.astype(np.float16))
    graph.add(node("SimplifiedLayerNormalization", [source, "w"], "x"))
    graph.product("x", "y", INNER)
    graph.product("y", "logits", VOCAB, INNER)
    graph.outputs = [value("logits", onnx.TensorProto.FLOAT16, ("batch", "new", VOCAB))]
    return graph


def test_norm_from_float32_to_float16_stays(tmp_path: Path) -> None:
    contract = native(mixed(source="hidden"), tmp_path)

    assert contract.products.norms == 0
    norm_node, *_ = [item for item in onnx.load_from_string(contract.model_bytes).graph.node if item.output[0] == "x"]
    assert (norm_node.op_type, list(norm_node.input)) == ("SimplifiedLayerNormalization", ["hidden", "w"])


def test_norm_behind_a_cast_to_the_type_of_the_product_becomes_part_of_it(tmp_path: Path) -> None:
    graph = mixed(node("Cast", ["hidden"], "h", to=onnx.TensorProto.FLOAT16))

    assert native(graph, tmp_path).products.norms == 1


@pytest.mark.parametrize(("stated", "norms"), [(None, 0), ("FLOAT", 0), ("FLOAT16", 1)])
def test_source_of_an_operator_that_tells_no_type_counts_as_stated(
    tmp_path: Path, stated: str | None, norms: int
) -> None:
    to = onnx.TensorProto.FLOAT16 if stated == "FLOAT16" else onnx.TensorProto.FLOAT
    graph = mixed(node("Cast", ["hidden"], "c", to=to), node("Softplus", ["c"], "h")).build()
    if stated is not None:
        graph.graph.value_info.append(value("h", onnx.TensorProto.DataType.Value(stated), SHAPE))

    assert native(graph, tmp_path).products.norms == norms


@pytest.mark.parametrize(
    "form",
    [
        [node("Add", ["hidden", "hidden"], "h")],
        [node("Mul", ["hidden", "e"], "h"), node("Softplus", ["hidden"], "e")],
        [node("Reshape", ["hidden", "e"], "h"), node("Shape", ["hidden"], "e")],
        [
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                ["hidden", "hidden", "ones"],
                ["e", "", "", "h"],
                domain="com.microsoft",
            )
        ],
    ],
)
def test_residual_without_stated_type_has_that_of_what_makes_it(tmp_path: Path, form: list[onnx.NodeProto]) -> None:
    graph = Builder(opset=OPSET)
    graph.constant("ones", np.ones(HIDDEN, np.float32))
    graph.add(*reversed(form))
    norm(graph, "h", "x")
    graph.product("x", "y", INNER)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert contract.products.norms == 1
    assert_same(graph, contract)


def _another_reader(graph: Builder) -> None:
    norm(graph, "hidden", "x")
    graph.add(node("Neg", ["x"], "seen"))
    graph.output("seen")


def _output(graph: Builder) -> None:
    norm(graph, "hidden", "x")
    graph.output("x")


def _other_products(graph: Builder) -> None:
    norm(graph, "hidden", "x")
    graph.product("x", "seen", bits=8)
    graph.output("seen")


def _four_products(graph: Builder) -> None:
    norm(graph, "hidden", "x")
    for name in ("a", "b", "c"):
        graph.product("x", name)
        graph.output(name)


def _captured(graph: Builder) -> None:
    norm(graph, "hidden", "x")
    branches = [
        helper.make_graph([helper.make_node(op_type, ["x"], [name])], name, [], [value(name, 1, SHAPE)])
        for op_type, name in (("Identity", "inner"), ("Neg", "outer"))
    ]
    graph.constant("yes", np.array(True))
    graph.add(node("If", ["yes"], "seen", then_branch=branches[0], else_branch=branches[1]))
    graph.output("seen")


def _other_axis(graph: Builder) -> None:
    graph.add(node("RMSNormalization", ["hidden", graph.constant("w", np.ones(HIDDEN, np.float32))], "x", axis=1))


def _one_weight(graph: Builder) -> None:
    graph.add(node("RMSNormalization", ["hidden", graph.constant("w", np.ones(1, np.float32))], "x"))


def _computed_weight(graph: Builder) -> None:
    graph.add(node("Identity", [graph.constant("raw", WEIGHT)], "w"))
    graph.add(node("RMSNormalization", ["hidden", "w"], "x"))


def _bias(graph: Builder) -> None:
    skip_norm(graph, "hidden", "hidden", "x", more=(graph.constant("b", WEIGHT),))


def _size_is_read(graph: Builder) -> None:
    skip_norm(graph, "hidden", "hidden", "x", total="sum")
    graph.nodes[-1].output[2] = "size"
    graph.output("size")


def _negative_epsilon(graph: Builder) -> None:
    norm(graph, "hidden", "x", epsilon=-1e-9)


def _centred(graph: Builder) -> None:
    norm(graph, "hidden", "x", "LayerNormalization")


@pytest.mark.parametrize(
    "form",
    [
        _another_reader,
        _output,
        _other_products,
        _four_products,
        _captured,
        _other_axis,
        _one_weight,
        _computed_weight,
        _bias,
        _size_is_read,
        _negative_epsilon,
        _centred,
    ],
)  # fmt: skip
def test_other_norms_stay(tmp_path: Path, form: Callable[[Builder], None]) -> None:
    graph = Builder(opset=OPSET)
    form(graph)
    graph.product("x", "y", INNER)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert contract.products.norms == 0
    assert any("Normalization" in name for name in operators(contract))
    assert_same(graph, contract)
