"""Quantized products become nodes of our operator that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_genai.graph import resolve
from onnx_genai.package import read
from tests.graph.native_cases import (
    GATES,
    INNER,
    SHAPE,
    assert_same,
    attributes,
    mlp,
    native,
    operators,
    packed,
    products,
)
from tests.graph.quantized_forms import HIDDEN, VOCAB, Builder, node
from tests.graph.tiny import save, value


def test_single_product_keeps_names_weights_and_sizes(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "logits", zero_points=True, bias=True, attributes={"accuracy_level": 4})
    contract = native(graph, tmp_path)

    (product,) = products(contract)
    assert (product.op_type, product.name) == ("MatMulNBits", "node.logits")
    assert list(product.input[1:]) == ["logits.q", "logits.s", "logits.z", "logits.b"]
    assert list(product.output) == ["logits"]
    assert attributes(product) == {
        "K": HIDDEN, "N": VOCAB, "bits": 4, "block_size": 16, "accuracy_level": 4,
    }  # fmt: skip
    assert contract.products.nodes == contract.products.replaced == contract.products.joined == 1
    assert_same(graph, contract)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_each_layout_is_replaced(tmp_path: Path, bits: int, block_size: int) -> None:
    graph = Builder()
    graph.product("hidden", "logits", bits=bits, block_size=block_size, zero_points=True)
    contract = native(graph, tmp_path)

    assert contract.products.kinds == (f"{bits} bits, block {block_size}: 1",)
    assert_same(graph, contract)


def attention_like(graph: Builder, parts: list[tuple[str, int]]) -> None:
    """Products of ``hidden`` of several widths, which are added up and projected."""
    for name, width in parts:
        graph.product("hidden", name, width, zero_points=name == "k", bias=name == "v")
    joined = [name for name, _ in parts]
    graph.add(node("Concat", joined, "joined", axis=-1))
    graph.product("joined", "logits", VOCAB, sum(width for _, width in parts))


def test_products_of_one_value_become_one_node(tmp_path: Path) -> None:
    graph = Builder()
    attention_like(graph, [("q", 24), ("k", 7), ("v", 5)])
    contract = native(graph, tmp_path)

    first, last = products(contract)
    assert list(first.input) == ["hidden", "q.q", "q.s", "", "", "k.q", "k.s", "k.z", "", "v.q", "v.s", "", "v.b"]
    assert list(first.output) == ["q", "k", "v"]
    assert (attributes(first)["N"], attributes(first)["N_1"], attributes(first)["N_2"]) == (24, 7, 5)
    assert "swiglu" not in attributes(first)
    assert last.name == "node.logits"
    assert (contract.products.replaced, contract.products.joined) == (4, 2)
    assert_same(graph, contract)


@pytest.mark.parametrize(("count", "sizes"), [(2, [2]), (3, [3]), (4, [3, 1]), (5, [3, 2]), (7, [3, 3, 1])])
def test_groups_have_at_most_three_products(tmp_path: Path, count: int, sizes: list[int]) -> None:
    graph = Builder()
    attention_like(graph, [(f"p{number}", 4 + number) for number in range(count)])
    contract = native(graph, tmp_path)

    assert [len(product.output) for product in products(contract)] == [*sizes, 1]
    assert_same(graph, contract)


@pytest.mark.parametrize(
    "different",
    [
        {"bits": 8},
        {"block_size": 32},
        {"attributes": {"accuracy_level": 4}},
    ],
)
def test_products_that_differ_stay_apart(tmp_path: Path, different: dict[str, int]) -> None:
    graph = Builder()
    graph.product("hidden", "a")
    graph.product("hidden", "b", **different)
    graph.add(node("Add", ["a", "b"], "logits"))
    contract = native(graph, tmp_path)

    assert [list(product.output) for product in products(contract)] == [["a"], ["b"]]
    assert_same(graph, contract)


def test_group_stands_where_its_first_product_stood(tmp_path: Path) -> None:
    """The second product's readers may come before the third product."""
    graph = Builder()
    graph.product("hidden", "a")
    graph.product("hidden", "b")
    graph.add(node("Relu", ["b"], "c"), node("Mul", ["a", "c"], "d"))
    graph.product("hidden", "e")
    graph.add(node("Add", ["d", "e"], "logits"))
    contract = native(graph, tmp_path)

    assert [list(product.output) for product in products(contract)] == [["a", "b", "e"]]
    assert_same(graph, contract)


def test_weights_in_constant_nodes_become_initializers(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "a")
    graph.product("hidden", "b", constant_nodes=True, zero_points=True)
    graph.add(node("Add", ["a", "b"], "logits"))
    contract = native(graph, tmp_path)

    assert "Constant" not in operators(contract)
    assert len(products(contract)) == 1
    assert_same(graph, contract)


def test_weights_that_are_listed_as_inputs_are_constants_afterwards(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "logits")
    made = graph.build()
    made.graph.input.append(value("logits.q", TensorProto.UINT8, [VOCAB, 3, 8]))
    contract = native(made, tmp_path)

    rewritten = onnx.load_from_string(contract.model_bytes)
    assert [item.name for item in rewritten.graph.input] == ["input_ids"]
    assert_same(made, contract)


def test_graph_of_an_old_version_has_no_weights_among_its_inputs_afterwards(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "a")
    graph.product("hidden", "b")
    graph.add(node("Add", ["a", "b"], "logits"))
    made = graph.build()
    made.ir_version = 3
    for tensor in made.graph.initializer:
        made.graph.input.append(value(tensor.name, tensor.data_type, list(tensor.dims)))
    contract = native(made, tmp_path)

    rewritten = onnx.load_from_string(contract.model_bytes)
    assert rewritten.ir_version >= 4
    assert [item.name for item in rewritten.graph.input] == ["input_ids"]
    assert_same(made, contract)


def biased(graph: Builder, order: list[str], content: np.ndarray) -> None:
    graph.product("hidden", "a")
    graph.constant("bias", content)
    graph.add(node("Add", order, "logits"))


@pytest.mark.parametrize("order", [["a", "bias"], ["bias", "a"]])
def test_added_constant_becomes_the_bias(tmp_path: Path, order: list[str]) -> None:
    graph = Builder()
    biased(graph, order, np.arange(VOCAB, dtype=np.float32))
    contract = native(graph, tmp_path)

    (product,) = products(contract)
    assert (product.input[4], product.output[0]) == ("bias", "logits")
    assert "Add" not in operators(contract)
    assert contract.products.biases == 1
    assert_same(graph, contract)


@pytest.mark.parametrize(
    "content",
    [np.float32(2), np.ones(1, np.float32), np.ones((1, VOCAB), np.float32), np.ones((1, 1, 1, 1), np.float32)],
)
def test_other_constants_stay_an_addition(tmp_path: Path, content: np.ndarray) -> None:
    graph = Builder()
    biased(graph, ["a", "bias"], content)
    if content.ndim == 4:  # the logits must have three dimensions
        graph.nodes[-1].output[0] = "wide"
        graph.add(node("Squeeze", ["wide", graph.constant("axes", np.array([0]))], "logits"))
    contract = native(graph, tmp_path)

    assert products(contract)[0].output[0] == "a"
    assert contract.products.biases == 0
    assert_same(graph, contract)


def test_second_bias_stays_an_addition(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "a", bias=True)
    graph.constant("bias", np.ones(VOCAB, np.float32))
    graph.add(node("Add", ["a", "bias"], "logits"))
    contract = native(graph, tmp_path)

    assert operators(contract).count("Add") == 1
    assert_same(graph, contract)


def test_bias_of_a_product_that_is_read_elsewhere_stays_an_addition(tmp_path: Path) -> None:
    graph = Builder()
    biased(graph, ["a", "bias"], np.ones(VOCAB, np.float32))
    graph.output("a")
    contract = native(graph, tmp_path)

    assert operators(contract).count("Add") == 1


@pytest.mark.parametrize("up_first", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_gate_and_up_become_one_node_with_swiglu(tmp_path: Path, name: str, up_first: bool) -> None:
    graph = mlp(Builder(), GATES[name], up_first=up_first, zero_points=True)
    contract = native(graph, tmp_path)

    first, _ = products(contract)
    assert list(first.input) == ["hidden", "gate.q", "gate.s", "gate.z", "", "up.q", "up.s", "up.z"]
    assert list(first.output) == ["y"]
    assert attributes(first)["swiglu"] == 1
    assert (attributes(first)["N"], attributes(first)["N_1"]) == (INNER, INNER)
    assert operators(contract) == ["Gather", "MatMulNBits", "Slice", "MatMulNBits"]
    assert contract.products.swiglu == 1
    assert_same(graph, contract)


def test_swish_of_the_standard_becomes_swiglu(tmp_path: Path) -> None:
    def swish(graph: Builder) -> None:
        graph.add(node("Swish", ["gate"], "x"), node("Mul", ["x", "up"], "y"))

    graph = mlp(Builder(opset=24), swish)
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["y"]


def test_biases_of_gate_and_up_are_added_before_swiglu(tmp_path: Path) -> None:
    graph = Builder()
    for name in ("gate", "up"):
        graph.product("hidden", f"{name}.plain", INNER)
        graph.constant(f"{name}.bias", np.linspace(-1, 1, INNER, dtype=np.float32))
        graph.add(node("Add", [f"{name}.plain", f"{name}.bias"], name))
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    first, _ = products(contract)
    assert list(first.output) == ["y"]
    assert (first.input[4], first.input[8]) == ("gate.bias", "up.bias")
    assert_same(graph, contract)


NO_SWIGLU: dict[str, Callable[[Builder], None]] = {
    "another_alpha": lambda graph: graph.add(
        node("QuickGelu", ["gate"], "x", "com.microsoft"), node("Mul", ["x", "up"], "y")
    ),
    "no_up": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["gate", "s"], "x"), node("Add", ["x", "up"], "y")
    ),
    "square": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["gate", "s"], "x"), node("Mul", ["x", "x"], "z"),
        node("Add", ["z", "up"], "y"),
    ),
    "sigmoid_only": lambda graph: graph.add(node("Sigmoid", ["gate"], "s"), node("Mul", ["s", "up"], "y")),
    "gate_twice": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["gate", "s"], "x"), node("Mul", ["x", "gate"], "z"),
        node("Mul", ["z", "up"], "y"),
    ),
    "up_twice": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["gate", "s"], "x"), node("Mul", ["x", "up"], "z"),
        node("Add", ["z", "up"], "y"),
    ),
    "silu_twice": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["gate", "s"], "x"), node("Mul", ["x", "up"], "z"),
        node("Add", ["z", "x"], "y"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_SWIGLU)
def test_what_is_not_swiglu_is_only_joined(tmp_path: Path, name: str) -> None:
    graph = mlp(Builder(), NO_SWIGLU[name])
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["gate", "up"]
    assert contract.products.swiglu == 0
    assert_same(graph, contract)


@pytest.mark.parametrize("shown", ["gate", "s", "x", "up"])
def test_swiglu_whose_parts_are_outputs_is_only_joined(tmp_path: Path, shown: str) -> None:
    graph = mlp(Builder(), GATES["gate_times_sigmoid"])
    graph.output(shown)
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["gate", "up"]
    assert_same(graph, contract)


def test_gate_and_up_of_different_widths_are_only_joined(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "gate", INNER)
    graph.product("hidden", "up", 1)
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["gate", "up"]
    assert_same(graph, contract)


def test_gate_and_up_of_different_layouts_stay_apart(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "gate", INNER, bits=8)
    graph.product("hidden", "up", INNER)
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert [list(product.output) for product in products(contract)] == [["gate"], ["up"], ["logits"]]
    assert_same(graph, contract)


def test_value_that_a_branch_reads_is_kept(tmp_path: Path) -> None:
    graph = mlp(Builder(), GATES["gate_times_sigmoid"])
    branch = helper.make_graph([helper.make_node("Identity", ["gate"], ["inner"])], "b", [], [value("inner", 1, SHAPE)])
    other = helper.make_graph([helper.make_node("Neg", ["gate"], ["outer"])], "o", [], [value("outer", 1, SHAPE)])
    graph.constant("yes", np.array(True))
    graph.add(node("If", ["yes"], "seen", then_branch=branch, else_branch=other))
    graph.output("seen")
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["gate", "up"]
    assert_same(graph, contract)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("external", [False, True])
def test_packed_gate_and_up_become_swiglu(tmp_path: Path, bits: int, external: bool) -> None:
    graph = Builder()
    packed(graph, [INNER, INNER], bits=bits, zero_points=True, bias=True)
    if external:  # the sizes would lie in the file as well
        del graph.nodes[-1].input[1:]
        graph.nodes[-1].attribute.append(helper.make_attribute("num_outputs", 2))
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph.build(), tmp_path, external=external)

    assert operators(contract) == ["Gather", "MatMulNBits", "Slice", "MatMulNBits"]
    assert list(products(contract)[0].output) == ["y"]
    held = {tensor.name for tensor in onnx.load_from_string(contract.model_bytes).graph.initializer}
    assert held.isdisjoint({"both.q", "both.s", "both.z", "both.b"})
    assert (contract.products.nodes, contract.products.replaced, contract.products.joined) == (2, 2, 2)
    assert_same(graph, contract)


def test_packed_up_and_gate_become_swiglu(tmp_path: Path) -> None:
    graph = Builder()
    packed(graph, [INNER, INNER], names=("up", "gate"))
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["y"]
    assert_same(graph, contract)


def test_packed_query_key_and_value_become_outputs_of_one_node(tmp_path: Path) -> None:
    graph = Builder()
    packed(graph, [24, 7, 5], names=("q", "k", "v"), zero_points=True)
    graph.add(node("Concat", ["q", "k", "v"], "joined", axis=-1))
    graph.product("joined", "logits", VOCAB, 36)
    contract = native(graph, tmp_path)

    first, _ = products(contract)
    assert list(first.output) == ["q", "k", "v"]
    assert [attributes(first)[name] for name in ("N", "N_1", "N_2")] == [24, 7, 5]
    assert_same(graph, contract)


def test_bias_is_cut_like_its_product(tmp_path: Path) -> None:
    graph = Builder()
    graph.product("hidden", "plain", 2 * INNER)
    graph.add(node("Add", ["plain", graph.constant("bias", np.arange(2 * INNER, dtype=np.float32))], "both"))
    graph.add(helper.make_node("Split", ["both"], ["gate", "up"], axis=-1, num_outputs=2))
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["y"]
    assert contract.products.biases == 1
    assert_same(graph, contract)


def test_constants_that_others_read_are_kept_when_a_product_is_cut(tmp_path: Path) -> None:
    graph = Builder()
    packed(graph, [INNER, INNER])
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    graph.add(node("Neg", ["both.s"], "seen"))
    graph.output("seen")
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["y"]
    assert_same(graph, contract)


@pytest.mark.parametrize("why", ["rows", "four", "output", "computed"])
def test_other_cuts_stay(tmp_path: Path, why: str) -> None:
    graph = Builder()
    if why == "rows":
        graph.product("hidden", "both", INNER)
        graph.add(helper.make_node("Split", ["both"], ["gate", "up"], axis=1, num_outputs=2))
    else:
        names = ("gate", "up", "a", "b") if why == "four" else ("gate", "up")
        packed(graph, [INNER] * len(names), names=names)
        if why == "output":
            graph.output("both")
        elif why == "computed":
            graph.nodes[-1].input[1] = "sizes2"
            graph.nodes.insert(-1, node("Identity", ["sizes"], "sizes2"))
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    contract = native(graph, tmp_path)

    assert list(products(contract)[0].output) == ["both"]
    assert_same(graph, contract)


def linked(graph: Builder, folder: Path) -> Path:
    """Saves a graph as the files of a hub cache lie, and returns the folder with the links."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "1"
    save(graph.build(), snapshot, external=True)
    blobs.mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (snapshot / name).rename(blobs / name[::-1])
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / name[::-1])
    return snapshot


def test_weights_behind_links_are_found_from_the_folder_of_the_real_files(tmp_path: Path) -> None:
    """The logits cannot be cut, so nothing else has moved the references yet."""
    graph = Builder()
    graph.product("hidden", "a")
    graph.product("hidden", "b")
    graph.add(node("Add", ["a", "b"], "logits"))
    contract = resolve(read(linked(graph, tmp_path)), backend="native")

    assert contract.external_folder == tmp_path / "blobs"
    assert_same(graph, contract)


def test_pieces_of_weights_behind_links_are_found_from_there_too(tmp_path: Path) -> None:
    graph = packed(Builder(), [VOCAB, VOCAB])
    del graph.nodes[-1].input[1:]
    graph.nodes[-1].attribute.append(helper.make_attribute("num_outputs", 2))
    graph.add(node("Add", ["gate", "up"], "logits"))
    contract = resolve(read(linked(graph, tmp_path)), backend="native")

    assert list(products(contract)[0].output) == ["gate", "up"]
    assert contract.external_folder == tmp_path / "blobs"
    assert_same(graph, contract)
