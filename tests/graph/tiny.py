"""Small graphs built in code, to show one feature at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnx_genai.graph import GraphContract, resolve
from onnx_genai.package import read

VOCAB, HIDDEN, HEADS, WIDTH = 12, 8, 2, 4
FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Shape = Sequence[int | str]

RNG = np.random.default_rng(7)
EMBEDDING = RNG.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
HEAD = RNG.standard_normal((HIDDEN, VOCAB)).astype(np.float32)


def value(name: str, dtype: int, shape: Shape | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weights(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    domains: Sequence[str] = ("com.microsoft",),
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def kv_decoder(
    *,
    past: Sequence[str] = ("past_key_values.0.key", "past_key_values.0.value"),
    present: Sequence[str] = ("present.0.key", "present.0.value"),
    shape: Shape = ("batch", HEADS, "past", WIDTH),
    ids: str = "input_ids",
    ids_shape: Shape = ("batch", "new"),
    ids_dtype: int = INT64,
    logits: str = "logits",
    logits_shape: Shape | None = ("batch", "new", VOCAB),
    extra: Sequence[onnx.ValueInfoProto] = (),
    extra_outputs: Sequence[onnx.ValueInfoProto] = (),
    kv_dtype: int = FLOAT,
    axis: int = 2,
) -> onnx.ModelProto:
    """Ports and the nodes that connect them; the past is joined by Concat. Not meant to be run."""
    nodes = [
        helper.make_node("Gather", ["embedding", ids], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "head"], [logits]),
        *(helper.make_node("Concat", [a, a], [b], axis=axis) for a, b in zip(past, present, strict=True)),
    ]
    inputs = [value(ids, ids_dtype, ids_shape), *(value(name, kv_dtype, shape) for name in past), *extra]
    outputs = [value(logits, FLOAT, logits_shape), *(value(name, kv_dtype, None) for name in present), *extra_outputs]
    return model(nodes, inputs, outputs, [weights("embedding", EMBEDDING), weights("head", HEAD)])


def gqa_decoder(
    *, head_dim: int | str = WIDTH, packed: bool = False, spoil: str = "", rotary_rows: int = 0
) -> onnx.ModelProto:
    """One GroupQueryAttention; ``spoil`` breaks one of the conditions for a shared buffer."""
    columns = (HEADS + 2 * HEADS if packed else HEADS) * WIDTH
    query = ["mixed", "", ""] if packed else ["mixed", "mixed", "mixed"]
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    rotary = ["cos", "sin"] if rotary_rows else []
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "projection"], ["mixed"]),
        helper.make_node(
            "GroupQueryAttention",
            [*query, *past, "seqlens_k", "total_sequence_length", *rotary],
            ["mix", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=HEADS,
            do_rotary=int(bool(rotary_rows)),
        ),
        helper.make_node("MatMul", ["mix", "head"], ["logits"]),
    ]
    kv: Shape = ("batch", HEADS, "past", head_dim)
    outputs = [value("logits", FLOAT, ("batch", "new", VOCAB))]
    outputs += [value(f"present.0.{part}", FLOAT, ("batch", HEADS, "total", head_dim)) for part in ("key", "value")]
    if spoil == "present_read":
        nodes.append(helper.make_node("ReduceMean", ["present.0.key"], ["mean"]))
        outputs.append(value("mean", FLOAT, None))
    elif spoil == "past_read":
        nodes.append(helper.make_node("Shape", [past[0]], ["shape"]))
        outputs.append(value("shape", INT64, None))
    inputs = [
        value("input_ids", INT64, ("batch", "new")),
        value("seqlens_k", INT32, ("batch",)),
        value("total_sequence_length", INT32, ()),
        *(value(name, FLOAT, kv) for name in past),
    ]
    initializers = [
        weights("embedding", EMBEDDING),
        weights("projection", np.zeros((HIDDEN, columns), np.float32)),
        weights("head", HEAD),
    ]
    if rotary_rows:
        initializers += [weights(name, np.ones((rotary_rows, WIDTH // 2), np.float32)) for name in ("cos", "sin")]
    return model(nodes, inputs, outputs, initializers)


def tail_model(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    *,
    opset: int = 17,
    logits_dtype: int = FLOAT,
    embedding: np.ndarray = EMBEDDING,
    extra_outputs: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """A model without KV whose logits are made from ``hidden`` [batch, new, 8] by the given nodes; it can be run."""
    vocab = embedding.shape[0]
    first = helper.make_node("Gather", ["embedding", "input_ids"], ["hidden"])
    return model(
        [first, *nodes],
        [value("input_ids", INT64, ("batch", "new"))],
        [value("logits", logits_dtype, ("batch", "new", vocab)), *extra_outputs],
        [weights("embedding", embedding), *initializers],
        opset=opset,
    )


def save(graph: onnx.ModelProto, folder: Path, *, external: bool = False) -> Path:
    """Writes ``model.onnx`` into the folder and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if external:
        onnx.save_model(
            graph,
            folder / "model.onnx",
            save_as_external_data=True,
            location="model.onnx.data",
            size_threshold=0,
            convert_attribute=False,
        )
    else:
        onnx.save_model(graph, folder / "model.onnx")
    return folder


def contract_of(graph: onnx.ModelProto, folder: Path, *, last_logits: bool = False) -> GraphContract:
    """Saves a graph, reads the folder as a package and resolves it."""
    return resolve(read(save(graph, folder)), last_logits=last_logits)


def open_session(contract: GraphContract) -> ort.InferenceSession:
    """Opens what the contract says is to be run."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not contract.model_bytes:
        return ort.InferenceSession(str(contract.model_path), options, providers=["CPUExecutionProvider"])
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(contract.external_folder))
    return ort.InferenceSession(contract.model_bytes, options, providers=["CPUExecutionProvider"])
