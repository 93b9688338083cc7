"""What the tests of the rewrite to our products share: the rewritten graph, its nodes, and whether it is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnx_genai.graph import GraphContract, resolve
from onnx_genai.package import read
from tests.graph.native_reference import compute, compute_contract
from tests.graph.quantized_forms import VOCAB, Builder, node
from tests.graph.tiny import save

__all__ = [
    "GATES",
    "IDS",
    "INNER",
    "SHAPE",
    "assert_same",
    "attributes",
    "mlp",
    "native",
    "operators",
    "packed",
    "packed_mlp",
    "products",
]

IDS = np.array([[3, 1, 4, 1], [5, 9, 2, 6]])
INNER = 24
SHAPE = ("batch", "new", "width")


def native(graph: Builder | onnx.ModelProto, folder: Path, *, external: bool = False) -> GraphContract:
    made = graph.build() if isinstance(graph, Builder) else graph
    return resolve(read(save(made, folder, external=external)), backend="native")


def products(contract: GraphContract) -> list[onnx.NodeProto]:
    graph = onnx.load_from_string(contract.model_bytes).graph
    return [item for item in graph.node if item.domain == "genai.runtime"]


def operators(contract: GraphContract) -> list[str]:
    return [item.op_type for item in onnx.load_from_string(contract.model_bytes).graph.node]


def attributes(item: onnx.NodeProto) -> dict[str, int]:
    return {attribute.name: attribute.i for attribute in item.attribute}


def assert_same(graph: Builder | onnx.ModelProto, contract: GraphContract) -> None:
    """The rewritten graph has the values of the original, and a valid order."""
    made = graph.build() if isinstance(graph, Builder) else graph
    before = compute(made, {"input_ids": IDS})
    after = compute_contract(contract, {"input_ids": IDS})
    assert len(before) == len(after)
    logits = before[0][:, -1:] if contract.last_logits_only else before[0]
    np.testing.assert_allclose(after[0], logits, rtol=1e-6, atol=1e-6)
    for old, new in zip(before[1:], after[1:], strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6)
    rewritten = onnx.load_from_string(contract.model_bytes)
    onnx.load_external_data_for_model(rewritten, str(contract.external_folder))
    onnx.checker.check_model(rewritten)  # looks at order and names, and takes operators of other domains as they are


GATES: dict[str, Callable[[Builder], None]] = {
    "gate_times_sigmoid": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["gate", "s"], "x"), node("Mul", ["x", "up"], "y")
    ),
    "sigmoid_times_gate": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["s", "gate"], "x"), node("Mul", ["up", "x"], "y")
    ),
    "sigmoid_times_up": lambda graph: graph.add(
        node("Sigmoid", ["gate"], "s"), node("Mul", ["s", "up"], "x"), node("Mul", ["gate", "x"], "y")
    ),
    "gate_times_up": lambda graph: graph.add(
        node("Mul", ["gate", "up"], "x"), node("Sigmoid", ["gate"], "s"), node("Mul", ["x", "s"], "y")
    ),
    "quick_gelu": lambda graph: graph.add(
        node("QuickGelu", ["gate"], "x", "com.microsoft", alpha=1.0), node("Mul", ["x", "up"], "y")
    ),
}


def mlp(graph: Builder, gate: Callable[[Builder], None], *, up_first: bool = False, **options: bool) -> Builder:
    """A gated layer between ``hidden`` and ``logits``: ``gate`` makes ``y`` of the products ``gate`` and ``up``."""
    for name in ("up", "gate") if up_first else ("gate", "up"):
        graph.product("hidden", name, INNER, **options)
    gate(graph)
    graph.product("y", "logits", VOCAB, INNER)
    return graph


def packed(graph: Builder, sizes: list[int], *, names: Sequence[str] = ("gate", "up"), **options: Any) -> Builder:
    """A product of ``hidden`` that is cut into pieces."""
    graph.product("hidden", "both", sum(sizes), **options)
    graph.add(helper.make_node("Split", ["both", graph.constant("sizes", np.array(sizes))], names, axis=-1))
    return graph


def packed_mlp() -> onnx.ModelProto:
    """A gated layer with packed gate and up."""
    graph = packed(Builder(), [INNER, INNER], zero_points=True)
    GATES["gate_times_sigmoid"](graph)
    graph.product("y", "logits", VOCAB, INNER)
    return graph.build()
