"""Keeps the weights of a rewritten model in the files of the original: :func:`relocate`, :func:`lift_constants`."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from onnx_genai.graph.projection import NotRecognisedError
from onnx_genai.graph.skeleton import Skeleton, subgraphs_of, tensors_of

__all__ = ["lift_constants", "relocate"]


def relocate(skeleton: Skeleton) -> Path:
    """Points the weight references at real files below one folder, and returns that folder.

    ONNX Runtime refuses references that leave the given folder through a link, as the files of a hub cache do.
    """
    model = skeleton.model
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for f in model.functions for tensor in _function(f)):
        raise NotRecognisedError("a function holds large constants")
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
        raise NotRecognisedError("the weights are on different drives") from error
    names = {location: path.relative_to(folder).as_posix() for location, path in real.items()}
    for tensor in external:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return folder


def lift_constants(graph: onnx.GraphProto) -> None:
    """Turns Constant nodes with referenced data into initializers: only those may be external."""
    kept = []
    for node in graph.node:
        for inner in subgraphs_of(node):
            lift_constants(inner)
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
