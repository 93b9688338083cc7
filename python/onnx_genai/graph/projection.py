"""Finds the last projection of a graph, which makes the logits: :func:`find_cuts`.

The part after it works on each row alone, so that rows may be left out before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from onnx_genai.graph.index import GraphIndex, dims_of, input_of
from onnx_genai.graph.skeleton import subgraphs_of

__all__ = ["Cut", "NotRecognisedError", "find_cuts", "logits_width"]

_UNARY = frozenset({"Cast", "Tanh", "Identity", "Relu", "Sigmoid", "Neg", "Clip"})
_BINARY = frozenset({"Add", "Sub", "Mul", "Div"})
_MAX_STEPS = 24
_PACKED = (("com.microsoft", "MatMulNBits"), ("com.microsoft", "MatMulBnb4"), ("genai.runtime", "MatMulNBits"))


class NotRecognisedError(Exception):
    """The end of the graph has a form that is not known to be safe to cut."""


@dataclass(slots=True)
class Cut:
    """Where rows can be left out: input ``position`` of ``node`` in ``graph``."""

    graph: onnx.GraphProto
    node: onnx.NodeProto
    position: int
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)


def find_cuts(index: GraphIndex, logits: str, outer: dict[str, onnx.TensorProto]) -> list[Cut]:
    """Finds the data input of the last projection; one cut for each branch if an If node makes the logits.

    Args:
        index: Of a graph, or of a branch inside it.
        logits: Name of an output.
        outer: Initializers of the graphs around; empty for the main graph.

    Raises:
        NotRecognisedError: The end of the graph has a form that is not known to be safe to cut; the text says which.
    """
    graph = index.graph
    constants = {**outer, **index.initializers}
    output = index.outputs.get(logits)
    if output is None:
        raise NotRecognisedError(f"{logits} is no output")
    name = logits
    for _ in range(_MAX_STEPS):
        node = index.producers.get(name)
        if node is None:
            raise NotRecognisedError("the logits are no result of a node")
        uses = len(index.uses[name]) + (name in index.outputs)
        if uses != 1 or list(node.output).count(name) != 1:
            raise NotRecognisedError(f"{name} is used in {uses} places")
        if node.op_type == "If" and not node.domain:
            if name != logits:
                raise NotRecognisedError("operators follow the If node that makes the logits")
            return _branch_cuts(node, name, constants, output)
        position = _projection_input(index, node, constants)
        if position is not None and input_of(node, position):
            return [Cut(graph=graph, node=node, position=position, outputs=[output])]
        name = _through(index, node, constants)
    raise NotRecognisedError(f"more than {_MAX_STEPS} operators follow the projection")


def _branch_cuts(
    node: onnx.NodeProto,
    name: str,
    constants: dict[str, onnx.TensorProto],
    output: onnx.ValueInfoProto,
) -> list[Cut]:
    place = list(node.output).index(name)
    cuts: list[Cut] = []
    for branch in subgraphs_of(node):
        if place >= len(branch.output):
            raise NotRecognisedError("a branch has too few outputs")
        found = find_cuts(GraphIndex(branch), branch.output[place].name, constants)
        if not found:
            raise NotRecognisedError("a branch has no projection")
        cuts.extend(found)
    if not cuts:
        raise NotRecognisedError("the If node has no branches")
    cuts[0].outputs.append(output)
    return cuts


def _rank(index: GraphIndex, name: str, constants: dict[str, onnx.TensorProto]) -> int | None:
    """Rank of a weight: an initializer, or one behind Transpose, Cast or DequantizeLinear."""
    for _ in range(4):
        tensor = constants.get(name) or index.constant(name)
        if tensor is not None:
            return len(tensor.dims)
        node = index.producers.get(name)
        if node is None or node.op_type not in ("Transpose", "Cast", "DequantizeLinear", "Identity"):
            return None
        name = input_of(node, 0)
    return None


def _projection_input(index: GraphIndex, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> int | None:
    """Index of the [batch, sequence, ...] input of the projection; None if the node is no projection.

    The other operand must be a matrix: then the product has as many axes as its data, and axis 1 is the sequence.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain == "" and node.op_type == "Gather":  # rows of a table, looked up by [batch, sequence]
        first = all(attribute.i == 0 for attribute in node.attribute if attribute.name == "axis")
        return 1 if first and _rank(index, input_of(node, 0), constants) == 2 else None
    if domain == "" and node.op_type in ("MatMul", "MatMulInteger"):
        return 0 if _rank(index, input_of(node, 1), constants) == 2 else None
    if (domain, node.op_type) in _PACKED:
        return 0
    if domain == "com.microsoft" and node.op_type in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul"):
        if any(attribute.name in ("transA", "transBatchA") and attribute.i for attribute in node.attribute):
            return None
        # DynamicQuantizeMatMul takes its scale from all rows, so fewer rows would change the result.
        return (
            0 if node.op_type != "DynamicQuantizeMatMul" and _rank(index, input_of(node, 1), constants) == 2 else None
        )
    return None


def _through(index: GraphIndex, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> str:
    """Returns the input that carries the rows through an element-wise operator."""
    if node.domain not in ("", "ai.onnx"):
        raise NotRecognisedError(f"the operator {node.op_type} of {node.domain} follows the projection")
    if node.op_type in _UNARY and input_of(node, 0):
        return input_of(node, 0)
    if node.op_type in _BINARY:
        fixed = [_same_for_all_rows(index, name, constants) for name in node.input]
        if fixed == [False, True]:
            return input_of(node, 0)
        if fixed == [True, False]:
            return input_of(node, 1)
    raise NotRecognisedError(f"the operator {node.op_type} follows the projection")


def _same_for_all_rows(index: GraphIndex, name: str, constants: dict[str, onnx.TensorProto], depth: int = 0) -> bool:
    """True for a scalar, a vector over the vocabulary, or arithmetic on such (scales of a quantized product)."""
    tensor = constants.get(name) or index.constant(name)
    if tensor is not None:
        return all(size == 1 for size in list(tensor.dims)[:-1]) and len(tensor.dims) <= 3
    node = index.producers.get(name)
    if node is None or depth > 4:
        return False
    if node.op_type == "Constant":
        return any(a.name in ("value_float", "value_int", "value_floats", "value_ints") for a in node.attribute)
    if node.op_type == "DynamicQuantizeLinear":
        return name in node.output[1:]
    if node.op_type in _BINARY or node.op_type in ("Cast", "Identity"):
        return all(_same_for_all_rows(index, item, constants, depth + 1) for item in node.input)
    return False


def logits_width(index: GraphIndex, logits: str) -> int:
    """Width of the logits from their shape, else from the projection; 0 if neither tells."""
    value = index.outputs.get(logits)
    dims = dims_of(value) if value is not None else None
    if dims and dims[-1] > 0:
        return dims[-1]
    try:
        cuts = find_cuts(index, logits, {})
    except NotRecognisedError:
        return 0
    node = cuts[0].node
    for attribute in node.attribute:
        if attribute.name == "N" and node.op_type in ("MatMulNBits", "MatMulBnb4"):
            return attribute.i
    weight = index.constant(input_of(node, 1))
    return int(weight.dims[-1]) if weight is not None and len(weight.dims) == 2 else 0
