"""A contract in plain values, for ``show``: :func:`describe`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onnx_genai.graph.contract import OPTIONAL_PORTS, CacheStyle, EncoderGraph, GraphContract, InputPort
from onnx_genai.words import counted

__all__ = ["describe"]

_DECODERS = {
    CacheStyle.SLOT_GQA: "slot (past and present share one buffer)",
    CacheStyle.SLOT_STATIC: "slot (static cache)",
    CacheStyle.COPY: "copy (present is a new tensor each step)",
    CacheStyle.PAGED: "paged (KV in blocks, many sequences in one run)",
    CacheStyle.CROSS: "cross (an encoder-decoder: the encoder runs once a request)",
    CacheStyle.NONE: "none (the whole text runs again each step)",
}

_SOURCES = {
    "encoder": "the encoder's {}",
    "request": "mask of the source",
    "decoder": "made by the first run as {}",
}


def describe(contract: GraphContract) -> dict[str, Any]:
    """Returns what the graph is and how it is driven, in values that JSON can hold.

    Keys: model, decoder, why, encoder (of an encoder-decoder), ports, kv, coverage, products, operators, logits,
    vocab_size, context_limit, context_source, max_batch, rewrite, external_files, notes.
    """
    ports: dict[str, str] = {}
    for role in ("input_ids", *OPTIONAL_PORTS):
        port = getattr(contract, role)
        if isinstance(port, InputPort):
            ports[role] = f"{port.name} ({port.dtype.value}, rank {port.rank})"
    for constant in contract.constants:
        ports[constant.port.name] = f"always {constant.value} ({constant.port.dtype.value})"
    notes = list(contract.notes)
    if contract.adapter_inputs:
        needed = sum(1 for each in contract.adapter_inputs if not each.has_default)
        more = f"; {needed} of them have no value without one" if needed else ""
        notes.append(f"adapters can feed {counted(len(contract.adapter_inputs), 'input')}{more}")
    if contract.max_batch:
        together = "one after another" if contract.max_batch == 1 else f"{contract.max_batch} at a time"
        notes.append(f"the batch dimension is fixed to {contract.max_batch}; sequences run {together}")
    for cross in contract.cross:
        ports[cross.input] = f"{_SOURCES[cross.source].format(cross.name)} ({cross.dtype.value})"
    for pair in contract.states:
        ports[pair.past] = f"state, continued by {pair.present} ({pair.dtype.value} {list(pair.dims)})"
    encoder = contract.encoder
    return {
        "model": str(contract.model_path),
        "decoder": _DECODERS[contract.cache],
        "why": contract.cache_reason,
        **({} if encoder is None else {"encoder": _encoder(encoder)}),
        "ports": ports,
        "kv": _layers(contract) if contract.paged_layers else _pairs(contract),
        "coverage": {
            "attention_nodes": contract.coverage.attention_nodes,
            "replaced": contract.coverage.replaced,
            "problems": list(contract.coverage.problems),
            "num_problems": contract.coverage.num_problems,
        },
        "products": {**asdict(contract.products), "backend": contract.products.backend},
        "operators": _operators(contract),
        "logits": f"{contract.logits} ({contract.logits_dtype.value})",
        "vocab_size": contract.vocab_size or None,
        "context_limit": contract.context_limit or None,
        "context_source": contract.context_source or None,
        "max_batch": contract.max_batch or None,
        "rewrite": contract.rewrite_reason,
        "external_files": [str(path) for path in contract.external_files],
        "notes": notes,
    }


def _encoder(encoder: EncoderGraph) -> dict[str, Any]:
    return {
        "model": str(encoder.model_path),
        "ports": {port.role: f"{port.name} ({port.dtype.value})" for port in encoder.inputs},
        "width": encoder.width or None,
    }


def _operators(contract: GraphContract) -> dict[str, dict[str, int]]:
    """Kernel to operator to number of nodes."""
    found: dict[str, dict[str, int]] = {}
    for count in contract.operators:
        found.setdefault(count.kernel, {})[count.op_type] = count.nodes
    return found


def _pairs(contract: GraphContract) -> dict[str, Any]:
    kv: dict[str, Any] = {"tensors": len(contract.kv)}
    if contract.kv:
        first = contract.kv[0]
        kv["dtype"] = first.dtype.value
        kv["shape"] = [None if size < 0 else size for size in first.dims]
        kv["uniform"] = all((pair.dims, pair.dtype) == (first.dims, first.dtype) for pair in contract.kv)
    return kv


def _layers(contract: GraphContract) -> dict[str, Any]:
    first = contract.paged_layers[0]
    sizes = {(layer.kv_heads, layer.head_dim, layer.value_dim, layer.dtype) for layer in contract.paged_layers}
    return {
        "tensors": 2 * len(contract.paged_layers),
        "layers": len(contract.paged_layers),
        "dtype": first.dtype.value,
        "heads": first.kv_heads,
        "head_dim": first.head_dim,
        "value_dim": first.value_dim,
        "block_size": contract.block_size,
        "uniform": len(sizes) == 1,
    }
