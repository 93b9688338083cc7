"""How the two graphs of an encoder-decoder are driven: :func:`cross_contract`."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph import names
from onnx_genai.graph.contract import (
    CacheStyle,
    CrossInput,
    CrossSource,
    DType,
    EncoderGraph,
    EncoderPort,
    EncoderRole,
    GraphContract,
    InputPort,
    KvPair,
)
from onnx_genai.graph.index import GraphIndex, dims_of, dtype_name, dtype_of, shape_text, symbols_of
from onnx_genai.graph.kv import Cache, find_cache
from onnx_genai.graph.ports import PortFinder
from onnx_genai.graph.skeleton import Skeleton
from onnx_genai.package import ModelPackage, SourceEncoder

__all__ = ["cross_contract"]

_IDS = (DType.INT64, DType.INT32)
_MASKS = (DType.INT64, DType.INT32)
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_HIDDEN_INPUTS = ("encoder_hidden_states", "encoder_outputs")
_HIDDEN_OUTPUTS = ("last_hidden_state", "encoder_hidden_states", "encoder_outputs", "hidden_states")
_MASK_INPUTS = ("encoder_attention_mask",)
_STATES = (("rnn_states_prev", "rnn_states"),)
"""Inputs and outputs of a recurrent decoder."""


def cross_contract(
    package: ModelPackage, part: SourceEncoder, decoder: Skeleton, index: GraphIndex, encoder: Skeleton
) -> tuple[GraphContract, Cache]:
    """Finds the roles of the ports of both graphs.

    Args:
        package: Says which names are declared.
        part: The same of its encoder.
        decoder: The graph of the tokens.
        index: Look-ups in it.
        encoder: The graph of the source.

    Raises:
        PackageError: An input has no known role, or the graphs do not fit each other.
        UnsupportedError: The source is no text, or a shape that cannot be driven.
    """
    sources = GraphIndex(encoder.model.graph)
    graph = _encoder_graph(part, encoder, sources)
    io = package.io
    finder = PortFinder(index, decoder.path, io.source or str(decoder.path))

    def declared(name: str | None, role: str) -> str | None:
        return finder.declared(name, role, strict=io.strict)

    input_ids = finder.port(
        declared(io.input_ids, "token ids"), names.INPUT_IDS, "token ids", dtypes=_IDS, ranks=(1, 2)
    )
    if input_ids is None:
        raise PackageError(
            f"{decoder.path}: cannot tell the token ids of the decoder; the inputs are {', '.join(index.inputs)}"
        )
    cross = (*_source_inputs(finder, part, graph, sources), *_cross_kv(finder, sources))
    states = _states(finder, part)
    past_name = declared(io.past_sequence_length, "past length")
    mask = finder.mask_port(declared(io.attention_mask, "attention mask"))
    positions = finder.position_port(declared(io.position_ids, "positions"))
    past_length = finder.length_port(past_name, names.PAST_LENGTH, "past length")
    cache_position = finder.length_port(None, names.CACHE_POSITION, "cache positions")
    use_cache = finder.flag_port()
    constants = finder.constants()
    cache = find_cache(finder, io, package.kv, symbols_of(index.inputs[input_ids.name])[0])
    adapter_inputs = finder.adapter_inputs()
    finder.fail_foreign()
    logits = _logits(finder, io.logits)
    contract = GraphContract(
        model_path=decoder.path,
        external_folder=decoder.folder,
        cache=CacheStyle.CROSS,
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=positions,
        past_sequence_length=past_length,
        cache_position=cache_position,
        use_cache_branch=use_cache,
        constants=constants,
        adapter_inputs=adapter_inputs,
        kv=cache.pairs,
        encoder=graph,
        cross=cross,
        states=states,
        logits=logits.name,
        logits_dtype=dtype_of(logits) or DType.FLOAT32,
        max_batch=_fixed_batch(finder, input_ids, logits, cross, states),
        cache_reason=_reason(cache, states),
        rewrite_reason="the graphs run as they are",
        external_files=(*decoder.external_files, encoder.path, *encoder.external_files),
    )
    return contract, cache


def _reason(cache: Cache, states: Sequence[KvPair]) -> str:
    if cache.pairs:
        kept = "its own KV grows"
    elif states:
        kept = "its state has a fixed size"
    else:
        kept = "it keeps nothing, so that its tokens run again each step"
    return f"the decoder reads what an encoder made of the source; {kept}"


def _encoder_graph(part: SourceEncoder, encoder: Skeleton, index: GraphIndex) -> EncoderGraph:
    finder = PortFinder(index, encoder.path, str(encoder.path))
    ports = []
    ids = part.input_ids if part.input_ids in index.inputs else "input_ids"
    if ids not in index.inputs:
        raise UnsupportedError(
            f"{encoder.path}: the encoder of this encoder-decoder pipeline takes no token ids (its inputs are "
            f"{', '.join(index.inputs)}): it reads speech or images. This version runs encoder-decoders of text only."
        )
    mask = part.attention_mask if part.attention_mask in index.inputs else "attention_mask"
    roles: dict[EncoderRole, str] = {"input_ids": ids, "attention_mask": mask}
    for role, name in roles.items():
        if name not in index.inputs:
            continue
        port = finder.as_port(name, f"{role} of the encoder", dtypes=_IDS, ranks=(2,))
        dims = tuple(dims_of(index.inputs[name]) or ())
        ports.append(EncoderPort(name=name, dtype=port.dtype, dims=dims, role=role))
    finder.fail_foreign()
    return EncoderGraph(model_path=encoder.path, inputs=tuple(ports), external_files=encoder.external_files)


def _source_inputs(
    finder: PortFinder, part: SourceEncoder, graph: EncoderGraph, sources: GraphIndex
) -> list[CrossInput]:
    """The encoder's states and the mask of the source, as far as the decoder takes them."""
    found = []
    hidden = _first(finder.unclaimed, part.decoder_hidden, _HIDDEN_INPUTS)
    if hidden is not None:
        finder.as_port(hidden, "states of the encoder", dtypes=_FLOATS, ranks=(3,))
        output = _first(sources.outputs, part.hidden, _HIDDEN_OUTPUTS)
        if output is None and len(sources.outputs) == 1:
            output = next(iter(sources.outputs))
        if output is None:
            raise PackageError(
                f"{graph.model_path}: cannot tell which output the decoder reads as {hidden}; the outputs are "
                f"{', '.join(sources.outputs)}"
            )
        found.append(_cross(finder, hidden, "encoder", output))
    mask = _first(finder.unclaimed, part.decoder_mask, _MASK_INPUTS)
    if mask is not None:
        finder.as_port(mask, "mask of the source", dtypes=_MASKS, ranks=(2,))
        found.append(_cross(finder, mask, "request", ""))
    return found


def _cross_kv(finder: PortFinder, sources: GraphIndex) -> list[CrossInput]:
    """KV of the source: made by the encoder, or by the first run of the decoder."""
    made_by_encoder = _cross_names(sources.outputs)
    made_by_decoder = _cross_names(finder.index.outputs)
    found = []
    for key, name in sorted(_cross_names(finder.unclaimed).items()):
        finder.claim(name)
        if key in made_by_encoder:
            found.append(_cross(finder, name, "encoder", made_by_encoder[key]))
        elif key in made_by_decoder:
            found.append(_cross(finder, name, "decoder", made_by_decoder[key]))
        else:
            raise PackageError(
                f"{finder.path}: nothing makes the input {name}: neither graph has an output of that layer. Export the "
                "model again, with encoder and decoder together."
            )
    return found


def _cross_names(values: dict[str, onnx.ValueInfoProto]) -> dict[tuple[int, str], str]:
    """Layer and part to name, of ports that hold KV of the source."""
    parsed = {name: names.parse_kv_name(name) for name in values}
    return {(kv.layer, kv.part): name for name, kv in parsed.items() if kv is not None and kv.side == "cross"}


def _cross(finder: PortFinder, name: str, source: CrossSource, made: str) -> CrossInput:
    value = finder.index.inputs[name]
    dtype, dims = dtype_of(value), dims_of(value)
    if dtype is None or not dims:
        raise PackageError(
            f"{finder.path}: input {name} ({dtype_name(value)} {shape_text(value)}) cannot be carried from the encoder"
        )
    return CrossInput(
        input=name,
        source=source,
        name=made,
        dtype=dtype,
        dims=tuple(dims),
    )


def _states(finder: PortFinder, part: SourceEncoder) -> tuple[KvPair, ...]:
    pairs = []
    for past, present in (*part.states, *_STATES):
        if past not in finder.unclaimed or present not in finder.index.outputs:
            continue
        value = finder.claim(past)
        dtype, dims = dtype_of(value), tuple(dims_of(value) or ())
        if dtype not in _FLOATS or len(dims) != 3 or dims[0] <= 0 or dims[2] <= 0:
            raise UnsupportedError(
                f"{finder.path}: the state {past} ({dtype_name(value)} {shape_text(value)}) is no float tensor "
                "[layers, batch, size] of fixed size"
            )
        pairs.append(KvPair(past=past, present=present, dtype=dtype, dims=dims, batch_axis=1, sequence_axis=2))
    return tuple(pairs)


def _logits(finder: PortFinder, declared: str | None) -> onnx.ValueInfoProto:
    outputs = finder.index.outputs
    name = _first(outputs, declared, names.LOGITS)
    if name is None:
        raise PackageError(f"{finder.path}: cannot tell the logits; the outputs are {', '.join(outputs)}")
    value = outputs[name]
    if dtype_of(value) not in _FLOATS or len(dims_of(value) or ()) not in (2, 3):
        raise UnsupportedError(
            f"{finder.path}: output {name} ({dtype_name(value)} {shape_text(value)}) is expected to be logits, float "
            "[batch, vocab] or [batch, sequence, vocab]"
        )
    return value


def _fixed_batch(
    finder: PortFinder,
    ids: InputPort,
    logits: onnx.ValueInfoProto,
    cross: Sequence[CrossInput],
    states: Sequence[KvPair],
) -> int:
    """Rows that each run has; 0 if the graph takes any number."""
    sizes = {(dims_of(value) or [-1])[0]: value.name for value in (finder.index.inputs[ids.name], logits)}
    sizes.update({item.dims[0]: item.input for item in cross})
    sizes.update({pair.dims[pair.batch_axis]: pair.past for pair in states})
    fixed = {size: name for size, name in sizes.items() if size > 0}
    if len(fixed) > 1:
        text = ", ".join(f"{name} {size}" for size, name in fixed.items())
        raise PackageError(f"{finder.path}: has different fixed batches: {text}. Export the model with dynamic shapes.")
    return next(iter(fixed), 0)


def _first(values: dict[str, onnx.ValueInfoProto], declared: str | None, usual: Sequence[str]) -> str | None:
    """The declared name if it is there, else the first usual one that is."""
    if declared is not None and declared in values:
        return declared
    return next((name for name in usual if name in values), None)
