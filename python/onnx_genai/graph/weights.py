"""Keeps the weights of a rewritten model in the files of the original, each once.

:func:`relocate`, :func:`lift_constants`, :func:`reshape_references`, and what rewrites share: :func:`keep_items`,
:func:`drop_unused`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from onnx_genai.graph.index import attribute_int, input_of, operator_of
from onnx_genai.graph.projection import NotRecognisedError
from onnx_genai.graph.skeleton import Skeleton, nodes_of, subgraphs_of, tensors_of

__all__ = ["drop_unused", "keep_items", "lift_constants", "relocate", "reshape_references"]


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
        keep_items(graph.node, kept)


def drop_unused(graph: onnx.GraphProto, names: set[str]) -> None:
    """Takes those of the constants out that nothing reads."""
    used = {name for node in nodes_of(graph) for name in node.input} | {value.name for value in graph.output}
    unused = names - used
    if unused & {tensor.name for tensor in graph.initializer}:
        keep_items(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in unused])
        keep_items(graph.input, [value for value in graph.input if value.name not in unused])
    if any(node.output[0] in unused for node in graph.node if node.op_type == "Constant"):
        kept = [node for node in graph.node if node.op_type != "Constant" or node.output[0] not in unused]
        keep_items(graph.node, kept)


def without_unread(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], candidates: set[int] | None = None
) -> list[onnx.NodeProto]:
    """The nodes without those (of the candidates, by ``id``, if given) whose results nothing reads.

    Readers must stand behind what they read.
    """
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(nodes):
        if (candidates is None or id(node) in candidates) and read.isdisjoint(node.output):
            continue
        kept.append(node)
        read.update(node.input)
        for inner in subgraphs_of(node):
            read.update(name for item in nodes_of(inner) for name in item.input)
            read.update(value.name for value in inner.output)
    return kept[::-1]


def keep_items(held: Any, kept: Sequence[Any]) -> None:
    """Makes ``kept``, which may be messages in it, the content of a repeated field."""
    copies = [type(item).FromString(item.SerializeToString()) for item in kept]
    del held[:]
    held.extend(copies)


def reshape_references(graph: onnx.GraphProto) -> bool:
    """Makes a second reference of each Reshape of a referenced tensor, and says whether there was one.

    ONNX Runtime would compute the result when the model is loaded, and keep it beside the mapped file. A packed
    embedding that is also the last projection is such a tensor.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    constants = {
        node.output[0]: attribute.t
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    done = set()
    for place, node in enumerate(graph.node):
        if operator_of(node) != ("", "Reshape") or any(node.output[0] == value.name for value in graph.output):
            continue
        tensor = tensors.get(input_of(node, 0))
        target = tensors.get(input_of(node, 1)) or constants.get(input_of(node, 1))
        if tensor is None or target is None or tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        dims = _reshaped(tensor, target, keep_zero=bool(attribute_int(node, "allowzero", 0)))
        if dims is None:
            continue
        copy = graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = node.output[0]
        del copy.dims[:]
        copy.dims.extend(dims)
        done.add(place)
    for place in sorted(done, reverse=True):
        del graph.node[place]
    return bool(done)


def _reshaped(tensor: onnx.TensorProto, target: onnx.TensorProto, *, keep_zero: bool) -> list[int] | None:
    """Sizes after a Reshape; None if they are not known or do not fit."""
    if target.data_location == onnx.TensorProto.EXTERNAL or len(target.dims) != 1:
        return None
    dims = [int(size) for size in numpy_helper.to_array(target)]
    if any(size == 0 and (keep_zero or place >= len(tensor.dims)) for place, size in enumerate(dims)):
        return None
    dims = [tensor.dims[place] if size == 0 else size for place, size in enumerate(dims)]
    count = math.prod(tensor.dims)
    if dims.count(-1) == 1:
        rest = -math.prod(dims)
        dims[dims.index(-1)] = count // rest if rest else 0
    return dims if min(dims, default=0) > 0 and math.prod(dims) == count else None


def _function(function: onnx.FunctionProto) -> list[onnx.TensorProto]:
    return [a.t for node in function.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
