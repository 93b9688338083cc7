"""Quantized matrix products of a graph: :func:`read_products`.

A product that can be computed by our operator is a :class:`Product`; every other one comes with the reason why not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx

from onnx_genai.graph.index import GraphIndex, attribute_int, attributes_of, input_of, operator_of
from onnx_genai.graph.integer_products import BLOCK_SIZES, read_integer_product
from onnx_genai.graph.paged import DOMAIN
from onnx_genai.graph.skeleton import nodes_of, subgraphs_of

__all__ = ["Found", "Kind", "Product", "may_have_products", "read_products"]

_BITS = (4, 8)
_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_OPERATOR = ("com.microsoft", "MatMulNBits")
_OURS = (DOMAIN, "MatMulNBits")
_OTHERS = {
    ("", "QLinearMatMul"),
    ("com.microsoft", "MatMulBnb4"),
    ("com.microsoft", "QGemm"),
    ("com.microsoft", "QMoE"),
}
"""Quantized products of other layouts."""
_NAMES = ("B", "scales", "zero_points", "g_idx", "bias")
"""Inputs of com.microsoft::MatMulNBits behind the activations."""


class Kind(NamedTuple):
    """What products must have in common to become one node."""

    source: str
    """Name of the activations."""
    k: int
    bits: int
    block_size: int
    accuracy_level: int
    dtype: int
    """Of activations, scales and bias, as ONNX numbers it."""
    layout: int = 0
    """``b_layout``: 0 for that of com.microsoft::MatMulNBits, else a matrix; ``block_size`` may then be 0."""
    signed: bool = False
    width: int = 0
    """Columns of weights, scales and zero points of which the product takes some; 0 if it takes all."""


@dataclass(slots=True, kw_only=True)
class Product:
    """One product: ``output`` = ``source`` times dequantized weights, plus ``bias``."""

    place: int
    """Index of its node in the graph."""
    name: str
    """Of its node."""
    kind: Kind
    n: int
    weights: str
    scales: str
    zero_points: str = ""
    bias: str = ""
    output: str
    first: int = 0
    """Column of the constants that the product's first one is, with ``kind.width``."""
    taken: list[int] = field(default_factory=list)
    """Places of nodes that the product computes as well."""

    @property
    def constants(self) -> list[str]:
        """Names in the order of our operator's ports; "" for one that is left out."""
        return [self.weights, self.scales, self.zero_points, self.bias]


@dataclass(slots=True)
class Found:
    """Result of :func:`read_products`."""

    products: list[Product] = field(default_factory=list)
    """In the graph's order."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Of each product that stays: its node's name, and why."""


def read_products(model: onnx.ModelProto, index: GraphIndex, known: Mapping[str, str]) -> Found:
    """Returns the quantized products of a model.

    Args:
        model: The model.
        index: Of its main graph.
        known: Why products with integer weights stay, by the name of their first output.
    """
    found = Found()
    for place, node in enumerate(model.graph.node):
        if operator_of(node) == _OPERATOR:
            product = _read(index, node, place)
            if isinstance(product, Product):
                found.products.append(product)
            else:
                found.problems.append((_name(node), product))
        elif operator_of(node) == _OURS:
            ours = _read_ours(index, node, place)
            found.products += [] if ours is None else [ours]
        else:
            other = known.get(node.output[0]) if node.output else None
            other = other or _other_layout(index, node)
            found.problems += [] if other is None else [(_name(node), other)]
        for inner in subgraphs_of(node):
            found.problems += ((_name(item), f"is inside a graph of {node.op_type}") for item in _inside(inner))
    for function in model.functions:
        for node in function.node:
            if operator_of(node) == _OPERATOR:
                found.problems.append((_name(node), f"is inside the function {function.name}"))
    return found


def may_have_products(model: onnx.ModelProto) -> bool:
    """Quick: whether there is any operator of a quantized product."""
    names = {_OPERATOR[1], "DequantizeLinear", *(op_type for _, op_type in _OTHERS)}
    names |= {"DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"}
    bodies = [nodes_of(model.graph), *(function.node for function in model.functions)]
    return any(node.op_type in names for body in bodies for node in body)


def _other_layout(index: GraphIndex, node: onnx.NodeProto) -> str | None:
    """Why a quantized product of another layout stays; None for anything else."""
    if operator_of(node) in _OTHERS:
        return f"is {node.op_type}, whose weights have another layout"
    found = read_integer_product(index, node)
    if found is None or isinstance(found, str):
        return found
    return f"is {node.op_type} of integer weights"


def _inside(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    return (node for node in nodes_of(graph) if operator_of(node) == _OPERATOR)


def _name(node: onnx.NodeProto) -> str:
    return node.name or next((output for output in node.output if output), "")


def _read(index: GraphIndex, node: onnx.NodeProto, place: int) -> Product | str:
    """The product that the node is, or why our operator cannot compute it, as the rest of "it ..."."""
    k, n = attribute_int(node, "K", 0), attribute_int(node, "N", 0)
    bits, block = attribute_int(node, "bits", 4), attribute_int(node, "block_size", 0)
    if bits not in _BITS:
        return f"has weights of {bits} bits"
    if block not in BLOCK_SIZES:
        return f"has blocks of {block} weights"
    if k < 1 or n < 1:
        return f"has the sizes K = {k}, N = {n}"
    if attribute_int(node, "weight_prepacked", 0):
        return "has weights that are packed for other hardware"
    if len(node.output) != 1 or not node.output[0] or not input_of(node, 0):
        return "has no input or no output"
    if input_of(node, 4):
        return "has g_idx, an order of its columns"
    names = {name: input_of(node, position) for position, name in enumerate(_NAMES, 1) if input_of(node, position)}
    tensors = {}
    for name, value in names.items():
        tensor = index.constant(value)
        if tensor is None:
            return f"has {name} that are computed" if name != "B" else "has weights that are computed"
        tensors[name] = tensor
    why = _why_wrong(tensors, k=k, n=n, bits=bits, block=block)
    if why is not None:
        return why
    return Product(
        place=place,
        name=_name(node),
        kind=Kind(
            source=input_of(node, 0),
            k=k,
            bits=bits,
            block_size=block,
            accuracy_level=attribute_int(node, "accuracy_level", 0),
            dtype=tensors["scales"].data_type,
        ),
        n=n,
        weights=names["B"],
        scales=names["scales"],
        zero_points=names.get("zero_points", ""),
        bias=names.get("bias", ""),
        output=node.output[0],
    )


def _read_ours(index: GraphIndex, node: onnx.NodeProto, place: int) -> Product | None:
    """The product of a node that was made of one with integer weights; None for any other node of ours."""
    given = attributes_of(node)
    names = [input_of(node, position) for position in range(1, 5)]
    scales = index.constant(names[1])
    if not given.get("b_layout") or given.get("N_1") or scales is None:
        return None
    kind = Kind(
        source=input_of(node, 0),
        k=given["K"],
        bits=given["bits"],
        block_size=given["block_size"],
        accuracy_level=given["accuracy_level"],
        dtype=scales.data_type,
        layout=given["b_layout"],
        signed=bool(given["b_signed"]),
    )
    weights, scale, zero_points, bias = names
    return Product(
        place=place,
        name=_name(node),
        kind=kind,
        n=given["N"],
        weights=weights,
        scales=scale,
        zero_points=zero_points,
        bias=bias,
        output=node.output[0],
    )


def _why_wrong(tensors: dict[str, onnx.TensorProto], *, k: int, n: int, bits: int, block: int) -> str | None:
    """None if the constants have the types and sizes of our operator."""
    if "B" not in tensors or "scales" not in tensors:
        return "has no weights or no scales"
    blocks = -(-k // block)
    if tensors["scales"].data_type not in _TYPES:
        return f"has scales of {_type_name(tensors['scales'])}"
    wanted = {
        "B": (onnx.TensorProto.UINT8, n * blocks * block * bits // 8),
        "scales": (tensors["scales"].data_type, n * blocks),
        "zero_points": (onnx.TensorProto.UINT8, n * -(-blocks * bits // 8)),
        "bias": (tensors["scales"].data_type, n),
    }
    for name, tensor in tensors.items():
        dtype, size = wanted[name]
        if tensor.data_type != dtype:
            return f"has {name} of {_type_name(tensor)}"
        if math.prod(tensor.dims) != size:
            return f"has {name} of {math.prod(tensor.dims)} elements, not {size}"
    if list(tensors["B"].dims) != [n, blocks, block * bits // 8]:
        return f"has B of the shape {list(tensors['B'].dims)}"
    return None


def _type_name(tensor: onnx.TensorProto) -> str:
    try:
        return onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    except ValueError:
        return f"type {tensor.data_type}"
