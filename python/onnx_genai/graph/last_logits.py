"""Rewrites a graph so that only the last position reaches the last projection: :func:`last_logits`.

A prompt of S tokens otherwise multiplies S rows with the largest matrix of the model, and S - 1 of the results are
thrown away. The weights are not touched: the rewritten model refers to the files of the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from onnx_genai.graph.index import GraphIndex, dims_of, input_of
from onnx_genai.graph.projection import Cut, NotRecognisedError, find_cuts
from onnx_genai.graph.skeleton import Skeleton
from onnx_genai.graph.weights import lift_constants, relocate

__all__ = ["Rewrite", "last_logits", "mapped"]

_PREFIX = "genai.last_logits"
_END = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A rewritten model, or why there is none."""

    model_bytes: bytes = b""
    """Empty if the graph was left alone."""
    folder: Path
    """Folder that the weight references of ``model_bytes`` start from."""
    reason: str


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
            raise NotRecognisedError(f"{logits} does not state the shape [batch, sequence, vocab]")
        cuts = find_cuts(index, logits, {})
        folder = relocate(skeleton)
    except NotRecognisedError as why:
        return Rewrite(folder=skeleton.folder, reason=f"all logits are computed: {why}")
    reason = f"only the last position reaches {cuts[0].node.op_type} {cuts[0].node.name}".rstrip()
    for number, cut in enumerate(cuts):
        _insert_slice(cut, number)
    lift_constants(skeleton.model.graph)
    return Rewrite(model_bytes=skeleton.model.SerializeToString(), folder=folder, reason=reason)


def mapped(skeleton: Skeleton, reason: str) -> Rewrite:
    """Returns the model unchanged but for references to the weights inside its own file; empty if that cannot be.

    ONNX Runtime maps referenced weights, where it would parse and copy those of the file: half the time to load a
    model of 650 MB, and up to 500 MB less memory at the peak.
    """
    try:
        folder = relocate(skeleton)
    except NotRecognisedError:
        return Rewrite(folder=skeleton.folder, reason=reason)
    lift_constants(skeleton.model.graph)
    return Rewrite(model_bytes=skeleton.model.SerializeToString(), folder=folder, reason=reason)


def _insert_slice(cut: Cut, number: int) -> None:
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
