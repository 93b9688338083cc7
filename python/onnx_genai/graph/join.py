"""Joins the graph that makes embeddings of token ids with the decoder that takes them: :func:`with_embedding`.

Packages of models that also see or hear keep the two apart, so that vectors of images can be put between those of text.
For text alone they are one graph, and every rewrite and decoder works on it as on any other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import helper

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph import names
from onnx_genai.graph.index import GraphIndex, dims_of, dtype_of, operator_of, shape_text
from onnx_genai.graph.skeleton import Skeleton, load, nodes_of, subgraphs_of, tensors_of
from onnx_genai.graph.weights import drop_unused, keep_items, without_unread
from onnx_genai.package import EmbeddingGraph

__all__ = ["with_embedding"]

_PREFIX = "embedding/"
_IDS = "input_ids"
# Operators that have only got more element types, and attributes that need not be given, since that opset.
_GROWN_SINCE = 13
_GROWN = frozenset({"Cast", "Constant", "ConstantOfShape", "Equal", "Flatten", "Gather", "Identity", "Reshape"}) | {
    *("Shape", "Size", "Squeeze", "Transpose", "Unsqueeze", "Where")
}
_MOST_ZEROS = 1 << 22
_POSITION_AXES = (3, 4)
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# Operators whose result is of images or sounds if their first input is.
_PASSING = frozenset({"Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Identity", "Transpose"})


def with_embedding(decoder: Skeleton, embedding: EmbeddingGraph, root: Path) -> Skeleton:
    """Puts the embedding graph before the decoder; ``decoder.model`` is then the whole.

    What the graph would put in the place of image and sound tokens is left out where that is plain to see; else those
    inputs are empty tensors, as they are for a prompt of text.

    Args:
        decoder: Has inputs of the names of the embedding's outputs.
        embedding: Which file, and the names in it.
        root: Folder of the package.

    Raises:
        PackageError: The two do not fit each other; what :func:`~onnx_genai.graph.skeleton.load` raises.
        UnsupportedError: They are of different versions of ONNX's operators, or an input has no known role.
    """
    part = load(embedding.path, root=root)
    ids = _ids_of(part, embedding)
    links = _links(decoder, part, embedding)
    _drop_features(part.model.graph)
    _raise_opset(decoder, part)
    _empty_features(part, keep={ids})
    renamed = {ids: _IDS, **links}
    _rename(part.model.graph, renamed)
    _move_references(part.model, embedding.path.parent, decoder.folder)
    _connect(decoder, part, tuple(links.values()))
    _join_axes(decoder.model.graph)
    files = {embedding.path, *part.external_files, *decoder.external_files}
    return replace(
        decoder,
        is_joined=True,
        external_files=tuple(sorted(files)),
        weight_bytes=decoder.weight_bytes + part.weight_bytes,
    )


def _ids_of(part: Skeleton, embedding: EmbeddingGraph) -> str:
    inputs = GraphIndex(part.model.graph).inputs
    candidates = [name for name in (embedding.input_ids, *names.INPUT_IDS) if name in inputs]
    if candidates and candidates[0] is not None:
        return candidates[0]
    raise PackageError(
        f"{part.path}: has no input of token ids ({embedding.input_ids or names.INPUT_IDS[0]}); its inputs are "
        f"{', '.join(list(inputs)[:8])}"
    )


def _links(decoder: Skeleton, part: Skeleton, embedding: EmbeddingGraph) -> dict[str, str]:
    """Output of the embedding to the input of the decoder that takes it."""
    inputs = GraphIndex(decoder.model.graph).inputs
    outputs = GraphIndex(part.model.graph).outputs
    links = {name: name for name in outputs if name in inputs}
    if embedding.output in outputs and embedding.decoder_input in inputs:
        links[embedding.output] = embedding.decoder_input
    if not links:
        raise PackageError(
            f"{decoder.path}: takes none of what {part.path.name} makes ({', '.join(list(outputs)[:8])}); its inputs "
            f"are {', '.join(list(inputs)[:8])}. The files are of different exports."
        )
    for made, taken in links.items():
        if dtype_of(outputs[made]) is not dtype_of(inputs[taken]):
            raise PackageError(
                f"{decoder.path}: input {taken} has another element type than {made} of {part.path.name}, which makes "
                "it. Take both files of the same variant."
            )
    return links


def _drop_features(graph: onnx.GraphProto) -> None:
    """Takes out where vectors of images are put between those of text: ScatterND, and Where with such a branch.

    A text has no place for them, so that the values there are those of the text.
    """
    features = {value.name for value in graph.input if value.type.tensor_type.elem_type in _FLOATS}
    features -= {tensor.name for tensor in graph.initializer}
    changed = False
    for node in graph.node:
        domain, kind = operator_of(node)
        is_feature = [name in features for name in node.input]
        text = None
        if domain == "" and kind in _PASSING and is_feature[:1] == [True]:
            features.update(node.output)
        elif domain == "" and kind == "ScatterND" and is_feature == [False, False, True]:
            text = node.input[0]
        elif domain == "" and kind == "Where" and is_feature in ([False, True, False], [False, False, True]):
            text = node.input[1 if is_feature[2] else 2]
        if text is not None:
            node.CopyFrom(onnx.NodeProto(op_type="Identity", name=node.name, input=[text], output=node.output))
            changed = True
    if changed:
        keep_items(graph.node, without_unread(graph, graph.node))
        drop_unused(graph, {tensor.name for tensor in graph.initializer})


def _empty_features(part: Skeleton, keep: set[str]) -> None:
    """Makes each other input a tensor without elements (of zeros, if all its sizes are fixed), or takes it out."""
    graph = part.model.graph
    index = GraphIndex(graph)
    for name, value in index.inputs.items():
        if name in keep or name not in index.uses:
            continue
        dims = dims_of(value)
        if (
            value.type.tensor_type.elem_type not in _FLOATS
            or dims is None
            or math.prod(map(_given, dims)) > _MOST_ZEROS
        ):
            raise UnsupportedError(
                f"{part.path}: input {name} {shape_text(value)} has no known role; this version gives the graph token "
                "ids, and empty float tensors for what is made of images and sounds."
            )
        shape = [_given(size) for size in dims]
        item = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize
        zeros = bytes(math.prod(shape) * item)
        graph.initializer.add(name=name, data_type=value.type.tensor_type.elem_type, dims=shape, raw_data=zeros)
    keep_items(graph.input, [value for value in graph.input if value.name in keep])


def _given(size: int) -> int:
    """A stated size; an open one is that of no image at all."""
    return max(size, 0)


def _rename(graph: onnx.GraphProto, fixed: dict[str, str]) -> None:
    """Gives every name of the graph a prefix, but for those in ``fixed``."""

    def new(name: str) -> str:
        return fixed.get(name, _PREFIX + name) if name else name

    for level in _levels(graph):
        for value in (*level.input, *level.output, *level.value_info):
            value.name = new(value.name)
        for tensor in level.initializer:
            tensor.name = new(tensor.name)
        for node in level.node:
            node.name = _PREFIX + node.name if node.name else ""
            node.input[:] = [new(name) for name in node.input]
            node.output[:] = [new(name) for name in node.output]


def _levels(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in subgraphs_of(node):
            yield from _levels(inner)


def _move_references(model: onnx.ModelProto, old: Path, new: Path) -> None:
    """Makes references to files of one folder references from another one."""
    for tensor in tensors_of(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = Path(os.path.relpath(old / entry.value, new)).as_posix()


def _connect(decoder: Skeleton, part: Skeleton, made: tuple[str, ...]) -> None:
    """Adds the renamed embedding graph to the decoder, which has then only ids as input of text."""
    graph, first = decoder.model.graph, part.model.graph
    ids = next(value for value in first.input if value.name == _IDS)
    own = next((value for value in graph.input if value.name in names.INPUT_IDS), None)
    before = list(first.node)
    if own is not None and (own.name != _IDS or dtype_of(own) is not dtype_of(ids)):
        wanted, cast = own.type.tensor_type.elem_type, _PREFIX + "decoder_ids"
        before.append(helper.make_node("Cast", [_IDS], [cast], to=wanted))
        for node in nodes_of(graph):
            node.input[:] = [cast if name == own.name else name for name in node.input]
    taken = {*made, _IDS, *(() if own is None else (own.name,))}
    inputs = [ids, *(value for value in graph.input if value.name not in taken)]
    keep_items(graph.input, inputs)
    keep_items(graph.node, [*before, *graph.node])
    graph.initializer.extend(first.initializer)
    graph.value_info.extend(first.value_info)
    present = {(function.domain, function.name) for function in decoder.model.functions}
    clash = next((f.name for f in part.model.functions if (f.domain, f.name) in present), None)
    if clash is not None:
        raise UnsupportedError(
            f"{decoder.path}: has a function {clash}, and so has {part.path.name}; this version does not tell them "
            "apart. Export both without local functions."
        )
    decoder.model.functions.extend(part.model.functions)


def _join_axes(graph: onnx.GraphProto) -> None:
    """Gives a decoder with positions on three axes (time, height, width) those of a text, the same on each."""
    for value in graph.input:
        dims = dims_of(value)
        if value.name not in names.POSITION_IDS or dims is None or len(dims) != 3:
            continue
        axis = next((place for place in (0, 2) if dims[place] in _POSITION_AXES), None)
        if axis is None:
            return
        name, given = value.name, _PREFIX + value.name
        for node in nodes_of(graph):
            node.input[:] = [given if each == name else each for each in node.input]
        shape = [1, 1, 1]
        shape[axis] = dims[axis]
        for part, content in (("axis", [axis]), ("axes", shape)):
            graph.initializer.append(
                helper.make_tensor(f"{given}.{part}", onnx.TensorProto.INT64, [len(content)], content)
            )
        first = [
            helper.make_node("Unsqueeze", [name, f"{given}.axis"], [f"{given}.one"]),
            helper.make_node("Expand", [f"{given}.one", f"{given}.axes"], [given]),
        ]
        keep_items(graph.node, [*first, *graph.node])
        del value.type.tensor_type.shape.dim[axis]
        return


def _raise_opset(decoder: Skeleton, part: Skeleton) -> None:
    """Makes both models say the higher version of each domain, if their operators are the same ones in it."""
    for older, newer in ((decoder, part), (part, decoder)):
        versions = {_domain(entry.domain): entry.version for entry in newer.model.opset_import}
        for entry in older.model.opset_import:
            wanted = versions.get(_domain(entry.domain), 0)
            if wanted > entry.version:
                _check_same(older, _domain(entry.domain), entry.version, wanted)
                entry.version = wanted
    known = {_domain(entry.domain) for entry in decoder.model.opset_import}
    for entry in part.model.opset_import:
        if _domain(entry.domain) not in known:
            decoder.model.opset_import.append(entry)
    decoder.model.ir_version = max(decoder.model.ir_version, part.model.ir_version)


def _check_same(skeleton: Skeleton, domain: str, version: int, wanted: int) -> None:
    for name in sorted({node.op_type for node in nodes_of(skeleton.model.graph) if _domain(node.domain) == domain}):
        try:
            found = {onnx.defs.get_schema(name, at, domain).since_version for at in (version, wanted)}
        except onnx.defs.SchemaError:
            found = set()
        grown = name in _GROWN and min(found, default=0) >= _GROWN_SINCE and domain == ""
        if len(found) != 1 and not grown:
            raise UnsupportedError(
                f"{skeleton.path}: is of opset {version} and has the operator {name}, which is another one in opset "
                f"{wanted} of the graph beside it. Export the embedding and the decoder with one opset."
            )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
