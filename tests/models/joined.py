"""Splits a package in two graphs, as those of models that also see: one makes embeddings, the decoder takes them.

The "embedding" of an id is the id itself as a number, [batch, sequence, 1], so that the tokens stay what they were.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["IMAGE_ID", "Split", "cut_embedding", "split_package"]

IMAGE_ID = 50
"""The token in whose place vectors of images are put."""

Features = Literal["none", "scatter", "where", "sum"]
"""How vectors of images come in: not at all; by ScatterND; by Where on rows that a text has not; as a sum over them."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """What the two graphs are like."""

    features: Features = "scatter"
    ids: int = TensorProto.INT64
    keeps_ids: bool = False
    """The decoder takes ids, too (int64)."""
    axes: Literal["none", "first", "last"] = "none"
    """Its positions are on three axes."""
    layout: Literal["genai", "files"] = "genai"
    """Described by genai_config.json, or by file names alone."""
    opset: int | None = None
    """Of the embedding; None for that of the decoder."""


def split_package(folder: Path, split: Split) -> Path:
    """Rewrites a package of one graph, with its inputs' usual names, in its folder; returns the folder."""
    path = folder / "model.onnx"
    decoder = onnx.load(path)
    path.unlink()
    embedding = _embedding(split, split.opset or decoder.opset_import[0].version, decoder)
    _take_embeddings(decoder, split)
    if split.axes != "none":
        _take_axes(decoder, split.axes)
    if split.layout == "files":
        (folder / "onnx").mkdir()
        onnx.save(decoder, folder / "onnx" / "decoder_model_merged.onnx")
        onnx.save(embedding, folder / "onnx" / "embed_tokens.onnx")
        (folder / "onnx" / "vision_encoder.onnx").write_bytes(b"not read")
        return folder
    onnx.save(decoder, folder / "text.onnx")
    onnx.save(embedding, folder / "embedding.onnx")
    config_path = folder / "genai_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    model: dict[str, Any] = config["model"]
    model["decoder"]["filename"] = "text.onnx"
    model["decoder"]["inputs"]["inputs_embeds"] = "inputs_embeds"
    model["embedding"] = {
        "filename": "embedding.onnx",
        "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
        "outputs": {"inputs_embeds": "inputs_embeds"},
    }
    model["vision"] = {"filename": "vision.onnx", "outputs": {"image_features": "image_features"}}
    config_path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def cut_embedding(folder: Path, out: Path) -> Path:
    """Writes a real package anew with its table of embeddings in a graph of its own, as transformers.js has them.

    Args:
        folder: Has model.onnx with the weights in model.onnx.data, one Gather of ``input_ids``, and Hugging Face files.
        out: Is made, on the same file system; weights are hard links.
    """
    (out / "onnx").mkdir(parents=True)
    for path in folder.iterdir():
        if path.name.startswith("model.onnx."):
            (out / "onnx" / path.name).hardlink_to(path)
        elif path.suffix == ".json":
            (out / path.name).write_bytes(path.read_bytes())
    decoder = onnx.load(folder / "model.onnx", load_external_data=False)
    graph = decoder.graph
    (gather,) = [node for node in graph.node if "input_ids" in node.input]
    table = next(tensor for tensor in graph.initializer if tensor.name == gather.input[0])
    ids = next(value for value in graph.input if value.name == "input_ids")
    vectors = helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", table.dims[1]])
    node = helper.make_node("Gather", list(gather.input), ["inputs_embeds"], axis=0)
    part = helper.make_graph([node], "embedding", [ids], [vectors], [table])
    model = helper.make_model(part, opset_imports=list(decoder.opset_import), ir_version=decoder.ir_version)
    onnx.save(model, out / "onnx" / "embed_tokens.onnx")
    for node in graph.node:
        node.input[:] = ["inputs_embeds" if name == gather.output[0] else name for name in node.input]
    graph.node.remove(gather)
    graph.input.remove(ids)
    graph.input.append(vectors)
    onnx.save(decoder, out / "onnx" / "decoder_model_merged.onnx")
    return out


def _embedding(split: Split, opset: int, decoder: onnx.ModelProto) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["number", "last"], ["text"]),
    ]
    constants = [numpy_helper.from_array(np.array([2], dtype=np.int64), "last")]
    dtype = helper.tensor_dtype_to_np_dtype(split.ids)
    constants.append(numpy_helper.from_array(np.array(IMAGE_ID, dtype=dtype), "image_id"))
    nodes.append(helper.make_node("Equal", ["input_ids", "image_id"], ["is_image"]))
    if split.features == "scatter":
        nodes += [
            helper.make_node("NonZero", ["is_image"], ["places"]),
            helper.make_node("Transpose", ["places"], ["indices"], perm=[1, 0]),
            helper.make_node("Identity", ["image_features"], ["rows"]),
            helper.make_node("ScatterND", ["text", "indices", "rows"], ["inputs_embeds"]),
        ]
    elif split.features == "where":
        constants.append(numpy_helper.from_array(np.array([0], dtype=np.int64), "first"))
        nodes += [
            helper.make_node("Unsqueeze", ["is_image", "last"], ["mask"]),
            helper.make_node("Gather", ["image_features", "first"], ["row"]),
            helper.make_node("Where", ["mask", "row", "text"], ["inputs_embeds"]),
        ]
    elif split.features == "sum":
        nodes += [
            helper.make_node("ReduceSum", ["image_features"], ["total"], keepdims=1),
            helper.make_node("Add", ["text", "total"], ["inputs_embeds"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["text"], ["inputs_embeds"]))
    inputs = [helper.make_tensor_value_info("input_ids", split.ids, ["batch", "sequence"])]
    if split.features in ("where", "scatter"):
        inputs.append(helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["images", 1]))
    elif split.features == "sum":
        inputs.append(helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["images", "rows", 1]))
    outputs = [helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", 1])]
    graph = helper.make_graph(nodes, "embedding", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=decoder.ir_version)


def _take_embeddings(decoder: onnx.ModelProto, split: Split) -> None:
    graph = decoder.graph
    ids = next(value for value in graph.input if value.name == "input_ids")
    for node in graph.node:
        node.input[:] = ["ids" if name == "input_ids" else name for name in node.input]
    graph.node.insert(0, helper.make_node("Squeeze", ["inputs_embeds", "embed_axis"], ["number"]))
    graph.node.insert(1, helper.make_node("Cast", ["number"], ["rounded"], to=ids.type.tensor_type.elem_type))
    graph.initializer.append(numpy_helper.from_array(np.array([2], dtype=np.int64), "embed_axis"))
    if split.keeps_ids:
        # Both say the same, so the larger one is either.
        graph.node.insert(2, helper.make_node("Max", ["rounded", "input_ids"], ["ids"]))
    else:
        graph.node.insert(2, helper.make_node("Identity", ["rounded"], ["ids"]))
        graph.input.remove(ids)
    graph.input.append(helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", 1]))


def _take_axes(decoder: onnx.ModelProto, axes: Literal["first", "last"]) -> None:
    """The mean of the three positions of a token is its position: a wrong one on an axis shows."""
    graph = decoder.graph
    old = next(value for value in graph.input if value.name == "position_ids")
    graph.input.remove(old)
    shape: list[int | str] = [3, "batch", "sequence"] if axes == "first" else ["batch", "sequence", 3]
    graph.input.append(helper.make_tensor_value_info("position_ids", old.type.tensor_type.elem_type, shape))
    for node in graph.node:
        node.input[:] = ["positions" if name == "position_ids" else name for name in node.input]
    place = 0 if axes == "first" else 2
    graph.node.insert(0, helper.make_node("ReduceSum", ["position_ids", "position_axis"], ["position_sum"], keepdims=0))
    graph.node.insert(1, helper.make_node("Div", ["position_sum", "axes"], ["positions"]))
    dtype = helper.tensor_dtype_to_np_dtype(old.type.tensor_type.elem_type)
    graph.initializer.append(numpy_helper.from_array(np.array([place], dtype=np.int64), "position_axis"))
    graph.initializer.append(numpy_helper.from_array(np.array(3, dtype=dtype), "axes"))
