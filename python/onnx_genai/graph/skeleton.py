"""The structure of an .onnx file without its weights: :func:`load`."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph.wire import WireError, slim_model
from onnx_genai.package.files import check_payload, is_file, read_bytes_head

__all__ = ["Skeleton", "load", "nodes_of", "subgraphs_of"]

KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training"}
    | {
        "com.microsoft",
        "com.microsoft.experimental",
        "com.microsoft.nchwc",
        "com.microsoft.dml",
        "com.ms.internal.nhwc",
    }
    | {"org.pytorch.aten", "genai.runtime"}
)
"""Domains whose operators ONNX Runtime or this package brings."""

_WITH_GRAPHS = frozenset(
    {"If", "Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
)

_EXTERNAL = onnx.TensorProto.EXTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """An ONNX model whose large tensors are references: into other files as exported, or into ``path`` itself.

    A rewrite changes ``model`` in place: it then describes the rewritten graph.
    """

    path: Path
    model: onnx.ModelProto
    folder: Path
    """Folder that the references start from."""
    external_files: tuple[Path, ...]
    """Other files that hold weights, sorted."""
    weights_inside: int
    """Bytes of weights in ``path`` itself."""
    weight_bytes: int
    """Bytes of all referenced weights."""
    is_joined: bool = False
    """``model`` is more than what is in ``path``: another graph was put before it."""


def load(path: Path, *, root: Path | None = None) -> Skeleton:
    """Reads the structure of a model and checks that its weights are there.

    Args:
        path: The .onnx file.
        root: Folder that external data must stay in; the folder of ``path`` for None.

    Raises:
        NotFoundError: No such file.
        PackageError: Empty, cut off, a Git LFS pointer, no ONNX model, or external data missing or too short.
        UnsupportedError: A node of an unknown domain.
    """
    check_payload(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            data, inside = slim_model(buffer, path.name)
    except (OSError, ValueError) as error:
        raise PackageError(f"{path}: cannot be read ({error})") from error
    except WireError as error:
        raise PackageError(_broken_text(path, str(error))) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise PackageError(_broken_text(path, "a field cannot be decoded")) from error
    check_domains(model, path)
    sizes = _external_sizes(model, path)
    files = _check_external(sizes, path, root if root is not None else path.parent)
    return Skeleton(
        path=path,
        model=model,
        folder=path.parent,
        external_files=files,
        weights_inside=inside,
        weight_bytes=sum(length for entries in sizes.values() for _, length, _ in entries),
    )


def _broken_text(path: Path, why: str) -> str:
    head = read_bytes_head(path)
    if head.lstrip()[:1] in (b"<", b"{") or head.startswith(b"ir_version:"):
        start = head[:24].decode("utf-8", "replace")
        return f"{path}: is text, not a binary ONNX model (it starts with {start!r}). Download the .onnx file again."
    return f"{path}: is no complete ONNX model ({why}; the file has {path.stat().st_size} bytes). Download it again."


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for inner in subgraphs_of(node):
            yield from nodes_of(inner)


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes (branches of If, bodies of Loop and Scan)."""
    if node.op_type not in _WITH_GRAPHS:  # most nodes; looking at their attributes costs more than all else
        return
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def check_domains(model: onnx.ModelProto, path: Path) -> None:
    """Raises UnsupportedError for the first node of a domain that neither ONNX Runtime nor the model brings."""
    domains = {entry.domain for entry in model.opset_import} | {f.domain for f in model.functions}
    if domains <= KNOWN_DOMAINS:
        return  # a node may only use imported domains, so no node can be a stranger
    local = {(function.domain, function.name) for function in model.functions}
    bodies = [("", nodes_of(model.graph))]
    bodies += [(f" in function {f.name}", _function_nodes(f)) for f in model.functions]
    for place, nodes in bodies:
        for node in nodes:
            if node.domain not in KNOWN_DOMAINS and (node.domain, node.op_type) not in local:
                raise UnsupportedError(
                    f"{path}: node {node.name or node.output[:1]}{place} is the operator {node.op_type} of the domain "
                    f"{node.domain!r}, which ONNX Runtime does not have. It needs a custom operator library; "
                    "export the model without it."
                )


def _function_nodes(function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in function.node:
        yield node
        for inner in subgraphs_of(node):
            yield from nodes_of(inner)


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors: initializers and constants, in every graph and function."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.TENSORS:
                yield from attribute.tensors
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graph_tensors(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    yield from _graph_tensors(inner)


def _external_sizes(model: onnx.ModelProto, path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """File name to (offset, length or 0, tensor) of the tensors in it."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for tensor in tensors_of(model):
        if tensor.data_location != _EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not all(type(text) is str for text in (*entries, *entries.values(), tensor.name)):
            raise PackageError(f"{path}: is damaged (a name is not UTF-8 text). Download the file again.")
        numbers = []
        for key in ("offset", "length"):
            text = entries.get(key, "0")
            if not (text.isascii() and text.isdigit() and len(text) <= 18):
                raise PackageError(
                    f"{path}: tensor {tensor.name} has the external data {key} {text!r}; expected a number"
                )
            numbers.append(int(text))
        found.setdefault(location, []).append((numbers[0], numbers[1], tensor.name))
    return found


def _check_external(sizes: dict[str, list[tuple[int, int, str]]], path: Path, root: Path) -> tuple[Path, ...]:
    """Checks that every file with weights exists, is inside the package and long enough; returns those files."""
    files = []
    for location, entries in sorted(sizes.items()):
        name = entries[0][2]
        if location != path.name and _leaves_folder(location):
            raise PackageError(
                f"{path}: tensor {name} has its data in {location!r}; expected a file name relative to the model"
            )
        target = path.parent / location
        end, last = max((offset + length, tensor) for offset, length, tensor in entries)
        if not is_file(target):
            raise PackageError(
                f"{path}: its weights are in {target}, which does not exist; expected a file of at least {end} bytes. "
                "Download it and keep it beside the model under this name."
            )
        size = target.stat().st_size
        if size < end:
            check_payload(target)
            raise PackageError(
                f"{target}: has {size} bytes, but tensor {last} of {path.name} ends at byte {end}. "
                "The download was cut off; download it again."
            )
        if target != path:
            _check_inside(target, path, root)
            files.append(target)
    return tuple(files)


def _leaves_folder(location: str) -> bool:
    parts = location.replace("\\", "/").split("/")
    return not location or "\0" in location or Path(location).is_absolute() or ".." in parts or ":" in parts[0]


def _check_inside(target: Path, path: Path, root: Path) -> None:
    # A hub cache links its files into a store beside the snapshots; ONNX Runtime itself judges such links.
    bases = {root.resolve(), path.parent.resolve(), path.resolve().parent}
    real = target.resolve()
    if not any(base == real.parent or base in real.parents for base in bases):
        raise PackageError(
            f"{path}: its weights {target} are a link to {real}, outside the package folder {root}. "
            "Copy the file into the folder instead of linking it."
        )
