"""Makes nodes of our operator of products with integer weights: :func:`write_integer_products`.

Done before anything else is read out of a graph: one scale for the activations of all tokens would keep tokens from
being computed apart, and our operator has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
from onnx import helper

from onnx_genai.graph.index import GraphIndex
from onnx_genai.graph.integer_products import INT8_ACTIVATIONS, IntegerProduct, read_integer_product
from onnx_genai.graph.paged import DOMAIN
from onnx_genai.graph.projection import NotRecognisedError
from onnx_genai.graph.skeleton import Skeleton
from onnx_genai.graph.weights import drop_unused, keep_items, relocate, without_unread

__all__ = ["write_integer_products"]

_LEAST_IR = 4
"""First version in which weights need not be listed among the inputs."""
_ACCURACY_ENTRY = "session.qdq_matmulnbits_accuracy_level"
"""Session entry of ONNX Runtime for products of weights behind DequantizeLinear."""
_FOUR_BITS = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
_SIGNED = (onnx.TensorProto.INT8, onnx.TensorProto.INT4)


def write_integer_products(skeleton: Skeleton, entries: Mapping[str, str]) -> tuple[Skeleton, dict[str, str]]:
    """Returns the skeleton with a node of ours for each product with integer weights that it can compute.

    The weights are not copied: the nodes read references to the same bytes. Without such a product the skeleton is the
    given one, untouched; else ``model`` is changed in place. The second result has why other products stay, by the name
    of their first output.

    Args:
        skeleton: Of the graph as it is.
        entries: Session entries of the package. Activations of float32 are rounded to int8 only if one of them says so.
    """
    graph = skeleton.model.graph
    index = GraphIndex(graph)
    found: dict[int, tuple[onnx.NodeProto, IntegerProduct]] = {}
    problems: dict[str, str] = {}
    for place, node in enumerate(graph.node):
        product = read_integer_product(index, node)
        if isinstance(product, IntegerProduct):
            found[place] = (node, product)
        elif product is not None:
            problems[node.output[0]] = product
    if not found:
        return skeleton, problems
    try:
        skeleton = replace(skeleton, folder=relocate(skeleton))
    except NotRecognisedError as why:
        refused = f"has weights that cannot be referred to ({why})"
        return skeleton, problems | {node.output[0]: refused for node, _ in found.values()}
    # ONNX Runtime's own default for such weights is to round activations, too.
    level = INT8_ACTIVATIONS if entries.get(_ACCURACY_ENTRY, "") in ("", str(INT8_ACTIVATIONS)) else 0
    writer = _Writer(index, level)
    made = {place: writer.nodes(node, product) for place, (node, product) in found.items()}
    _put(skeleton.model, made, [product for _, product in found.values()])
    graph.initializer.extend(writer.tensors.values())
    drop_unused(graph, writer.read)
    return skeleton, problems


class _Writer:
    """Makes nodes and the constants that they share."""

    def __init__(self, index: GraphIndex, float_level: int) -> None:
        self._index = index
        self._float_level = float_level
        self.tensors: dict[str, onnx.TensorProto] = {}
        """Constants that the graph does not have yet."""
        self.read: set[str] = set()
        """Constants of the graph that the nodes were made of."""

    def nodes(self, node: onnx.NodeProto, product: IntegerProduct) -> list[onnx.NodeProto]:
        """The node of a product, and an Add of what is added to it."""
        name = node.name or node.output[0]
        weights = self._index.constant(product.weights)
        inputs = [
            product.source,
            self._constant(product.weights, as_bytes=True),
            self._constant(product.scales, as_bytes=False),
            self._constant(product.zero_points, as_bytes=True) if product.zero_points else "",
        ]
        made = helper.make_node(
            "MatMulNBits",
            inputs if inputs[-1] else inputs[:-1],
            [product.output],
            domain=DOMAIN,
            name=name,
            K=product.k,
            N=product.n,
            bits=4 if weights is not None and weights.data_type in _FOUR_BITS else 8,
            block_size=product.block_size,
            accuracy_level=INT8_ACTIVATIONS if product.rounded else self._float_level,
            b_layout=int(product.layout),
            b_signed=int(weights is not None and weights.data_type in _SIGNED),
        )
        if not product.added:
            return [made]
        sum_inputs = [product.output, product.added]
        return [made, helper.make_node("Add", sum_inputs, [product.added_to], name=f"{name}.genai.add")]

    def _constant(self, name: str, *, as_bytes: bool) -> str:
        """Name of an initializer with the content of a constant; of its type, or of bytes."""
        tensor = self._index.constant(name)
        if tensor is None:
            raise ValueError(f"{name} is no constant")
        self.read.add(name)
        bytes_already = not as_bytes or tensor.data_type == onnx.TensorProto.UINT8
        if bytes_already and name in self._index.initializers:
            return name
        made = f"genai.bytes.{name}"
        if made not in self.tensors:
            self.tensors[made] = (
                _as_bytes(tensor) if as_bytes else onnx.TensorProto.FromString(tensor.SerializeToString())
            )
            self.tensors[made].name = made
        return made


def _as_bytes(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The same content as uint8; of 4 bits two in a byte."""
    count = math.prod(tensor.dims)
    dims = [-(-count // 2)] if tensor.data_type in _FOUR_BITS else tensor.dims
    made = onnx.TensorProto(data_type=onnx.TensorProto.UINT8, dims=dims)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        made.data_location = tensor.data_location
        made.external_data.extend(tensor.external_data)
    elif tensor.HasField("raw_data"):
        made.raw_data = tensor.raw_data
    else:
        made.raw_data = bytes(value & 0xFF for value in tensor.int32_data)
    return made


def _put(
    model: onnx.ModelProto, made: Mapping[int, Sequence[onnx.NodeProto]], products: Sequence[IntegerProduct]
) -> None:
    """Puts nodes in the places of others, and takes out what nothing needs any more."""
    graph = model.graph
    gone = {id(node) for product in products for node in product.nodes}
    feeders = {id(node) for product in products for node in product.feeders}
    nodes: list[onnx.NodeProto] = []
    for place, node in enumerate(graph.node):
        nodes += made.get(place, [])
        if id(node) not in gone:
            nodes.append(node)
    nodes = without_unread(graph, nodes, feeders)
    if model.ir_version < _LEAST_IR:
        weights = {tensor.name for tensor in graph.initializer} - GraphIndex(graph).overridable.keys()
        keep_items(graph.input, [value for value in graph.input if value.name not in weights])
    keep_items(graph.node, nodes)
    known = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    keep_items(graph.value_info, [value for value in graph.value_info if value.name in known])
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.ir_version = max(model.ir_version, _LEAST_IR)
