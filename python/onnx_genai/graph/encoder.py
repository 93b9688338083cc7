"""Works out how a graph that encodes whole texts is to be driven: :func:`resolve_encoder`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph import names
from onnx_genai.graph.contract import DType, InputPort, KvPair
from onnx_genai.graph.index import GraphIndex, dims_of, dtype_name, dtype_of, shape_text, symbols_of
from onnx_genai.graph.kv import find_cache
from onnx_genai.graph.ports import PortFinder
from onnx_genai.graph.skeleton import load
from onnx_genai.package import ModelPackage
from onnx_genai.package.encoder import EncoderPackage

__all__ = ["EncoderContract", "EncoderTask", "describe_encoder", "encoder_task", "resolve_encoder"]

EncoderTask = Literal["embed", "score"]
"""``embed``: a text becomes a vector. ``score``: a pair of texts becomes one number."""

_SENTENCES = ("sentence_embedding", "sentence_embeddings", "text_embeds")
_TOKENS = ("token_embeddings", "last_hidden_state", "hidden_states", "encoder_output", "embeddings")
_POOLERS = ("pooler_output",)
_DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderContract:
    """An encoder, ready to be run; field by field the C++ ``EncoderSpec``, but for pooling, which is the package's."""

    model_path: Path
    task: EncoderTask
    input_ids: InputPort
    attention_mask: InputPort | None
    token_types: InputPort | None
    position_ids: InputPort | None
    pasts: tuple[KvPair, ...]
    """Pasts that are given empty."""
    output: str
    output_dtype: DType
    is_pooled: bool
    """The output has one vector a text, [batch, width]; else one a token, [batch, sequence, width]."""
    width: int
    max_batch: int
    """Rows that a run may have; 0 is any number."""


def encoder_task(package: ModelPackage) -> EncoderTask | None:
    """What the graph of a package encodes texts to; None for a model that generates text.

    Raises:
        NotFoundError, PackageError, UnsupportedError: The graph cannot be read, or is a classifier.
    """
    index = GraphIndex(load(package.model_path, root=package.root).model.graph)
    return _task(index, package, None)


def resolve_encoder(source: EncoderPackage, *, prefer_tokens: bool = False) -> EncoderContract:
    """Reads the graph of a package and returns how to drive it as an encoder.

    Args:
        source: What ``read_encoder`` returned.
        prefer_tokens: Take the output with a vector for each token even if there is one with a vector for each text.

    Raises:
        NotFoundError, PackageError: The graph is broken, or an input has no known role.
        UnsupportedError: A language model, a classifier of several labels, or fixed shapes.
    """
    package = source.package
    path = package.model_path
    try:
        index = GraphIndex(load(path, root=package.root).model.graph)
        task = _task(index, package, source.num_labels)
        if task is None:
            raise UnsupportedError(
                f"{path}: is a language model: its graph has {_decoder_sign(index)}, and no vector for a text. It "
                "generates text (onnx_genai.LLM); for embeddings take an embedding model, such as minilm."
            )
        output = index.outputs["logits"] if task == "score" else _embedding(index, package, prefer_tokens, path)
        return _contract(source, index, task, output)
    except UnicodeError as error:
        raise PackageError(f"{path}: is damaged ({error}). Download the file again.") from error


def describe_encoder(contract: EncoderContract) -> dict[str, Any]:
    """How an encoder is driven, in values that JSON can hold: kind, ports, output, is_pooled, width, max_batch."""
    named = {
        "input_ids": contract.input_ids,
        "attention_mask": contract.attention_mask,
        "token_type_ids": contract.token_types,
        "position_ids": contract.position_ids,
    }
    ports = {role: f"{port.name} ({port.dtype.value})" for role, port in named.items() if port is not None}
    if contract.pasts:
        ports["past"] = f"{len(contract.pasts)} inputs, given empty"
    return {
        "kind": "embedding" if contract.task == "embed" else "reranker",
        "ports": ports,
        "output": f"{contract.output} ({contract.output_dtype.value})",
        "is_pooled": contract.is_pooled,
        "width": contract.width,
        "max_batch": contract.max_batch or None,
    }


def _task(index: GraphIndex, package: ModelPackage, num_labels: int | None) -> EncoderTask | None:
    logits = index.outputs.get("logits")
    if logits is None:
        # Without names that say it, a graph is a language model: that reader knows how to look further.
        usual = (*_SENTENCES, *_TOKENS, *_POOLERS, *([package.io.hidden] if package.io.hidden else ()))
        return "embed" if any(name in index.outputs for name in usual) else None
    dims = dims_of(logits)
    if dims is None or len(dims) != 2:
        return None
    width = dims[1] if dims[1] > 0 else num_labels
    if width not in (None, 1):
        raise UnsupportedError(
            f"{package.model_path}: is a classifier with {width} labels; this version runs those with one, which score "
            "how well two texts fit (rerankers)"
        )
    return "score"


def _decoder_sign(index: GraphIndex) -> str:
    if "logits" in index.outputs:
        return f"the output logits {shape_text(index.outputs['logits'])}"
    return f"the outputs {', '.join(list(index.outputs)[:4])}"


def _embedding(index: GraphIndex, package: ModelPackage, prefer_tokens: bool, path: Path) -> onnx.ValueInfoProto:
    tokens = [name for name in (package.io.hidden, *_TOKENS) if name is not None and name in index.outputs]
    tokens = [name for name in tokens if len(dims_of(index.outputs[name]) or (0, 0, 0)) == 3]
    texts = [name for name in _SENTENCES if name in index.outputs]
    order = [*tokens, *texts] if prefer_tokens else [*texts, *tokens]
    # A pooler is a layer for pre-training, and no embedding: it is the last choice.
    order += [name for name in (*_TOKENS, *_POOLERS) if name in index.outputs and name not in order]
    if not order:
        raise PackageError(f"{path}: cannot tell the output with vectors; it has {', '.join(list(index.outputs)[:8])}")
    return index.outputs[order[0]]


def _contract(
    source: EncoderPackage, index: GraphIndex, task: EncoderTask, output: onnx.ValueInfoProto
) -> EncoderContract:
    package = source.package
    path, io = package.model_path, package.io
    finder = PortFinder(index, path, io.source or str(path))
    input_ids = finder.token_port(finder.declared(io.input_ids, "token ids", strict=io.strict))
    mask = finder.mask_port(finder.declared(io.attention_mask, "attention mask", strict=io.strict))
    positions = finder.position_port(finder.declared(io.position_ids, "positions", strict=io.strict))
    types = finder.port(None, names.TOKEN_TYPES, "token types", dtypes=(DType.INT64, DType.INT32), ranks=(2,))
    cache = find_cache(finder, io, package.kv, symbols_of(index.inputs[input_ids.name])[0])
    finder.fail_foreign()
    if positions is not None and positions.rank != 2:
        raise UnsupportedError(f"{path}: input {positions.name} has rank {positions.rank}; expected 2")
    dtype, dims = dtype_of(output), dims_of(output)
    if dtype not in _DTYPES or dtype is None:
        raise UnsupportedError(
            f"{path}: output {output.name} has the element type {dtype_name(output)}; this version reads "
            f"{', '.join(each.value for each in _DTYPES)}. Quantized outputs need another export."
        )
    if dims is None or len(dims) not in (2, 3):
        raise UnsupportedError(
            f"{path}: output {output.name} has the shape {shape_text(output)}; expected [batch, width] or "
            "[batch, sequence, width]"
        )
    width = 1 if task == "score" else dims[-1] if dims[-1] > 0 else source.hidden_size or 0
    if width < 1:
        raise PackageError(
            f"{path}: neither output {output.name} {shape_text(output)} nor config.json (hidden_size) tells the width "
            "of a vector. Add hidden_size to config.json."
        )
    sizes = {dims[0], *((dims_of(index.inputs[input_ids.name]) or (-1,))[:1])} - {-1, 0}
    return EncoderContract(
        model_path=path,
        task=task,
        input_ids=input_ids,
        attention_mask=mask,
        token_types=types,
        position_ids=positions,
        pasts=cache.pairs,
        output=output.name,
        output_dtype=dtype,
        is_pooled=len(dims) == 2,
        width=width,
        max_batch=min(sizes, default=0),
    )
