"""LoRA inputs on any graph, adapters as onnxruntime writes them, and what a graph with merged weights generates.

``x W`` becomes ``x W + (x A) B``: A [in, rank] and B [rank, out] are inputs of the graph, with an empty value of their
own (rank 0) or without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Greedy", "Stepper", "add_lora", "draw_adapter", "lora_names", "merge", "write_adapter"]

Adapter = Mapping[str, npt.NDArray[np.float32]]


def lora_names(weight: str) -> tuple[str, str]:
    """Names of the inputs A and B of a weight."""
    return f"{weight}.lora_A", f"{weight}.lora_B"


def add_lora(model: onnx.ModelProto, targets: Sequence[str], *, has_default: bool = True) -> onnx.ModelProto:
    """A copy whose products with the ``targets`` take an adapter."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    sizes = {tensor.name: tensor.dims for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        target = node.input[1] if node.op_type == "MatMul" else ""
        if target not in targets:
            nodes.append(node)
            continue
        a, b = lora_names(target)
        rows, columns = sizes[target]
        graph.input.append(helper.make_tensor_value_info(a, TensorProto.FLOAT, [rows, f"{target}.rank"]))
        graph.input.append(helper.make_tensor_value_info(b, TensorProto.FLOAT, [f"{target}.rank", columns]))
        if has_default:
            graph.initializer.append(numpy_helper.from_array(np.zeros((rows, 0), np.float32), a))
            graph.initializer.append(numpy_helper.from_array(np.zeros((0, columns), np.float32), b))
        out, base, low, high = node.output[0], f"{target}.base", f"{target}.low", f"{target}.high"
        nodes += [
            helper.make_node("MatMul", [node.input[0], target], [base]),
            helper.make_node("MatMul", [node.input[0], a], [low]),
            helper.make_node("MatMul", [low, b], [high]),
            helper.make_node("Add", [base, high], [out]),
        ]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return model


def draw_adapter(model: onnx.ModelProto, targets: Sequence[str], seed: int, rank: int = 4) -> Adapter:
    """Random weights for the inputs of `add_lora`, of the size of the weights that they change."""
    rng = np.random.default_rng(seed)
    adapter: dict[str, npt.NDArray[np.float32]] = {}
    for tensor in model.graph.initializer:
        if tensor.name not in targets:
            continue
        a, b = lora_names(tensor.name)
        adapter[a] = (rng.standard_normal((tensor.dims[0], rank)) / 2).astype(np.float32)
        adapter[b] = (rng.standard_normal((rank, tensor.dims[1])) / 2).astype(np.float32)
    return adapter


def merge(model: onnx.ModelProto, adapter: Adapter) -> onnx.ModelProto:
    """A copy of the graph without LoRA inputs, whose weights have the adapter in them."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in model.graph.initializer:
        a, b = lora_names(tensor.name)
        if a in adapter:
            sum = numpy_helper.to_array(tensor).astype(np.float64) + adapter[a].astype(np.float64) @ adapter[b]
            tensor.CopyFrom(numpy_helper.from_array(sum.astype(np.float32), tensor.name))
    return model


def write_adapter(path: Path, adapter: Adapter) -> Path:
    """The file as onnxruntime itself writes it; returns its path."""
    file = ort.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters({name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in adapter.items()})
    file.export_adapter(str(path))
    return path


class Greedy:
    """What a graph generates by plain onnxruntime, which runs the whole text for each token."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32 [vocab] after the last id."""
        feeds: dict[str, npt.NDArray[np.generic]] = {}
        for value in self._session.get_inputs():
            dtype = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}.get(value.type, np.float32)
            if value.name == "input_ids":
                feeds[value.name] = np.array([ids], dtype=dtype)
            elif value.name == "attention_mask":
                feeds[value.name] = np.ones((1, len(ids)), dtype=dtype)
            elif value.name == "position_ids":
                feeds[value.name] = np.arange(len(ids), dtype=dtype)[None]
            elif value.name == "write_indices":
                feeds[value.name] = np.zeros(1, dtype=dtype)
            elif value.name == "nonpad_kv_seqlen":
                feeds[value.name] = np.full(1, len(ids), dtype=dtype)
            else:
                sizes = {"batch": 1, "past": 0}
                feeds[value.name] = np.zeros([sizes.get(size, size) for size in value.shape], dtype=dtype)
        result: npt.NDArray[np.float32] = self._session.run(["logits"], feeds)[0][0, -1]
        return result

    def generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        ids = list(prompt)
        for _ in range(num_tokens):
            ids.append(int(self.logits(ids).argmax()))
        return ids[len(prompt) :]


class Stepper:
    """One sequence on a graph with LoRA inputs by plain onnxruntime: what it has run stays as it was run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._length = 0
        self._past = {
            value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
            for value in self._session.get_inputs()
            if value.name.startswith("past")
        }

    def run(self, ids: Sequence[int], adapter: Adapter | None = None) -> int:
        """Runs ids with the adapter's tensors as inputs; the most likely id behind them."""
        self._length += len(ids)
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, self._length), np.int64)}
        outputs = ["logits", *(name.replace("past", "present", 1) for name in self._past)]
        logits, *present = self._session.run(outputs, {**feeds, **self._past, **(adapter or {})})
        self._past = dict(zip(self._past, present, strict=True))
        return int(logits[0, -1].argmax())
