"""A thin layer over onnx.helper: nodes by function call, constants in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["DTYPES", "GraphWriter"]

DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}


class GraphWriter:
    """Collects the nodes, inputs and outputs of one graph, or of one branch of an If or body of a Scan.

    A branch sees the tensors of the graph around it, so it is a writer of its own with a prefix for its names.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))
        return name

    def output(self, tensor: str, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Makes `tensor` the graph output `name`."""
        self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))

    def constant(self, value: npt.ArrayLike, dtype: str = "int64") -> str:
        name = f"{self._prefix}const_{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.ops(kind, 1, *inputs, domain=domain, **attributes)[0]

    def ops(self, kind: str, num_outputs: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        outputs = [f"{self._prefix}{kind}_{len(self._nodes)}_{index}" for index in range(num_outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, domain=domain, **attributes))
        return outputs

    def cast(self, tensor: str, dtype: str) -> str:
        return self.op("Cast", tensor, to=DTYPES[dtype])

    def add(self, tensor: str, number: int) -> str:
        return self.op("Add", tensor, self.constant(number))

    def dim(self, tensor: str, axis: int) -> str:
        """Size of an axis as int64 [1]."""
        return self.op("Gather", self.op("Shape", tensor), self.constant([axis]))

    def arange(self, size: str) -> str:
        """0 .. size-1 as int64 [size]; `size` is int64 [1]."""
        scalar = self.op("Squeeze", size)
        return self.op("Range", self.constant(0), scalar, self.constant(1))

    def unsqueeze(self, tensor: str, *axes: int) -> str:
        return self.op("Unsqueeze", tensor, self.constant(list(axes)))

    def slice_from(self, tensor: str, start: str, axis: int) -> str:
        """tensor[start:] along `axis`; `start` is int64 [1]."""
        end = self.constant([np.iinfo(np.int64).max])
        return self.op("Slice", tensor, start, end, self.constant([axis]))

    def graph(self, name: str) -> onnx.GraphProto:
        self._name_outputs_at_their_nodes()
        return helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._initializers)

    def _name_outputs_at_their_nodes(self) -> None:
        """Drops the Identity before an output where nothing else reads the tensor, as exporters write graphs."""
        outputs = {value.name for value in self._outputs}
        for last in [node for node in self._nodes if node.op_type == "Identity" and node.output[0] in outputs]:
            tensor = last.input[0]
            producer = next((node for node in self._nodes if tensor in node.output), None)
            if producer is None or sum(_reads(node, tensor) for node in self._nodes) > 1:
                continue
            producer.output[:] = [last.output[0] if each == tensor else each for each in producer.output]
            self._nodes.remove(last)

    def model(self, name: str, opset: int, *, contrib: bool = False) -> onnx.ModelProto:
        """The model, checked if the installed onnx knows the opset; `contrib` adds the com.microsoft operators."""
        opsets = [helper.make_opsetid("", opset)]
        if contrib:
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        # The oldest IR version that has the opset, so that every supported ONNX Runtime reads the file.
        ir_version = 8 if opset <= 17 else 10 if opset <= 22 else 11
        model = helper.make_model(self.graph(name), opset_imports=opsets, ir_version=ir_version)
        if opset <= onnx.defs.onnx_opset_version():
            onnx.checker.check_model(model)
        return model


def _reads(node: onnx.NodeProto, tensor: str) -> bool:
    """Whether the node, or a graph inside it, takes the tensor as an input."""
    inner = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return tensor in node.input or any(_reads(each, tensor) for graph in inner for each in graph.node)
