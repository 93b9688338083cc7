"""Products with integer weights become nodes of our operator that compute the same, without rounded activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_genai.graph import CacheStyle, GraphContract, resolve
from onnx_genai.package import read
from tests.graph.integer_forms import CHAINS, dequantized, dynamic, embedding, held, quantized
from tests.graph.native_cases import GATES, IDS, INNER, attributes, native, operators, products
from tests.graph.native_reference import compute_contract
from tests.graph.quantized_forms import HIDDEN, VOCAB, Builder, node
from tests.graph.tiny import save
from tests.kernels.nbits import make_matrix, silu

ROUNDED = 4
"""accuracy_level of products whose activations may be rounded."""


def hidden(graph: Builder) -> np.ndarray:
    return embedding(graph)[IDS].astype(np.float64)


def assert_logits(graph: Builder, contract: GraphContract, wanted: np.ndarray) -> None:
    """The rewritten graph computes these logits, and is valid."""
    if contract.last_logits_only:
        wanted = wanted[:, -1:]
    np.testing.assert_allclose(compute_contract(contract, {"input_ids": IDS})[0], wanted, rtol=2e-6, atol=2e-6)
    rewritten = onnx.load_from_string(contract.model_bytes)
    onnx.load_external_data_for_model(rewritten, str(contract.external_folder))
    onnx.checker.check_model(rewritten)


@pytest.mark.parametrize("chain", CHAINS)
def test_dynamically_quantized_product_becomes_one_node(tmp_path: Path, chain: str) -> None:
    graph = Builder()
    made = make_matrix(VOCAB, HIDDEN, zero_points="each")
    dynamic(graph, "hidden", "logits", made, chain)
    contract = native(graph, tmp_path)

    (product,) = products(contract)
    assert operators(contract) == ["Gather", "Slice", "MatMulNBits"]
    assert (product.name, list(product.output)) == ("node.logits.sums", ["logits"])
    assert attributes(product) == {
        "K": HIDDEN, "N": VOCAB, "bits": 8, "block_size": 0, "accuracy_level": ROUNDED, "b_layout": 1, "b_signed": 1,
    }  # fmt: skip
    assert contract.products.kinds == ("8 bits, whole columns: 1",)
    assert (contract.products.nodes, contract.products.replaced, contract.products.problems) == (1, 1, ())
    assert_logits(graph, contract, made.times(hidden(graph)))


KINDS = [
    (dynamic, False, ""), (dynamic, False, "one"), (dynamic, False, "each"),
    (dynamic, True, ""), (dynamic, True, "one"), (dynamic, True, "each"),
    (dequantized, False, ""), (dequantized, False, "each"), (dequantized, True, ""), (dequantized, True, "one"),
]  # fmt: skip
"""Form, whether there is one scale, zero points: those of DequantizeLinear have the shape of its scales."""


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("form", "one_scale", "zero_points"), KINDS)
def test_each_kind_of_weights_is_understood(
    tmp_path: Path, form: Any, one_scale: bool, zero_points: Literal["", "one", "each"], signed: bool
) -> None:
    graph = Builder()
    made = make_matrix(VOCAB, HIDDEN, signed=signed, one_scale=one_scale, zero_points=zero_points)
    form(graph, "hidden", "logits", made)
    contract = native(graph, tmp_path)

    assert attributes(products(contract)[0])["accuracy_level"] == ROUNDED
    assert_logits(graph, contract, made.times(hidden(graph)))


@pytest.mark.parametrize("transposes", [0, 1])
@pytest.mark.parametrize("block_size", [0, 16, 32, 64])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("zero_points", ["", "each"])
def test_weights_in_blocks_and_of_four_bits(
    tmp_path: Path, zero_points: Literal["", "each"], signed: bool, bits: int, block_size: int, transposes: int
) -> None:
    graph = Builder(opset=21)
    options: dict[str, Any] = {"bits": bits, "signed": signed, "block_size": block_size, "zero_points": zero_points}
    made = make_matrix(VOCAB, HIDDEN, layout=1 + transposes, **options)
    dequantized(graph, "hidden", "logits", made, transposes=transposes)
    contract = native(graph, tmp_path)

    scales = f"block {block_size}" if 0 < block_size < HIDDEN else "whole columns"
    assert contract.products.kinds == (f"{bits} bits, {scales}: 1",)
    assert operators(contract) == ["Gather", "Slice", "MatMulNBits"]
    assert attributes(products(contract)[0])["b_layout"] == 1 + transposes
    assert_logits(graph, contract, made.times(hidden(graph)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", ["", "vector", "row"])
def test_gemm_of_dequantized_weights(tmp_path: Path, bias: str, transposed: bool) -> None:
    graph = Builder()
    made = make_matrix(VOCAB, HIDDEN, layout=2 if transposed else 1, zero_points="each")
    graph.constant("flat", np.array([-1, HIDDEN]))
    graph.constant("full", np.array([IDS.shape[0], -1, VOCAB]))
    graph.constant("b", np.arange(VOCAB, dtype=np.float32).reshape((1, -1) if bias == "row" else -1))
    graph.add(
        node("Reshape", ["hidden", "flat"], "rows"),
        node("DequantizeLinear", held(graph, "w", made), "dense", axis=0 if transposed else 1),
        node("Gemm", ["rows", "dense", "b"] if bias else ["rows", "dense"], "y", transB=int(transposed)),
        node("Reshape", ["y", "full"], "logits"),
    )
    contract = native(graph, tmp_path)

    added = ["Add"] if bias == "row" else []
    assert operators(contract) == ["Gather", "Reshape", "MatMulNBits", *added, "Reshape"]
    assert contract.products.biases == (bias == "vector")
    assert_logits(graph, contract, made.times(hidden(graph)) + (np.arange(VOCAB) if bias else 0))


def test_operators_of_onnxruntime_for_dynamic_products(tmp_path: Path) -> None:
    graph = Builder()
    first, second = (make_matrix(n, k, zero_points="one", one_scale=True) for n, k in ((INNER, HIDDEN), (VOCAB, INNER)))
    rows, scale, zero = quantized(graph, "hidden")
    weights, scales, zeros = held(graph, "first", first)
    graph.constant("bias", np.arange(INNER, dtype=np.float32))
    graph.add(
        node("MatMulIntegerToFloat", [rows, weights, scale, scales, zero, zeros, "bias"], "x", "com.microsoft"),
        node("DynamicQuantizeMatMul", ["x", *held(graph, "second", second)], "logits", "com.microsoft"),
    )
    contract = native(graph, tmp_path)

    assert operators(contract) == ["Gather", "MatMulNBits", "Slice", "MatMulNBits"]
    assert (contract.products.replaced, contract.products.biases) == (2, 1)
    assert_logits(graph, contract, second.times(first.times(hidden(graph)) + np.arange(INNER)))


@pytest.mark.parametrize("form", [dynamic, dequantized])
def test_products_of_one_value_become_one_node_with_biases(tmp_path: Path, form: Any) -> None:
    graph = Builder()
    widths = {"q": 24, "k": 7, "v": 5}
    parts = {name: make_matrix(n, HIDDEN, zero_points="each", seed=n) for name, n in widths.items()}
    for name, made in parts.items():
        form(graph, "hidden", f"{name}.product", made)
        bias = graph.constant(f"{name}.b", np.full(made.n, made.n, np.float32))
        graph.add(node("Add", [bias, f"{name}.product"], name))
    graph.add(node("Concat", list(parts), "joined", axis=-1))
    last = make_matrix(VOCAB, 36)
    form(graph, "joined", "logits", last)
    contract = native(graph, tmp_path)

    first, _ = products(contract)
    assert [attributes(first)[name] for name in ("N", "N_1", "N_2")] == [24, 7, 5]
    assert list(first.output) == ["q", "k", "v"]
    assert (contract.products.replaced, contract.products.joined, contract.products.biases) == (4, 2, 3)
    joined = np.concatenate([made.times(hidden(graph)) + made.n for made in parts.values()], axis=-1)
    assert_logits(graph, contract, last.times(joined))


@pytest.mark.parametrize("form", [dynamic, dequantized])
@pytest.mark.parametrize("gate", GATES)
def test_gate_and_up_become_one_node(tmp_path: Path, gate: str, form: Any) -> None:
    graph = Builder()
    parts = [make_matrix(INNER, HIDDEN, seed=seed) for seed in (1, 2)]
    for name, made in zip(("gate", "up"), parts, strict=True):
        form(graph, "hidden", name, made)
    GATES[gate](graph)
    last = make_matrix(VOCAB, INNER)
    form(graph, "y", "logits", last)
    contract = native(graph, tmp_path)

    assert (contract.products.joined, contract.products.swiglu) == (2, 1)
    first, second = (made.times(hidden(graph)) for made in parts)
    assert_logits(graph, contract, last.times(silu(first) * second))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("block_size", [0, 16])
def test_packed_gate_and_up_become_one_node(tmp_path: Path, block_size: int, layout: int, bits: int) -> None:
    graph = Builder(opset=21)
    both = make_matrix(2 * INNER, HIDDEN, layout=layout, bits=bits, block_size=block_size, zero_points="each")
    dequantized(graph, "hidden", "product", both, transposes=layout - 1)
    bias = np.arange(2 * INNER, dtype=np.float32) / 50
    graph.add(node("Add", ["product", graph.constant("bias", bias)], "both"))
    graph.add(
        helper.make_node("Split", ["both", graph.constant("sizes", np.array([INNER] * 2))], ["gate", "up"], axis=-1)
    )
    GATES["gate_times_sigmoid"](graph)
    last = make_matrix(VOCAB, INNER)
    dequantized(graph, "y", "logits", last)
    contract = native(graph, tmp_path)

    assert operators(contract) == ["Gather", "MatMulNBits", "Slice", "MatMulNBits"]
    first, _ = products(contract)
    found = attributes(first)
    assert [found[name] for name in ("N", "N_1", "b_columns", "b_first", "b_first_1")] == [24, 24, 48, 0, 24]
    assert (first.input[1], first.input[2]) == (first.input[5], first.input[6])
    gate, up = np.split(both.times(hidden(graph)) + bias, 2, axis=-1)
    assert_logits(graph, contract, last.times(silu(gate) * up))


def test_packed_query_key_and_value_become_one_node(tmp_path: Path) -> None:
    graph = Builder()
    packed = make_matrix(36, HIDDEN, one_scale=True, zero_points="one")
    dynamic(graph, "hidden", "qkv", packed)
    graph.add(
        helper.make_node("Split", ["qkv", graph.constant("sizes", np.array([24, 7, 5]))], ["q", "k", "v"], axis=-1)
    )
    graph.add(node("Concat", ["v", "q", "k"], "joined", axis=-1))
    last = make_matrix(VOCAB, 36)
    dynamic(graph, "joined", "logits", last)
    contract = native(graph, tmp_path)

    assert operators(contract) == ["Gather", "MatMulNBits", "Concat", "Slice", "MatMulNBits"]
    q, k, v = np.split(packed.times(hidden(graph)), [24, 31], axis=-1)
    assert_logits(graph, contract, last.times(np.concatenate([v, q, k], axis=-1)))


def test_quantized_activations_that_others_read_stay(tmp_path: Path) -> None:
    graph = Builder()
    made = make_matrix(VOCAB, HIDDEN)
    dynamic(graph, "hidden", "logits", made)
    graph.outputs.append(helper.make_tensor_value_info("hidden.scale", TensorProto.FLOAT, []))
    contract = native(graph, tmp_path)

    assert "DynamicQuantizeLinear" in operators(contract)
    assert_logits(graph, contract, made.times(hidden(graph)))


def test_weights_that_others_read_stay_and_are_not_copied(tmp_path: Path) -> None:
    """A table is looked up and multiplied with: both read the same bytes of the file."""
    graph = Builder(opset=21)
    made = make_matrix(VOCAB, HIDDEN, layout=2, one_scale=True)
    names = held(graph, "table", made)[:2]
    graph.add(node("DequantizeLinear", names, "dense"), node("Gather", ["dense", "input_ids"], "rows"))
    graph.add(node("Transpose", ["dense"], "turned", perm=[1, 0]), node("MatMul", ["rows", "turned"], "logits"))
    contract = native(graph.build(), tmp_path, external=True)

    assert operators(contract)[1:] == ["DequantizeLinear", "Gather", "Slice", "MatMulNBits"]
    tensors = {tensor.name: tensor for tensor in onnx.load_from_string(contract.model_bytes).graph.initializer}
    places = [
        {entry.key: entry.value for entry in tensors[name].external_data} for name in ("table.q", "genai.bytes.table.q")
    ]
    assert places[0] == places[1] != {}
    assert (tensors["table.q"].data_type, tensors["genai.bytes.table.q"].data_type) == (
        TensorProto.INT8,
        TensorProto.UINT8,
    )
    assert_logits(graph, contract, made.times(made.dense()[IDS]))


def test_weights_that_are_read_no_more_are_taken_out(tmp_path: Path) -> None:
    graph = Builder()
    dynamic(graph, "hidden", "logits", make_matrix(VOCAB, HIDDEN, zero_points="each"))
    contract = native(graph, tmp_path)

    names = {tensor.name for tensor in onnx.load_from_string(contract.model_bytes).graph.initializer}
    assert {name for name in names if "logits" in name} >= {"genai.bytes.logits.q", "genai.bytes.logits.z", "logits.s"}
    assert names.isdisjoint({"logits.q", "logits.z"})


def test_constants_may_be_nodes(tmp_path: Path) -> None:
    graph = Builder()
    made = make_matrix(VOCAB, HIDDEN, zero_points="each")
    dynamic(graph, "hidden", "logits", made)
    constants = [
        helper.make_node("Constant", [], [tensor.name], name=f"node.{tensor.name}", value=tensor)
        for tensor in graph.initializers[1:]
    ]
    first, model = graph.initializers[0], graph.build()
    del model.graph.initializer[:]
    model.graph.initializer.append(first)
    nodes = [*constants, *graph.nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    contract = native(model, tmp_path)

    assert contract.products.replaced == 1
    assert_logits(graph, contract, made.times(hidden(graph)))


def test_float16_weights_behind_dequantize(tmp_path: Path) -> None:
    graph = Builder(dtype="float16", opset=21)
    made = make_matrix(VOCAB, HIDDEN, dtype="float16", zero_points="each")
    dequantized(graph, "hidden", "logits", made)
    contract = native(graph, tmp_path)

    wanted = made.times(hidden(graph))[:, -1:]
    np.testing.assert_allclose(compute_contract(contract, {"input_ids": IDS})[0], wanted, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("entry", "level"), [("0", 0), ("1", 0), ("4", ROUNDED)])
def test_package_may_say_whether_activations_are_rounded(tmp_path: Path, entry: str, level: int) -> None:
    graph = Builder()
    dequantized(graph, "hidden", "logits", make_matrix(VOCAB, HIDDEN))
    package = read(save(graph.build(), tmp_path))
    package.session_options.config_entries["session.qdq_matmulnbits_accuracy_level"] = entry  # type: ignore[index]

    (product,) = products(resolve(package, backend="native"))
    assert attributes(product)["accuracy_level"] == level


def test_backend_ort_counts_them_and_leaves_the_graph(tmp_path: Path) -> None:
    graph = Builder()
    dynamic(graph, "hidden", "x", make_matrix(HIDDEN, HIDDEN))
    dequantized(graph, "x", "logits", make_matrix(VOCAB, HIDDEN))
    contract = resolve(read(save(graph.build(), tmp_path)), backend="ort")

    assert (contract.products.nodes, contract.products.replaced) == (2, 0)
    assert contract.products.problems == ("the backend is ort",)
    assert "MatMulInteger" in operators(contract)
    assert contract.cache is CacheStyle.NONE


def computed_weights(graph: Builder) -> str:
    made = make_matrix(VOCAB, HIDDEN)
    weights, scales, _ = held(graph, "w", made)
    rows, scale, zero = quantized(graph, "hidden")
    graph.add(node("Identity", [weights], "same"), node("MatMulInteger", [rows, "same", zero], "sums"))
    _floats(graph, scale, scales)
    return "node.sums is MatMulInteger of weights that are computed"


def _floats(graph: Builder, *factors: str) -> None:
    graph.add(node("Cast", ["sums"], "floats", to=TensorProto.FLOAT), node("Mul", list(factors), "factor"))
    graph.add(node("Mul", ["floats", "factor"], "logits"))


def static_activations(graph: Builder) -> str:
    weights, scales, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    graph.constant("step", np.float32(0.02))
    graph.constant("zero", np.uint8(128))
    graph.add(node("QuantizeLinear", ["hidden", "step", "zero"], "rows"))
    graph.add(node("MatMulInteger", ["rows", weights, "zero"], "sums"))
    _floats(graph, "step", scales)
    return "node.sums is MatMulInteger whose activations are not made by DynamicQuantizeLinear"


def other_zero_point(graph: Builder) -> str:
    weights, scales, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    rows, scale, _ = quantized(graph, "hidden")
    graph.add(node("MatMulInteger", [rows, weights, graph.constant("zero", np.uint8(3))], "sums"))
    _floats(graph, scale, scales)
    return "node.sums is MatMulInteger with another zero point than that of its activations"


def sums_in_integers(graph: Builder) -> str:
    weights, _, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    rows, _, zero = quantized(graph, "hidden")
    graph.add(node("MatMulInteger", [rows, weights, zero], "sums"))
    graph.add(node("Cast", ["sums"], "logits", to=TensorProto.FLOAT))
    return "node.sums is MatMulInteger whose sums are not multiplied with the scales of activations and weights"


def other_factor(graph: Builder) -> str:
    weights, _, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    rows, scale, zero = quantized(graph, "hidden")
    graph.add(node("MatMulInteger", [rows, weights, zero], "sums"))
    _floats(graph, scale, scale)
    return "node.sums is MatMulInteger whose sums are multiplied with something else than two scales"


def read_sums(graph: Builder) -> str:
    dynamic(graph, "hidden", "logits", make_matrix(VOCAB, HIDDEN))
    graph.outputs.append(helper.make_tensor_value_info("logits.floats", TensorProto.FLOAT, None))
    return "node.logits.sums is MatMulInteger whose sums are not multiplied with the scales of activations and weights"


def wrong_scales(graph: Builder) -> str:
    weights, _, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    rows, scale, zero = quantized(graph, "hidden")
    graph.add(node("MatMulInteger", [rows, weights, zero], "sums"))
    _floats(graph, scale, graph.constant("rows", np.ones((4, 1), np.float32)))
    return (
        f"node.sums is MatMulInteger with scales of the shape [4, 1], neither one nor one for each of {VOCAB} columns"
    )


def scale_for_each_row(graph: Builder) -> str:
    weights, _, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    scales = graph.constant("each", np.ones(HIDDEN, np.float32))
    graph.add(
        node("DequantizeLinear", [weights, scales], "dense", axis=0), node("MatMul", ["hidden", "dense"], "logits")
    )
    return "node.logits is MatMul of weights behind DequantizeLinear with a scale for each of its rows"


def odd_blocks(graph: Builder) -> str:
    dequantized(graph, "hidden", "logits", make_matrix(VOCAB, HIDDEN, block_size=8))
    return "node.logits is MatMul of weights behind DequantizeLinear with blocks of 8 weights"


def blocks_along_columns(graph: Builder) -> str:
    weights, _, _ = held(graph, "w", make_matrix(VOCAB, HIDDEN))
    scales = graph.constant("each", np.ones((HIDDEN, 1), np.float32))
    graph.add(node("DequantizeLinear", [weights, scales], "dense", axis=1, block_size=16))
    graph.add(node("MatMul", ["hidden", "dense"], "logits"))
    return "node.logits is MatMul of weights behind DequantizeLinear with blocks along its columns"


def integers_of_32_bits(graph: Builder) -> str:
    weights = graph.constant("w", np.ones((HIDDEN, VOCAB), np.int32))
    graph.add(node("DequantizeLinear", [weights, graph.constant("scale", np.float32(1))], "dense"))
    graph.add(node("MatMul", ["hidden", "dense"], "logits"))
    shape = [HIDDEN, VOCAB]
    return f"node.logits is MatMul of weights behind DequantizeLinear of the type int32 and the shape {shape}"


@pytest.mark.parametrize(
    "form",
    [
        computed_weights, static_activations, other_zero_point, sums_in_integers, other_factor, read_sums, wrong_scales,
        scale_for_each_row, odd_blocks, blocks_along_columns, integers_of_32_bits,
    ],
)  # fmt: skip
def test_form_that_is_not_understood_stays_and_says_why(tmp_path: Path, form: Any) -> None:
    graph = Builder(opset=21)
    why = form(graph)
    package = read(save(graph.build(), tmp_path))

    contract = resolve(package, backend="auto")
    assert contract.products.problems == (why,)
    assert (contract.products.nodes, contract.products.replaced) == (1, 0)
    assert contract.model_bytes == resolve(package, backend="ort").model_bytes


@pytest.mark.parametrize(("attribute", "value"), [("alpha", 0.5), ("beta", 2.0), ("transA", 1)])
def test_gemm_with_factors_stays(tmp_path: Path, attribute: str, value: float) -> None:
    graph = Builder()
    names = held(graph, "w", make_matrix(VOCAB, HIDDEN))[:2]
    graph.constant("flat", np.array([-1, HIDDEN]))
    graph.constant("bias", np.ones(VOCAB, np.float32))
    graph.add(node("Reshape", ["hidden", "flat"], "rows"), node("DequantizeLinear", names, "dense", axis=1))
    graph.add(node("Gemm", ["rows", "dense", "bias"], "logits", **{attribute: value}))
    graph.outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", VOCAB])]
    contract = resolve(read(save(graph.build(), tmp_path)), backend="auto")

    why = "of transposed activations" if attribute == "transA" else "with factors alpha or beta"
    assert contract.products.problems == (f"node.logits is Gemm {why}",)
