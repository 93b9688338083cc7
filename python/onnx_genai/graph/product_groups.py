"""Which products become one node: :func:`group_products`.

A node of ours reads its activations once for up to three products (query, key and value; gate and up), adds their
biases, and can multiply silu(gate) with up. Packed ones are cut into these first. It can also normalise the
activations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx

from onnx_genai.graph.index import GraphIndex, attributes_of, input_of, operator_of
from onnx_genai.graph.product_norms import Norm, read_norm
from onnx_genai.graph.product_splits import split_product
from onnx_genai.graph.products import Kind, Product

__all__ = ["MAX_PARTS", "Group", "Grouping", "group_products"]

MAX_PARTS = 3
"""Products of one node."""


@dataclass(slots=True, kw_only=True)
class Group:
    """Products that are computed by one node."""

    parts: list[Product]
    swiglu: str = ""
    """Name of silu(parts[0]) * parts[1], the only output then; else empty."""
    taken: list[int] = field(default_factory=list)
    """Places of the nodes that compute ``swiglu`` of the products."""
    norm: Norm | None = None
    """Is done with the activations first."""

    @property
    def place(self) -> int:
        """Index in the graph at which the node can stand."""
        return self.norm.place if self.norm else min(part.place for part in self.parts)

    @property
    def outputs(self) -> list[str]:
        """Of the products."""
        return [self.swiglu] if self.swiglu else [part.output for part in self.parts]


@dataclass(slots=True)
class Grouping:
    """Result of :func:`group_products`."""

    groups: list[Group] = field(default_factory=list)
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    """Pieces of constants, which the graph does not have yet."""
    cut: set[str] = field(default_factory=set)
    """Constants that may be read by nothing any more."""


def group_products(index: GraphIndex, products: Sequence[Product]) -> Grouping:
    """Takes biases into the products, in place, cuts them where the graph does, and returns all in groups."""
    places = {id(node): place for place, node in enumerate(index.graph.node)}
    found = Grouping()
    pieces: list[Product] = []
    for product in products:
        _take_bias(index, product, places)
        split = _reader(index, product.output)
        cut = None if split is None else split_product(index, product, split, places[id(split)])
        if split is None or cut is None:
            pieces.append(product)
            continue
        pieces += cut[0]
        found.tensors |= {tensor.name: tensor for tensor in cut[1]}
        found.cut.update((*product.constants, *split.input[1:]))
    by_output = {product.output: product for product in pieces}
    paired: set[str] = set()
    for product in pieces:
        pair = _swiglu(index, product, by_output, places)
        if pair is not None:
            found.groups.append(pair)
            paired.update(part.output for part in pair.parts)
    alike: dict[Kind, list[Product]] = {}
    for product in pieces:
        if product.output not in paired:
            alike.setdefault(product.kind, []).append(product)
    for same in alike.values():
        found.groups += (Group(parts=same[start : start + MAX_PARTS]) for start in range(0, len(same), MAX_PARTS))
    for group in found.groups:
        group.norm = read_norm(index, group.parts[0].kind, {part.place for part in group.parts}, places)
    return found


def _reader(index: GraphIndex, name: str) -> onnx.NodeProto | None:
    """The only node that reads a value; None if there are others, or it is an output of the graph."""
    uses = index.uses.get(name, [])
    return uses[0][0] if len(uses) == 1 and uses[0][1] >= 0 and name not in index.outputs else None


def _take_bias(index: GraphIndex, product: Product, places: dict[int, int]) -> None:
    """Makes Add(product, constant [N]) part of the product."""
    node = _reader(index, product.output)
    if product.bias or node is None or operator_of(node) != ("", "Add"):
        return
    other = input_of(node, 1) if input_of(node, 0) == product.output else input_of(node, 0)
    tensor = index.constant(other)
    if tensor is None or list(tensor.dims) != [product.n] or tensor.data_type != product.kind.dtype:
        return
    product.bias = other
    product.output = node.output[0]
    product.taken.append(places[id(node)])


def _swiglu(index: GraphIndex, gate: Product, by_output: dict[str, Product], places: dict[int, int]) -> Group | None:
    """The group of silu(gate) * up; None if there is none."""
    chain = _silu_chain(index, gate.output)
    if chain is None:
        return None
    up = by_output.get(chain.other)
    if up is None or up is gate or up.kind != gate.kind or up.n != gate.n:
        return None
    if _reader(index, up.output) is None:
        return None
    return Group(parts=[gate, up], swiglu=chain.result, taken=[places[id(node)] for node in chain.nodes])


@dataclass(slots=True)
class _Chain:
    """Nodes that compute ``result`` = silu(gate) * ``other``, and nothing else."""

    nodes: list[onnx.NodeProto]
    other: str
    result: str


def _silu_chain(index: GraphIndex, gate: str) -> _Chain | None:
    """The chain behind a value that is read by nothing else."""
    uses = index.uses.get(gate, [])
    if gate in index.outputs or any(position < 0 for _, position in uses):
        return None
    nodes = [node for node, _ in uses]
    if len(nodes) == 1 and _is_silu(nodes[0]):
        return _times(index, [nodes[0]], nodes[0].output[0])
    sigmoid = next((node for node in nodes if operator_of(node) == ("", "Sigmoid")), None)
    if len(nodes) != 2 or sigmoid is None:
        return None
    # sigmoid(gate), gate and the other factor are multiplied in one of three orders.
    first = _times(index, [sigmoid], sigmoid.output[0])
    if first is None:
        return None
    if first.other == gate:
        return _times(index, first.nodes, first.result)
    second = _times(index, first.nodes, first.result)
    if second is not None and second.other == gate:
        return _Chain(second.nodes, first.other, second.result)
    inner = index.producers.get(first.other)
    if inner is None or operator_of(inner) != ("", "Mul") or _reader(index, first.other) is None:
        return None
    factors = list(inner.input)
    if factors.count(gate) != 1:
        return None
    factors.remove(gate)
    return _Chain([*first.nodes, inner], factors[0], first.result)


def _times(index: GraphIndex, nodes: list[onnx.NodeProto], value: str) -> _Chain | None:
    """The chain with one more Mul, which alone reads ``value``."""
    node = _reader(index, value)
    if node is None or operator_of(node) != ("", "Mul"):
        return None
    other = input_of(node, 1) if input_of(node, 0) == value else input_of(node, 0)
    return _Chain([*nodes, node], other, node.output[0])


def _is_silu(node: onnx.NodeProto) -> bool:
    """Whether it is silu as one operator."""
    if operator_of(node) not in (("com.microsoft", "QuickGelu"), ("", "Swish")):
        return False
    default = 1.702 if node.op_type == "QuickGelu" else 1.0
    return math.isclose(attributes_of(node).get("alpha", default), 1.0)
