"""Rewrites a graph so that only the last position reaches the last projection: :func:`last_logits`.

A prompt of S tokens otherwise multiplies S rows with the largest matrix of the model, and S - 1 of the results are
thrown away. The weights are not touched: the rewritten model refers to the files of the original.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnx_genai.graph.index import GraphIndex, dims_of, input_of
from onnx_genai.graph.skeleton import Skeleton, subgraphs_of, tensors_of

__all__ = ["Rewrite", "last_logits", "logits_width", "mapped"]

_PREFIX = "genai.last_logits"
_UNARY = frozenset({"Cast", "Tanh", "Identity", "Relu", "Sigmoid", "Neg", "Clip"})
_BINARY = frozenset({"Add", "Sub", "Mul", "Div"})
_MAX_STEPS = 24
_END = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A rewritten model, or why there is none."""

    model_bytes: bytes = b""
    """Empty if the graph was left alone."""
    folder: Path
    """Folder that the weight references of ``model_bytes`` start from."""
    reason: str


class _NotRecognisedError(Exception):
    """The end of the graph has a form that is not known to be safe to cut."""


@dataclass(slots=True)
class _Cut:
    """Where to slice: input ``position`` of ``node`` in ``graph``."""

    graph: onnx.GraphProto
    node: onnx.NodeProto
    position: int
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)


def last_logits(skeleton: Skeleton, index: GraphIndex, logits: str) -> Rewrite:
    """Returns the model with logits of the last position only, [batch, 1, vocab].

    Walks back from the logits over element-wise operators to the matrix product that makes them, and slices its data
    input. Anything else is left alone: the result is then empty and says why. Nothing is written to disk. On success
    ``skeleton.model``, which ``index`` was made of, is the rewritten model.

    The rows are those of the full graph: bit-equal for the integer parts; for float kernels that sum in another order
    when there is one row, equal to rounding (and exactly what a decode step of the full graph gives).
    """
    try:
        if len(dims_of(index.outputs[logits]) or ()) != 3:
            raise _NotRecognisedError(f"{logits} does not state the shape [batch, sequence, vocab]")
        cuts = _find_cuts(index, logits, {})
        folder = _relocate(skeleton)
    except _NotRecognisedError as why:
        return Rewrite(folder=skeleton.folder, reason=f"all logits are computed: {why}")
    reason = f"only the last position reaches {cuts[0].node.op_type} {cuts[0].node.name}".rstrip()
    for number, cut in enumerate(cuts):
        _insert_slice(cut, number)
    _lift_constants(skeleton.model.graph)
    return Rewrite(model_bytes=skeleton.model.SerializeToString(), folder=folder, reason=reason)


def mapped(skeleton: Skeleton, reason: str) -> Rewrite:
    """Returns the model unchanged but for references to the weights inside its own file; empty if that cannot be.

    ONNX Runtime maps referenced weights, where it would parse and copy those of the file: half the time to load a
    model of 650 MB, and up to 500 MB less memory at the peak.
    """
    try:
        folder = _relocate(skeleton)
    except _NotRecognisedError:
        return Rewrite(folder=skeleton.folder, reason=reason)
    _lift_constants(skeleton.model.graph)
    return Rewrite(model_bytes=skeleton.model.SerializeToString(), folder=folder, reason=reason)


def _find_cuts(index: GraphIndex, logits: str, outer: dict[str, onnx.TensorProto]) -> list[_Cut]:
    """Finds the data input of the last projection; one cut for each branch if an If node makes the logits."""
    graph = index.graph
    constants = {**outer, **index.initializers}
    output = index.outputs.get(logits)
    if output is None:
        raise _NotRecognisedError(f"{logits} is no output")
    name = logits
    for _ in range(_MAX_STEPS):
        node = index.producers.get(name)
        if node is None:
            raise _NotRecognisedError("the logits are no result of a node")
        uses = len(index.uses[name]) + (name in index.outputs)
        if uses != 1 or list(node.output).count(name) != 1:
            raise _NotRecognisedError(f"{name} is used in {uses} places")
        if node.op_type == "If" and not node.domain:
            if name != logits:
                raise _NotRecognisedError("operators follow the If node that makes the logits")
            return _branch_cuts(node, name, constants, output)
        position = _projection_input(index, node, constants)
        if position is not None and input_of(node, position):
            return [_Cut(graph=graph, node=node, position=position, outputs=[output])]
        name = _through(index, node, constants)
    raise _NotRecognisedError(f"more than {_MAX_STEPS} operators follow the projection")


def _branch_cuts(
    node: onnx.NodeProto,
    name: str,
    constants: dict[str, onnx.TensorProto],
    output: onnx.ValueInfoProto,
) -> list[_Cut]:
    place = list(node.output).index(name)
    cuts: list[_Cut] = []
    for branch in subgraphs_of(node):
        if place >= len(branch.output):
            raise _NotRecognisedError("a branch has too few outputs")
        found = _find_cuts(GraphIndex(branch), branch.output[place].name, constants)
        if not found:
            raise _NotRecognisedError("a branch has no projection")
        cuts.extend(found)
    if not cuts:
        raise _NotRecognisedError("the If node has no branches")
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
    if domain == "com.microsoft" and node.op_type in ("MatMulNBits", "MatMulBnb4"):
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
        raise _NotRecognisedError(f"the operator {node.op_type} of {node.domain} follows the projection")
    if node.op_type in _UNARY and input_of(node, 0):
        return input_of(node, 0)
    if node.op_type in _BINARY:
        fixed = [_same_for_all_rows(index, name, constants) for name in node.input]
        if fixed == [False, True]:
            return input_of(node, 0)
        if fixed == [True, False]:
            return input_of(node, 1)
    raise _NotRecognisedError(f"the operator {node.op_type} follows the projection")


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


def _insert_slice(cut: _Cut, number: int) -> None:
    """Puts Slice(data, starts=-1, axis 1) before the projection and corrects the shape of the outputs."""
    graph, node = cut.graph, cut.node
    data = input_of(node, cut.position)
    prefix = f"{_PREFIX}.{number}"
    for name, value in (("starts", -1), ("ends", _END), ("axes", 1)):
        tensor = onnx.TensorProto(name=f"{prefix}.{name}", data_type=onnx.TensorProto.INT64, dims=[1])
        tensor.int64_data.append(value)
        graph.initializer.append(tensor)
    piece = onnx.NodeProto(
        op_type="Slice",
        name=prefix,
        input=[data, f"{prefix}.starts", f"{prefix}.ends", f"{prefix}.axes"],
        output=[f"{prefix}.rows"],
    )
    node.input[cut.position] = f"{prefix}.rows"
    place = next(i for i, other in enumerate(graph.node) if other.output == node.output)
    graph.node.insert(place, piece)
    after = {output.name for output in cut.outputs} | set(node.output)
    for output in cut.outputs:
        shape = output.type.tensor_type.shape
        if len(shape.dim) == 3:
            shape.dim[1].Clear()
            shape.dim[1].dim_value = 1
    # Shapes of values between the projection and the logits no longer hold; they are only hints.
    stale = _values_after(graph, after)
    kept = [value for value in graph.value_info if value.name not in stale]
    if len(kept) != len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _values_after(graph: onnx.GraphProto, names: set[str]) -> set[str]:
    """The names and everything that is computed from them."""
    found = set(names)
    for node in graph.node:
        if any(name in found for name in node.input):
            found.update(node.output)
    return found


def _relocate(skeleton: Skeleton) -> Path:
    """Points the weight references at real files below one folder, and returns that folder.

    ONNX Runtime refuses references that leave the given folder through a link, as the files of a hub cache do.
    """
    model = skeleton.model
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for f in model.functions for tensor in _function(f)):
        raise _NotRecognisedError("a function holds large constants")
    external = [tensor for tensor in tensors_of(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    real: dict[str, Path] = {}
    for tensor in external:
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value not in real:
                real[entry.value] = (skeleton.folder / entry.value).resolve()
    if not real:
        return skeleton.folder
    try:
        folder = Path(os.path.commonpath([path.parent for path in real.values()]))
    except ValueError as error:  # on different drives
        raise _NotRecognisedError("the weights are on different drives") from error
    names = {location: path.relative_to(folder).as_posix() for location, path in real.items()}
    for tensor in external:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return folder


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Turns Constant nodes with referenced data into initializers: only those may be external."""
    kept = []
    for node in graph.node:
        for inner in subgraphs_of(node):
            _lift_constants(inner)
        constant = node.op_type == "Constant"
        value = next((a.t for a in node.attribute if a.name == "value"), None) if constant else None
        if value is not None and node.output and value.data_location == onnx.TensorProto.EXTERNAL:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    if len(kept) != len(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def _function(function: onnx.FunctionProto) -> list[onnx.TensorProto]:
    return [a.t for node in function.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]


def logits_width(index: GraphIndex, logits: str) -> int:
    """Width of the logits from their shape, else from the projection; 0 if neither tells."""
    value = index.outputs.get(logits)
    dims = dims_of(value) if value is not None else None
    if dims and dims[-1] > 0:
        return dims[-1]
    try:
        cuts = _find_cuts(index, logits, {})
    except _NotRecognisedError:
        return 0
    node = cuts[0].node
    for attribute in node.attribute:
        if attribute.name == "N" and node.op_type in ("MatMulNBits", "MatMulBnb4"):
            return attribute.i
    weight = index.constant(input_of(node, 1))
    return int(weight.dims[-1]) if weight is not None and len(weight.dims) == 2 else 0
