"""Look-ups in a graph: who makes a value, who reads it, which values are constant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from onnx_genai.graph.contract import DType
from onnx_genai.graph.skeleton import subgraphs_of

__all__ = [
    "GraphIndex",
    "Use",
    "attribute_int",
    "attributes_of",
    "dims_of",
    "dtype_of",
    "input_of",
    "operator_of",
    "symbols_of",
]

_DTYPES: dict[int, DType] = {
    onnx.TensorProto.FLOAT: DType.FLOAT32,
    onnx.TensorProto.FLOAT16: DType.FLOAT16,
    onnx.TensorProto.BFLOAT16: DType.BFLOAT16,
    onnx.TensorProto.INT64: DType.INT64,
    onnx.TensorProto.INT32: DType.INT32,
    onnx.TensorProto.INT8: DType.INT8,
    onnx.TensorProto.UINT8: DType.UINT8,
    onnx.TensorProto.BOOL: DType.BOOL,
}

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

Use = tuple[onnx.NodeProto, int]
"""A node and the input index at which it reads a value; -1 when a graph inside the node reads it."""


class GraphIndex:
    """Producers and consumers of one graph level. Read-only.

    Raises UnicodeError if a name is not UTF-8: protobuf then hands out bytes instead of text.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name: value for value in graph.input if value.name not in self.initializers}
        self.overridable = _overridable(graph, self.initializers)
        """Inputs with a value of their own that an adapter may replace: they are no constants."""
        self.outputs = {value.name: value for value in graph.output}
        self.values = {value.name: value for value in graph.value_info}
        self.producers: dict[str, onnx.NodeProto] = {}
        self.uses: defaultdict[str, list[Use]] = defaultdict(list)
        for node in graph.node:
            for name in node.output:
                if name:
                    self.producers[name] = node
            for position, name in enumerate(node.input):
                if name:
                    self.uses[name].append((node, position))
            for name in _captured(node):
                self.uses[name].append((node, -1))
        self._check_names({text for node in graph.node for text in (node.op_type, node.domain)})

    def _check_names(self, operators: set[str]) -> None:
        tables = (self.initializers, self.inputs, self.outputs, self.producers, self.uses, operators)
        names = [name for table in tables for name in table]
        for value in (*self.graph.input, *self.graph.output):
            names.extend(symbols_of(value))
        if not all(type(name) is str for name in names):
            raise UnicodeError("a name is not UTF-8 text")

    def constant(self, name: str) -> onnx.TensorProto | None:
        """The tensor behind an initializer or a Constant node, or None. Its data may be a reference."""
        if name in self.overridable:
            return None
        tensor = self.initializers.get(name)
        if tensor is not None:
            return tensor
        node = self.producers.get(name)
        if node is not None and node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    return attribute.t
        return None

    def is_constant(self, name: str) -> bool:
        if name in self.initializers:
            return name not in self.overridable
        node = self.producers.get(name)
        return node is not None and node.op_type == "Constant"


def _overridable(
    graph: onnx.GraphProto, initializers: Mapping[str, onnx.TensorProto]
) -> dict[str, onnx.ValueInfoProto]:
    """Weights that are listed among the inputs, as the places of adapters are.

    Before IR version 4 all weights were, and some exporters still list them, or quantized ones: that says nothing then,
    and those count that are empty or have a name that tells.
    """
    listed = {value.name: value for value in graph.input if value.name in initializers}
    lists_all = all(tensor.name in listed for tensor in graph.initializer if len(tensor.dims) > 1)

    def is_place(tensor: onnx.TensorProto) -> bool:
        is_usual = not lists_all and tensor.data_type in _FLOATS
        return is_usual or 0 in tensor.dims or "lora" in tensor.name.lower()

    return {name: value for name, value in listed.items() if is_place(initializers[name])}


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    """Names of outer values that the graphs inside a node read."""
    for graph in subgraphs_of(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        for inner in graph.node:
            own.update(inner.output)
        names = {output.name for output in graph.output}
        for inner in graph.node:
            names.update(inner.input)
            names.update(_captured(inner))
        yield from (name for name in names if name and name not in own)


def dims_of(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """Static dimensions, -1 where symbolic; None without a shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else -1 for d in tensor.shape.dim)


def symbols_of(value: onnx.ValueInfoProto) -> tuple[str, ...]:
    """Names of the dimensions, "" where static or unnamed."""
    return tuple(d.dim_param for d in value.type.tensor_type.shape.dim)


def dtype_of(value: onnx.ValueInfoProto) -> DType | None:
    """Element type, or None for one that we have no use for."""
    return _DTYPES.get(value.type.tensor_type.elem_type)


def dtype_name(value: onnx.ValueInfoProto) -> str:
    """Element type for errors."""
    number = value.type.tensor_type.elem_type
    try:
        return onnx.TensorProto.DataType.Name(number).lower()
    except ValueError:
        return f"type {number}"


def shape_text(value: onnx.ValueInfoProto) -> str:
    """Shape for errors: ``[batch, 4, past, 64]``."""
    if not value.type.tensor_type.HasField("shape"):
        return "[unknown]"
    dims = value.type.tensor_type.shape.dim
    return "[" + ", ".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims) + "]"


def input_of(node: onnx.NodeProto, position: int) -> str:
    """Name of an input of a node; "" if it is left out."""
    return node.input[position] if position < len(node.input) else ""


def attribute_int(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.i
    return default


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes by name: numbers, text, lists of numbers, and tensors; graphs are left out."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        kind = attribute.type
        if kind == onnx.AttributeProto.INT:
            found[attribute.name] = attribute.i
        elif kind == onnx.AttributeProto.FLOAT:
            found[attribute.name] = attribute.f
        elif kind == onnx.AttributeProto.INTS:
            found[attribute.name] = list(attribute.ints)
        elif kind == onnx.AttributeProto.FLOATS:
            found[attribute.name] = list(attribute.floats)
        elif kind == onnx.AttributeProto.STRING:
            found[attribute.name] = attribute.s.decode("utf-8", "replace")
        elif kind == onnx.AttributeProto.TENSOR:
            found[attribute.name] = attribute.t
    return found


def operator_of(node: onnx.NodeProto) -> tuple[str, str]:
    """Domain and name; the standard domain is ""."""
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
