"""The graph contract to the core's ``ModelSpec``; the two have the same fields."""

from __future__ import annotations

from onnx_genai import _core
from onnx_genai.graph import OPTIONAL_PORTS, ConstantInput, CrossInput, GraphContract, InputPort, KvPair, PagedLayer

__all__ = ["to_core_pair", "to_core_port", "to_core_spec"]


def to_core_spec(contract: GraphContract) -> _core.ModelSpec:
    """Copies every field of the contract that the core knows."""
    spec = _core.ModelSpec()
    spec.model_path = str(contract.model_path)
    spec.model_bytes = contract.model_bytes
    spec.external_folder = str(contract.external_folder)
    spec.cache = _core.CacheStyle[contract.cache.value]
    spec.input_ids = to_core_port(contract.input_ids)
    for name in OPTIONAL_PORTS:
        port: InputPort | None = getattr(contract, name)
        setattr(spec, name, None if port is None else to_core_port(port))
    spec.constants = [_constant(constant) for constant in contract.constants]
    spec.adapter_inputs = [
        _core.AdapterInput(name=each.name, has_default=each.has_default) for each in contract.adapter_inputs
    ]
    spec.kv = [to_core_pair(pair) for pair in contract.kv]
    if contract.encoder is not None:
        spec.encoder = _core.EncoderGraph(
            model_path=str(contract.encoder.model_path), inputs=[port.name for port in contract.encoder.inputs]
        )
    spec.cross = [_cross(cross) for cross in contract.cross]
    spec.states = [to_core_pair(pair) for pair in contract.states]
    spec.paged_layers = [_layer(layer) for layer in contract.paged_layers]
    spec.block_size = contract.block_size
    spec.num_blocks = contract.num_blocks
    spec.logits_of_rows = contract.logits_of_rows
    spec.logits = contract.logits
    spec.logits_dtype = _core.DType[contract.logits_dtype.value]
    spec.last_logits_only = contract.last_logits_only
    spec.vocab_size = contract.vocab_size
    spec.context_limit = contract.context_limit
    spec.context_source = contract.context_source
    spec.max_batch = contract.max_batch
    return spec


def to_core_port(port: InputPort) -> _core.InputPort:
    return _core.InputPort(port.name, _core.DType[port.dtype.value], port.rank)


def _constant(constant: ConstantInput) -> _core.ConstantInput:
    return _core.ConstantInput(
        port=to_core_port(constant.port),
        like_ids=constant.shape == "like_ids",
        dims=constant.dims,
        value=constant.value,
    )


def to_core_pair(pair: KvPair) -> _core.KvPair:
    return _core.KvPair(
        past=pair.past,
        present=pair.present,
        dtype=_core.DType[pair.dtype.value],
        dims=pair.dims,
        batch_axis=pair.batch_axis,
        sequence_axis=pair.sequence_axis,
    )


def _cross(cross: CrossInput) -> _core.CrossInput:
    return _core.CrossInput(
        input=cross.input,
        source=_core.CrossSource[cross.source],
        name=cross.name,
        dtype=_core.DType[cross.dtype.value],
        dims=cross.dims,
    )


def _layer(layer: PagedLayer) -> _core.PagedLayer:
    return _core.PagedLayer(
        key_cache=layer.key_cache,
        value_cache=layer.value_cache,
        key_scale=layer.key_scale,
        value_scale=layer.value_scale,
        dtype=_core.DType[layer.dtype.value],
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        value_dim=layer.value_dim,
        key_present=layer.key_present,
        value_present=layer.value_present,
    )
