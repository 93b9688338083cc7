"""Graphs that were exported with KV in blocks of their own: :func:`has_blocks`, :func:`block_contract`.

Their inputs are those of onnxruntime-genai's engine: the tokens of all sequences one after another, where each
sequence begins, how long it was, and its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph import names
from onnx_genai.graph.contract import CacheStyle, DType, GraphContract, InputPort, PagedLayer
from onnx_genai.graph.index import GraphIndex, dims_of, dtype_of, shape_text, symbols_of
from onnx_genai.graph.ports import PortFinder
from onnx_genai.graph.skeleton import Skeleton
from onnx_genai.package import ModelPackage

__all__ = ["block_contract", "has_blocks", "with_block_count"]

_BLOCK_SIZE = 16
"""Where the graph leaves it open."""
_CONTEXTS = 4
"""Full contexts that the blocks hold where the graph leaves their number open: each run writes all of them anew."""
_UNSTATED_CONTEXT = 2048
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_INT32 = (DType.INT32,)
_INTEGERS = (DType.INT64, DType.INT32)


@dataclass(frozen=True, slots=True)
class _Cache:
    """A tensor of blocks, [num_blocks, block_size, kv_heads, dim]; -1 where the graph leaves a size open."""

    past: str
    present: str
    dtype: DType
    dims: tuple[int, int, int, int]


def has_blocks(index: GraphIndex) -> bool:
    """Whether the graph takes block tables and where each sequence begins."""
    wanted = (names.BLOCK_TABLE, names.CUMULATIVE_LENGTHS, names.PAST_LENGTHS)
    return all(any(name in index.inputs for name in usual) for usual in wanted)


def block_contract(package: ModelPackage, skeleton: Skeleton, index: GraphIndex) -> GraphContract:
    """How to drive a graph for which :func:`has_blocks` holds.

    Raises:
        PackageError: An input has no known role, or a cache no output that goes on with it.
        UnsupportedError: Shapes or types that are not known.
    """
    path, io = skeleton.path, package.io
    finder = PortFinder(index, path, io.source or str(path))

    def port(usual: tuple[str, ...], role: str, dtypes: tuple[DType, ...], rank: int) -> InputPort | None:
        return finder.port(None, usual, role, dtypes=dtypes, ranks=(rank,))

    input_ids = port((io.input_ids or "", *names.INPUT_IDS), "token ids", _INTEGERS, 1)
    if input_ids is None:
        raise PackageError(f"{path}: takes block tables, but has no input of token ids ({names.INPUT_IDS[0]})")
    positions = port((io.position_ids or "", *names.POSITION_IDS), "positions", _INTEGERS, 1)
    cumulative = port(names.CUMULATIVE_LENGTHS, "where sequences begin", _INT32, 1)
    past = port(names.PAST_LENGTHS, "past lengths", _INT32, 1)
    table = port(names.BLOCK_TABLE, "block table", _INT32, 2)
    metadata = port(names.ATTENTION_METADATA, "attention metadata", _INT32, 1)
    indices = port(names.LOGITS_INDICES, "rows of logits", _INTEGERS, 1)
    layers, sizes = _layers(finder)
    adapter_inputs = finder.adapter_inputs()
    finder.fail_foreign()
    logits = _logits(index, io.logits, finder)
    width = (dims_of(logits) or (0,))[-1]
    return GraphContract(
        model_path=path,
        external_folder=skeleton.folder,
        cache=CacheStyle.PAGED,
        input_ids=input_ids,
        position_ids=positions,
        cumulative_sequence_length=cumulative,
        past_seqlens=past,
        block_table=table,
        attention_metadata=metadata,
        logits_indices=indices,
        adapter_inputs=adapter_inputs,
        paged_layers=layers,
        num_blocks=max(sizes[0], 0),
        block_size=sizes[1] if sizes[1] > 0 else _BLOCK_SIZE,
        logits_of_rows=indices is None and symbols_of(logits)[0] != symbols_of(index.inputs[input_ids.name])[0],
        logits=logits.name,
        logits_dtype=dtype_of(logits) or DType.FLOAT32,
        vocab_size=width if width > 0 else package.vocab_size or 0,
        cache_reason="the graph was exported with KV in blocks of its own",
        rewrite_reason="nothing is rewritten: the graph takes block tables",
        external_files=skeleton.external_files,
    )


def with_block_count(contract: GraphContract) -> GraphContract:
    """The contract with a number of blocks, if the graph leaves it open."""
    if contract.num_blocks:
        return contract
    positions = _CONTEXTS * (contract.context_limit or _UNSTATED_CONTEXT)
    return replace(contract, num_blocks=-(-positions // contract.block_size))


def _layers(finder: PortFinder) -> tuple[tuple[PagedLayer, ...], tuple[int, int]]:
    """The caches by layer, and how many blocks of how many positions they have."""
    caches: dict[tuple[int, str], _Cache] = {}
    outputs = {names.parse_kv_name(name): name for name in finder.index.outputs}
    for name in list(finder.unclaimed):
        found = names.parse_kv_name(name)
        if found is None or found.side != "past" or found.part == "packed":
            continue
        present = outputs.get(names.KvName("present", found.layer, found.part))
        if present is None:
            raise PackageError(f"{finder.path}: no output goes on with the KV input {name}; expected present.N.key")
        caches[found.layer, found.part] = _cache(finder, name, present)
    if not caches:
        raise PackageError(f"{finder.path}: takes block tables, but has no KV inputs (past_key_values.N.key)")
    layers = []
    for layer in sorted({layer for layer, _ in caches}):
        key, value = caches.get((layer, "key")), caches.get((layer, "value"))
        if key is None or value is None or key.dims[2] != value.dims[2] or key.dtype is not value.dtype:
            raise PackageError(f"{finder.path}: keys and values of layer {layer} differ in type or number of heads")
        layers.append(
            PagedLayer(
                key_cache=key.past,
                value_cache=value.past,
                key_present=key.present,
                value_present=value.present,
                dtype=key.dtype,
                kv_heads=key.dims[2],
                head_dim=key.dims[3],
                value_dim=value.dims[3],
            )
        )
    sizes = {cache.dims[:2] for cache in caches.values()}
    if len(sizes) != 1:
        raise UnsupportedError(
            f"{finder.path}: its caches have {len(sizes)} different numbers or sizes of blocks; this version keeps all "
            "layers in the same blocks. Export without sliding windows."
        )
    return tuple(layers), sizes.pop()


def _cache(finder: PortFinder, name: str, present: str) -> _Cache:
    value = finder.claim(name)
    dtype, dims = dtype_of(value), dims_of(value)
    if dtype not in _FLOATS or dtype is None or dims is None or len(dims) != 4 or min(dims[2:]) < 1:
        raise UnsupportedError(
            f"{finder.path}: KV input {name} has the shape {shape_text(value)}; this version keeps blocks of floats, "
            "[num_blocks, block_size, kv_heads, head_dim] with stated heads and width."
        )
    return _Cache(name, present, dtype, (dims[0], dims[1], dims[2], dims[3]))


def _logits(index: GraphIndex, declared: str | None, finder: PortFinder) -> onnx.ValueInfoProto:
    name = next((name for name in (declared or "", *names.LOGITS) if name in index.outputs), None)
    if name is None:
        raise PackageError(f"{finder.path}: has no output of logits; it has {', '.join(list(index.outputs)[:8])}")
    value = index.outputs[name]
    dims = dims_of(value)
    if dims is None or len(dims) != 2 or dtype_of(value) not in _FLOATS:
        raise UnsupportedError(
            f"{finder.path}: output {name} has the shape {shape_text(value)}; this version reads float logits of the "
            "shape [rows, vocab] from a graph with block tables."
        )
    return value
