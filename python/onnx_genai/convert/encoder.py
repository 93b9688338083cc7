"""Makes a package of an encoder's checkpoint (config.json with model.safetensors): :func:`import_encoder`.

BERT and RoBERTa, as published for embeddings and, with one label, for reranking. Needs no torch and no network.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_genai.convert.importer import check_out, new_folder
from onnx_genai.convert.nodes import MICROSOFT, Nodes
from onnx_genai.errors import NotFoundError, PackageError, UnsupportedError
from onnx_genai.package.encoder import COMPANIONS
from onnx_genai.package.fields import Fields
from onnx_genai.package.files import PackageFolder
from onnx_genai.package.safetensors import TensorFile

__all__ = ["EncoderReport", "import_encoder"]

OPSET = 17
IR_VERSION = 8
DATA_FILE = "model.onnx.data"

Head = Literal["none", "bert", "roberta"]
"""What follows the encoder: nothing, or the classifier of a family."""

_BERT = ("bert",)
_UNUSED = re.compile(r"position_ids$|(^|\.)pooler\.dense\.|^(cls|lm_head)\.|embeddings\.token_type_ids$")
"""Tensors of numbers that the graph makes itself, and of tasks that a model was trained with."""
_ROBERTA = ("roberta", "xlm-roberta", "camembert")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderReport:
    """What :func:`import_encoder` did. ``str()`` gives a few lines for people."""

    source: Path
    path: Path
    model_type: str
    layers: int
    hidden_size: int
    output: str
    """``last_hidden_state``, or ``logits`` of a reranker."""
    package_bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.model_type}, {self.layers} layers, vectors of {self.hidden_size}, output {self.output}\n"
            f"{self.package_bytes / 1e6:.1f} MB in {self.seconds:.1f} s, in {self.path}\n"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    model_type: str
    layers: int
    heads: int
    hidden: int
    activation: Literal["gelu", "relu"]
    epsilon: float
    first_position: int
    """Row of the position table that the first token takes."""
    types: int
    prefix: str
    """Of the names of tensors."""
    head: Head


def import_encoder(source: Path | str, out: Path | str, *, overwrite: bool = False) -> EncoderReport:
    """Makes a package with a float32 graph of a checkpoint folder; the folder appears whole or not at all.

    Args:
        source: Folder with config.json, model.safetensors and tokenizer.json; what Sentence Transformers keeps beside
            them comes along.
        out: Folder to make; it may exist if it is empty.
        overwrite: Replace a folder that is not empty.

    Raises:
        NotFoundError: There is no such folder.
        PackageError: A file is missing or broken, or ``out`` cannot be written.
        UnsupportedError: Another kind of model.
        InvalidArgumentError: ``out`` is not empty.
        ResourceExhaustedError: The disk is full.
    """
    source, out = Path(source), Path(out)
    started = time.perf_counter()
    if not source.is_dir():
        raise NotFoundError(f"{source}: no such folder; give one with config.json and model.safetensors")
    folder = PackageFolder(source)
    weights = folder.find(["model.safetensors"])
    if weights is None:
        raise PackageError(f"{source}: has no model.safetensors (a checkpoint in one file); download it")
    folder.check_inside(weights, origin=weights.name)
    if folder.find(["tokenizer.json"]) is None:
        raise PackageError(f"{source}: has no tokenizer.json; download it")
    tensors = TensorFile(weights)
    spec = _read_spec(folder, tensors)
    check_out(out, overwrite)
    with new_folder(out, overwrite) as made:
        builder = _EncoderBuilder(spec, tensors)
        ir.save(builder.build(), made / "model.onnx", external_data=DATA_FILE)
        builder.check_all_used()
        _copy_companions(folder, made)
        package_bytes = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    return EncoderReport(
        source=source,
        path=out,
        model_type=spec.model_type,
        layers=spec.layers,
        hidden_size=spec.hidden,
        output="last_hidden_state" if spec.head == "none" else "logits",
        package_bytes=package_bytes,
        seconds=time.perf_counter() - started,
    )


def _read_spec(folder: PackageFolder, tensors: TensorFile) -> _Spec:
    values = folder.json("config.json")
    if values is None:
        raise PackageError(f"{folder.root}: has no config.json; download it")
    config = Fields(values, folder.root / "config.json")
    kind = config.text("model_type") or ""
    if kind not in (*_BERT, *_ROBERTA):
        raise UnsupportedError(
            f"{config.where('model_type')} is {kind!r}; this version imports {', '.join((*_BERT, *_ROBERTA))}. Export "
            "others with optimum (--task feature-extraction, or text-classification for a reranker)."
        )
    if config.text("position_embedding_type") not in (None, "absolute"):
        config.fail("position_embedding_type", "absolute")
    activation = config.text("hidden_act") or "gelu"
    if activation not in ("gelu", "relu"):
        config.fail("hidden_act", "gelu or relu")
    prefix = next(
        (p for p in ("", "bert.", "roberta.") if f"{p}embeddings.word_embeddings.weight" in tensors.shapes), None
    )
    if prefix is None:
        raise PackageError(f"{tensors.path}: has no embeddings.word_embeddings.weight")
    head: Head = "none"
    if "classifier.weight" in tensors.shapes and f"{prefix}pooler.dense.weight" in tensors.shapes:
        head = "bert"
    elif "classifier.out_proj.weight" in tensors.shapes:
        head = "roberta"

    def whole(key: str) -> int:
        value = config.whole(key, low=1)
        return value if value is not None else config.fail(key, "a whole number >= 1")

    pad = config.one_id("pad_token_id")
    return _Spec(
        model_type=kind,
        layers=whole("num_hidden_layers"),
        heads=whole("num_attention_heads"),
        hidden=whole("hidden_size"),
        activation="relu" if activation == "relu" else "gelu",
        epsilon=config.number("layer_norm_eps") or 1e-12,
        first_position=(1 if pad is None else pad) + 1 if kind in _ROBERTA else 0,
        types=config.whole("type_vocab_size") or 0,
        prefix=prefix,
        head=head,
    )


class _EncoderBuilder:
    """Builds the graph of one model; use once.

    ``input_ids``, ``attention_mask`` and, with more than one token type, ``token_type_ids``, all int64
    ``[batch, sequence]``, give ``last_hidden_state`` ``[batch, sequence, hidden]`` or ``logits`` ``[batch, labels]``.
    """

    def __init__(self, spec: _Spec, tensors: TensorFile) -> None:
        self._spec = spec
        self._tensors = tensors
        self._nodes = Nodes()
        self._inputs: list[ir.Value] = []
        self._initializers: list[ir.Value] = []
        self._used: set[str] = set()

    def build(self) -> ir.Model:
        spec = self._spec
        ids, mask = self._input("input_ids"), self._input("attention_mask")
        hidden = self._embedding(ids)
        small_mask = self._nodes.one("Cast", "/mask", [mask], {"to": int(ir.DataType.INT32)})
        for index in range(spec.layers):
            hidden = self._layer(index, hidden, small_mask)
        output = hidden if spec.head == "none" else self._score(hidden)
        if spec.head == "none":
            output.name = "last_hidden_state"
            output.shape = ir.Shape(["batch_size", "sequence_length", spec.hidden])
        else:
            output.name = "logits"
            output.shape = ir.Shape(["batch_size", self._num_labels()])
        output.type = ir.TensorType(ir.DataType.FLOAT)
        graph = ir.Graph(
            self._inputs,
            [output],
            nodes=self._nodes.nodes,
            initializers=self._initializers,
            opset_imports={"": OPSET, MICROSOFT: 1},
            name="encoder",
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="onnx-genai")

    def _input(self, name: str) -> ir.Value:
        shape = ir.Shape(["batch_size", "sequence_length"])
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.INT64))
        self._inputs.append(value)
        return value

    def _constant(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        self._initializers.append(value)
        return value

    def _read(self, name: str) -> npt.NDArray[np.float32]:
        self._used.add(name)
        return self._tensors.float32(name)

    def check_all_used(self) -> None:
        """A tensor without a place in the graph would silently change what the model says.

        Raises:
            UnsupportedError: There is one that is not for training alone.
        """
        unused = [name for name in self._tensors.shapes if name not in self._used and not _UNUSED.search(name)]
        if unused:
            raise UnsupportedError(
                f"{self._tensors.path}: {len(unused)} tensors have no place in a {self._spec.model_type} encoder as it "
                f"is known here: {', '.join(unused[:4])}"
            )

    def _weight(self, name: str, *, transpose: bool = False) -> ir.Value:
        array = self._read(name)
        return self._constant(name, np.ascontiguousarray(array.T) if transpose else array)

    def _embedding(self, ids: ir.Value) -> ir.Value:
        spec, add, prefix = self._spec, self._nodes.one, f"{self._spec.prefix}embeddings."
        words = add("Gather", "/embeddings/words", [self._weight(f"{prefix}word_embeddings.weight"), ids])
        length = add("Shape", "/embeddings/length", [ids], {"start": 1, "end": 2})
        start = self._constant("first_position", np.array([spec.first_position], np.int64))
        end = add("Add", "/embeddings/end", [length, start])
        axis = self._constant("first_axis", np.array([0], np.int64))
        table = self._weight(f"{prefix}position_embeddings.weight")
        places = add("Slice", "/embeddings/positions", [table, start, end, axis])
        total = add("Add", "/embeddings/sum", [words, places])
        types = self._weight(f"{prefix}token_type_embeddings.weight") if spec.types else None
        if types is not None and spec.types > 1:
            kinds = add("Gather", "/embeddings/types", [types, self._input("token_type_ids")])
            total = add("Add", "/embeddings/all", [total, kinds])
        elif types is not None:
            total = add("Add", "/embeddings/all", [total, types])  # [1, hidden]
        scale, bias = self._weight(f"{prefix}LayerNorm.weight"), self._weight(f"{prefix}LayerNorm.bias")
        return add(
            "LayerNormalization", "/embeddings/norm", [total, scale, bias], {"axis": -1, "epsilon": spec.epsilon}
        )

    def _layer(self, index: int, hidden: ir.Value, mask: ir.Value) -> ir.Value:
        spec, add = self._spec, self._nodes.one
        source, name = f"{self._spec.prefix}encoder.layer.{index}.", f"/layer.{index}"
        parts = [f"{source}attention.self.{part}" for part in ("query", "key", "value")]
        weight = np.concatenate([self._read(f"{part}.weight").T for part in parts], axis=1)
        bias = np.concatenate([self._read(f"{part}.bias") for part in parts])
        attended = add(
            "Attention",
            f"{name}/attention",
            [
                hidden,
                self._constant(f"{source}attention.self.weight", np.ascontiguousarray(weight)),
                self._constant(f"{source}attention.self.bias", bias),
                mask,
            ],
            {"num_heads": spec.heads},
            domain=MICROSOFT,
        )
        hidden = self._joined(f"{name}/attention_output", f"{source}attention.output", attended, hidden)
        grown = add(
            "MatMul", f"{name}/grow", [hidden, self._weight(f"{source}intermediate.dense.weight", transpose=True)]
        )
        grown_bias = self._weight(f"{source}intermediate.dense.bias")
        if spec.activation == "gelu":
            grown = add("BiasGelu", f"{name}/gelu", [grown, grown_bias], domain=MICROSOFT)
        else:
            grown = add("Relu", f"{name}/relu", [add("Add", f"{name}/grow_bias", [grown, grown_bias])])
        return self._joined(f"{name}/output", f"{source}output", grown, hidden)

    def _joined(self, name: str, source: str, value: ir.Value, skip: ir.Value) -> ir.Value:
        """LayerNorm(skip + value @ weight + bias)."""
        made = self._nodes.one(
            "MatMul", f"{name}/dense", [value, self._weight(f"{source}.dense.weight", transpose=True)]
        )
        return self._nodes.one(
            "SkipLayerNormalization",
            f"{name}/norm",
            [
                made,
                skip,
                self._weight(f"{source}.LayerNorm.weight"),
                self._weight(f"{source}.LayerNorm.bias"),
                self._weight(f"{source}.dense.bias"),
            ],
            {"epsilon": self._spec.epsilon},
            domain=MICROSOFT,
        )

    def _score(self, hidden: ir.Value) -> ir.Value:
        """The classifier on the first token."""
        bert = self._spec.head == "bert"
        first, second = (
            (f"{self._spec.prefix}pooler.dense", "classifier") if bert else ("classifier.dense", "classifier.out_proj")
        )
        place = self._constant("first_token", np.array(0, np.int64))
        token = self._nodes.one("Gather", "/head/token", [hidden, place], {"axis": 1})
        dense = self._linear("/head/dense", first, token)
        return self._linear("/head/out", second, self._nodes.one("Tanh", "/head/tanh", [dense]))

    def _linear(self, name: str, source: str, value: ir.Value) -> ir.Value:
        weight, bias = self._weight(f"{source}.weight"), self._weight(f"{source}.bias")
        return self._nodes.one("Gemm", name, [value, weight, bias], {"transB": 1})

    def _num_labels(self) -> int:
        name = "classifier.weight" if self._spec.head == "bert" else "classifier.out_proj.weight"
        return self._tensors.shapes[name][0]


def _copy_companions(folder: PackageFolder, out: Path) -> None:
    for name in COMPANIONS:
        for path in sorted(folder.root.glob(name)):
            folder.check_inside(path, origin=path.name)
            target = out / path.relative_to(folder.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
