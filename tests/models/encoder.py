"""A tiny encoder whose vectors depend on every token, its place, its type and the mask, with its answer in NumPy.

    h[t] = words[id] + places[t] + types[type]          (float32 tables)
    v[t] = tanh(h[t] @ own + mean(h over real tokens) @ common)

The mean makes every vector depend on the whole text, and on nothing else: padding must not change it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from tests.models.nodes import GraphWriter

__all__ = [
    "VOCAB",
    "WIDTH",
    "EncoderFiles",
    "EncoderStyle",
    "build_encoder",
    "encoder_score",
    "encoder_vectors",
    "word_tokenizer",
    "write_encoder_package",
    "write_safetensors",
]

VOCAB = 61
WIDTH = 8
PLACES = 64
CLS, SEP, PAD, UNK = 0, 1, 2, 3

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EncoderStyle:
    """What the graph looks like."""

    has_mask: bool = True
    has_types: bool = True
    has_positions: bool = False
    output: str = "last_hidden_state"
    """Also ``token_embeddings``; ``sentence_embedding`` is the mean; ``logits`` the score of a reranker."""
    extra_outputs: tuple[str, ...] = ()
    ids_dtype: str = "int64"
    out_dtype: str = "float32"
    batch: int | str = "batch"
    past_layers: int = 0
    """Inputs and outputs of a KV that the graph only passes on, as an export of a decoder has them."""
    broken_id: int | None = None
    """A text with this id gives NaN."""
    num_labels: int = 1


def _tables() -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(7)

    def table(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return (random.random((rows, columns), np.float32) * 2 - 1) * np.float32(scale)

    return {
        "words": table(VOCAB, WIDTH),
        "places": table(PLACES, WIDTH, 0.5),
        "types": table(2, WIDTH, 0.5),
        "own": table(WIDTH, WIDTH, 0.7),
        "common": table(WIDTH, WIDTH, 0.7),
        "score": table(WIDTH, 4, 2.0),
    }


TABLES = _tables()


def encoder_vectors(ids: Sequence[int], types: Sequence[int] | None = None) -> Floats:
    """Vectors of the tokens of one text, [tokens, WIDTH], in float64."""
    tables = {name: table.astype(np.float64) for name, table in TABLES.items()}
    hidden = tables["words"][list(ids)] + tables["places"][: len(ids)]
    hidden = hidden + tables["types"][[0] * len(ids) if types is None else list(types)]
    result: Floats = np.tanh(hidden @ tables["own"] + hidden.mean(axis=0) @ tables["common"])
    return result


def encoder_score(ids: Sequence[int], types: Sequence[int] | None = None) -> float:
    """The logit of a pair under the style with the output ``logits``."""
    return float(encoder_vectors(ids, types)[0] @ TABLES["score"][:, 0].astype(np.float64))


def build_encoder(style: EncoderStyle) -> onnx.ModelProto:
    writer = GraphWriter()
    shape: list[int | str] = [style.batch, "sequence"]
    ids = writer.input("input_ids", style.ids_dtype, shape)
    mask = writer.input("attention_mask", "int64", shape) if style.has_mask else ""
    types = writer.input("token_type_ids", "int64", shape) if style.has_types else ""
    if style.has_positions:
        places = writer.input("position_ids", "int64", shape)
    else:
        places = writer.arange(writer.dim(ids, 1))
    parts = {name: writer.constant(table, "float32") for name, table in TABLES.items()}
    hidden = writer.op("Add", writer.op("Gather", parts["words"], ids), writer.op("Gather", parts["places"], places))
    kinds = writer.op("Gather", parts["types"], types or writer.constant([0]))
    hidden = writer.op("Add", hidden, kinds)
    real = writer.unsqueeze(writer.cast(mask, "float32"), 2) if mask else ""
    if not real:
        real = writer.cast(
            writer.unsqueeze(writer.op("Greater", ids, writer.constant(-1, style.ids_dtype)), 2), "float32"
        )
    count = writer.op("ReduceSum", real, writer.constant([1]), keepdims=1)
    mean = writer.op(
        "Div", writer.op("ReduceSum", writer.op("Mul", hidden, real), writer.constant([1]), keepdims=1), count
    )
    total = writer.op("Add", writer.op("MatMul", hidden, parts["own"]), writer.op("MatMul", mean, parts["common"]))
    vectors = writer.op("Tanh", total)
    if style.broken_id is not None:
        hit = writer.cast(writer.op("Equal", ids, writer.constant(style.broken_id, style.ids_dtype)), "float32")
        nothing = writer.op("Sub", writer.constant(1.0, "float32"), writer.op("ReduceMax", hit, axes=[1], keepdims=1))
        vectors = writer.op("Mul", vectors, writer.unsqueeze(writer.op("Div", nothing, nothing), 2))
    for name in (style.output, *style.extra_outputs):
        _output(writer, style, name, vectors, real, count, parts["score"])
    for layer in range(style.past_layers):
        for part in ("key", "value"):
            past = writer.input(f"past_key_values.{layer}.{part}", "float32", [style.batch, 2, "past", 4])
            writer.output(
                writer.op("Identity", past), f"present.{layer}.{part}", "float32", [style.batch, 2, "total", 4]
            )
    return writer.model("encoder", 17)


def _output(
    writer: GraphWriter, style: EncoderStyle, name: str, vectors: str, real: str, count: str, score: str
) -> None:
    shape: list[int | str] = [style.batch, "sequence", WIDTH]
    if name == "sentence_embedding":
        total = writer.op("ReduceSum", writer.op("Mul", vectors, real), writer.constant([1]), keepdims=1)
        vectors = writer.op("Squeeze", writer.op("Div", total, count), writer.constant([1]))
        shape = [style.batch, WIDTH]
    elif name == "logits":
        first = writer.op("Gather", vectors, writer.constant(0), axis=1)
        columns = writer.op(
            "Slice", score, writer.constant([0]), writer.constant([style.num_labels]), writer.constant([1])
        )
        vectors, shape = writer.op("MatMul", first, columns), [style.batch, style.num_labels]
    if style.out_dtype != "float32":
        vectors = writer.cast(vectors, style.out_dtype)
    writer.output(vectors, name, style.out_dtype, shape)


def word_tokenizer() -> Tokenizer:
    """``[CLS]`` 0, ``[SEP]`` 1, ``[PAD]`` 2, ``[UNK]`` 3, then ``w4``, ...; a text is put between [CLS] and [SEP]."""
    words = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", *(f"w{index}" for index in range(4, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words[:4]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    # As published files have it; both must be turned off.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(pad_id=PAD, pad_token="[PAD]", length=9)
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class EncoderFiles:
    """What the files beside the graph say; None leaves a file out."""

    modules: Sequence[str] | None = ("Transformer", "Pooling", "Normalize")
    pooling: dict[str, Any] = field(default_factory=lambda: {"pooling_mode_mean_tokens": True})
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None
    max_seq_length: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


def write_encoder_package(
    folder: Path, style: EncoderStyle | None = None, files: EncoderFiles | None = None, *, graph: str = "model.onnx"
) -> Path:
    """A package as Sentence Transformers and optimum write it. Returns `folder`."""
    files = files or EncoderFiles()
    (folder / graph).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build_encoder(style or EncoderStyle()), folder / graph)
    word_tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"pad_token": "[PAD]", "model_max_length": 10**30})
    config = {"model_type": "bert", "vocab_size": VOCAB, "hidden_size": WIDTH, "max_position_embeddings": PLACES}
    _write(folder / "config.json", {**config, **files.config})
    if files.modules is not None:
        paths = ["" if kind == "Transformer" else f"{number}_{kind}" for number, kind in enumerate(files.modules)]
        entries = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in enumerate(zip(files.modules, paths, strict=True))
        ]
        _write(folder / "modules.json", entries)
        for kind, path in zip(files.modules, paths, strict=True):
            if kind == "Pooling":
                _write(folder / path / "config.json", {"word_embedding_dimension": WIDTH, **files.pooling})
    if files.max_seq_length is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": files.max_seq_length, "do_lower_case": False})
    if files.prompts is not None:
        value = {"prompts": files.prompts, "default_prompt_name": files.default_prompt_name}
        _write(folder / "config_sentence_transformers.json", value)
    return folder


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    """A file of float32, float16 and int64 tensors. Source: the format description of the safetensors library."""
    names = {"float32": "F32", "float16": "F16", "int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    start = 0
    for name, array in tensors.items():
        end = start + array.nbytes
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
