"""Works out how a package's graph is to be driven: :func:`resolve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import onnx

from onnx_genai.errors import InvalidArgumentError, PackageError, UnsupportedError
from onnx_genai.graph import names
from onnx_genai.graph.blocks import block_contract, has_blocks, with_block_count
from onnx_genai.graph.contract import CacheStyle, DType, GraphContract, InputPort
from onnx_genai.graph.cross import cross_contract
from onnx_genai.graph.index import GraphIndex, dims_of, dtype_of, shape_text, symbols_of
from onnx_genai.graph.integer_nodes import write_integer_products
from onnx_genai.graph.join import with_embedding
from onnx_genai.graph.kv import Cache, find_cache
from onnx_genai.graph.last_logits import Rewrite, last_logits, mapped
from onnx_genai.graph.limits import graph_limits
from onnx_genai.graph.native import native_products, operator_counts
from onnx_genai.graph.paged import paged
from onnx_genai.graph.ports import PortFinder
from onnx_genai.graph.projection import logits_width
from onnx_genai.graph.skeleton import Skeleton, load
from onnx_genai.graph.weights import reshape_references
from onnx_genai.package import ContextLimit, IoRoles, ModelPackage, SourceEncoder
from onnx_genai.types import Backend

__all__ = ["resolve"]

_MAPPED_BYTES = 1024 * 1024
"""From this many bytes of weights inside the .onnx file they are referred to instead of parsed."""

_STYLE_NAMES = {
    CacheStyle.SLOT_GQA: "slot",
    CacheStyle.SLOT_STATIC: "slot",
    CacheStyle.COPY: "copy",
    CacheStyle.NONE: "none",
}
_LOGITS_DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_ENCODER_OUTPUTS = ("last_hidden_state", "sentence_embedding", "token_embeddings", "pooler_output", "embeddings")


_QUANTIZED = (
    "MatMulNBits",
    "MatMulBnb4",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QLinearMatMul",
    "DequantizeLinear",
)
"""Operators that a graph with quantized weights has."""

Decoder = Literal["auto", "paged", "slot", "copy"]
KvDType = Literal["auto", "float32", "float16", "bfloat16", "int8"]


def resolve(
    package: ModelPackage,
    *,
    last_logits: bool = True,
    decoder: Decoder = "auto",
    kv_dtype: KvDType = "auto",
    backend: Backend = "ort",
) -> GraphContract:
    """Reads the graph of a package and returns how to drive it.

    Roles come from the package where it declares them, else from the graph's port names, shapes and operators; never
    from the name of the model.

    Args:
        package: What :func:`onnx_genai.package.read` returned.
        last_logits: Rewrite the graph, in memory, so that a prompt computes the logits of its last position only and
            weights inside the file are mapped instead of parsed. False leaves the file as it is.
        decoder: Who keeps the KV. "paged" rewrites the graph to PagedAttention, in memory; "slot" and "copy" take it
            as it is; "auto" takes the first of them that the graph allows, and no "paged" without ``last_logits``.
        kv_dtype: Element type of the KV. Others than the graph's need the paged decoder. "auto" is that of the graph,
            but float16 where weights are quantized, the graph keeps float32 and the paged decoder runs.
        backend: Whose quantized products the graph has: "ort" leaves those of ONNX Runtime, "auto" and "native" rewrite
            to ours what can be, in memory; "native" fails if nothing can. Other than "ort" it needs ``last_logits``.

    Raises:
        PackageError: The file is broken or weights are missing, a declared port does not exist, or an input has no
            known role.
        UnsupportedError: An operator, cache layout or kind of model that cannot run yet, or not with this decoder or
            backend.
        InvalidArgumentError: An unknown decoder, element type or backend.
        NotFoundError: The graph file has gone.
    """
    path = package.model_path
    for name, given, known in (
        ("decoder", decoder, get_args(Decoder)),
        ("kv_dtype", kv_dtype, get_args(KvDType)),
        ("backend", backend, get_args(Backend)),
    ):
        if given not in known:
            raise InvalidArgumentError(f"{name} is {given!r}; allowed: {', '.join(known)}")
    try:
        skeleton = load(path, root=package.root)
        if package.encoder is not None:
            _check_cross(path, decoder, kv_dtype, backend)
            return _cross(package, package.encoder, skeleton)
        if package.embedding is not None:
            skeleton = with_embedding(skeleton, package.embedding, package.root)
        problems: dict[str, str] = {}
        if last_logits and backend != "ort":
            skeleton, problems = write_integer_products(skeleton, package.session_options.config_entries)
        index = GraphIndex(skeleton.model.graph)
        if has_blocks(index):
            contract = with_block_count(_with_limit(block_contract(package, skeleton, index), package, index, 0))
            _check_blocks(contract, decoder, kv_dtype)
        else:
            contract = _contract(package, skeleton, index)
        if (last_logits or decoder != "auto") and contract.cache is not CacheStyle.PAGED:
            contract = _decoder(contract, package, skeleton, index, decoder, kv_dtype)
        if last_logits and contract.cache is not CacheStyle.PAGED:
            contract = _rewritten(contract, skeleton, index)
        if skeleton.is_joined and not contract.model_bytes:
            contract = _whole(contract, skeleton)
        if last_logits:
            contract = native_products(contract, skeleton, backend, problems)
        if contract.model_bytes and reshape_references(skeleton.model.graph):
            contract = replace(contract, model_bytes=skeleton.model.SerializeToString())
        return replace(contract, operators=operator_counts(skeleton.model.graph))
    except UnicodeError as error:
        raise PackageError(f"{path}: is damaged ({error}). Download the file again.") from error


def _cross(package: ModelPackage, part: SourceEncoder, decoder: Skeleton) -> GraphContract:
    index = GraphIndex(decoder.model.graph)
    contract, cache = cross_contract(package, part, decoder, index, load(part.path, root=package.root))
    contract = _with_facts(contract, package, index, cache)
    return replace(contract, operators=operator_counts(decoder.model.graph))


def _check_cross(path: Path, decoder: Decoder, kv_dtype: KvDType, backend: Backend) -> None:
    """What can be chosen for an encoder-decoder: nothing."""
    for name, given in (("decoder", decoder), ("kv_dtype", kv_dtype)):
        if given != "auto":
            raise UnsupportedError(
                f"{path}: {name} is {given!r}, but an encoder-decoder runs as its graphs are. Leave {name} at 'auto'."
            )
    if backend == "native":
        raise UnsupportedError(
            f"{path}: backend is 'native', but an encoder-decoder runs with ONNX Runtime's kernels. Leave backend at "
            "'auto'."
        )


def _check_blocks(contract: GraphContract, decoder: Decoder, kv_dtype: KvDType) -> None:
    """What can be chosen for a graph with blocks of its own: nothing."""
    kept = contract.paged_layers[0].dtype.value
    if decoder not in ("auto", "paged"):
        raise UnsupportedError(
            f"{contract.model_path}: decoder is {decoder!r}, but the graph runs as 'paged' only: "
            f"{contract.cache_reason}. Leave decoder at 'auto'."
        )
    if kv_dtype not in ("auto", kept):
        raise UnsupportedError(
            f"{contract.model_path}: kv_dtype is {kv_dtype!r}, but the graph keeps blocks of {kept}. "
            "Leave it at 'auto'."
        )


def _decoder(
    contract: GraphContract,
    package: ModelPackage,
    skeleton: Skeleton,
    index: GraphIndex,
    decoder: Decoder,
    kv_dtype: KvDType,
) -> GraphContract:
    """Rewrites the graph for the paged decoder if that is wanted and possible, and checks that the wish can be met."""
    wanted = None if kv_dtype == "auto" else DType(kv_dtype)
    if decoder in ("auto", "paged"):
        found = paged(_without_capacity(contract, package, index), skeleton, index, wanted or _auto_kv(contract, index))
        if found.cache is CacheStyle.PAGED:
            return found
        contract = replace(contract, coverage=found.coverage)
    if decoder == "copy" and contract.cache is CacheStyle.SLOT_GQA:
        contract = replace(contract, cache=CacheStyle.COPY, cache_reason="the decoder 'copy' was asked for")
    style, coverage = _STYLE_NAMES[contract.cache], contract.coverage
    if decoder not in ("auto", style):
        why = coverage.problems[0] if decoder == "paged" else contract.cache_reason
        more = (
            f" ({coverage.num_problems} such reasons; onnx-genai show lists them)" if coverage.num_problems > 1 else ""
        )
        raise UnsupportedError(
            f"{contract.model_path}: decoder is {decoder!r}, but the graph runs as {style!r} only: {why}{more}. Leave "
            "decoder at 'auto', or export the model with GroupQueryAttention."
        )
    differs = [pair for pair in contract.kv if pair.dtype is not wanted]
    if wanted is not None and (differs or not contract.kv):
        kept = f"KV as the graph does, {differs[0].dtype.value}" if differs else "no KV"
        why = f" ({coverage.problems[0]})" if coverage.problems else ""
        raise UnsupportedError(
            f"{contract.model_path}: kv_dtype is {kv_dtype!r}, but the decoder {style!r} keeps {kept}. Only the paged "
            f"decoder keeps another type, and this graph does not run with it{why}. Leave kv_dtype at 'auto'."
        )
    return contract


def _auto_kv(contract: GraphContract, index: GraphIndex) -> DType | None:
    """float16 for float32 KV of a model whose weights are quantized: a rounding far below that of the weights."""
    quantized = any(node.op_type in _QUANTIZED for node in index.graph.node)
    return DType.FLOAT16 if quantized and all(pair.dtype is DType.FLOAT32 for pair in contract.kv) else None


def _contract(package: ModelPackage, skeleton: Skeleton, index: GraphIndex) -> GraphContract:
    path, io = skeleton.path, package.io
    finder = PortFinder(index, path, io.source or str(path))

    def declared(name: str | None, role: str) -> str | None:
        return finder.declared(name, role, strict=io.strict)

    input_ids = finder.token_port(declared(io.input_ids, "token ids"))
    mask = finder.mask_port(declared(io.attention_mask, "attention mask"))
    positions = finder.position_port(declared(io.position_ids, "positions"))
    seqlens = finder.length_port(declared(io.seqlens_k, "key lengths"), names.SEQLENS_K, "key lengths")
    total = finder.length_port(declared(io.total_sequence_length, "total length"), names.TOTAL_LENGTH, "total length")
    past_name = declared(io.past_sequence_length, "past length")
    past_length = finder.length_port(past_name, names.PAST_LENGTH, "past length")
    roles = io.static_cache
    indices = finder.length_port(
        declared(roles.write_indices if roles else None, "write indices"), names.WRITE_INDICES, "write indices"
    )
    kv_length = finder.length_port(
        declared(roles.kv_sequence_length if roles else None, "KV length"), names.KV_LENGTH, "KV length"
    )
    cache_position = finder.length_port(None, names.CACHE_POSITION, "cache positions")
    use_cache = finder.flag_port()
    constants = finder.constants()
    batch_symbol = symbols_of(index.inputs[input_ids.name])[0]
    cache = find_cache(finder, io, package.kv, batch_symbol)
    by_use = finder.lengths_by_use()
    indices = indices or by_use.get("write_indices")
    kv_length = kv_length or by_use.get("nonpad_kv_seqlen")
    adapter_inputs = finder.adapter_inputs()
    finder.fail_foreign()
    _check_cache(cache, path, indices, kv_length, mask)
    logits = _logits(index, io, cache, package, path)
    contract = GraphContract(
        model_path=path,
        external_folder=skeleton.folder,
        cache=cache.style,
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=positions,
        seqlens_k=seqlens or by_use.get("seqlens_k"),
        total_sequence_length=total or by_use.get("total_sequence_length"),
        past_sequence_length=past_length,
        cache_position=cache_position,
        use_cache_branch=use_cache,
        write_indices=indices,
        nonpad_kv_seqlen=kv_length,
        constants=constants,
        adapter_inputs=adapter_inputs,
        kv=cache.pairs,
        logits=logits.name,
        logits_dtype=dtype_of(logits) or DType.FLOAT32,
        max_batch=_max_batch(index, [input_ids, mask, positions], cache, logits, path),
        cache_reason=cache.reason,
        external_files=skeleton.external_files,
    )
    return _with_facts(contract, package, index, cache)


def _check_cache(
    cache: Cache, path: Path, indices: InputPort | None, kv_length: InputPort | None, mask: InputPort | None
) -> None:
    if cache.style is not CacheStyle.SLOT_STATIC:
        if indices is not None:
            raise PackageError(
                f"{path}: has the input {indices.name}, but no cache that is written at given positions. Declare "
                "model.io.static_cache in inference_metadata.yaml."
            )
        return
    if indices is None:
        raise PackageError(
            f"{path}: has a static cache ({cache.pairs[0].past}), but no input that says where to write. Declare "
            "model.io.static_cache.write_indices_input in inference_metadata.yaml."
        )
    if kv_length is None and mask is None:
        raise PackageError(
            f"{path}: has a static cache ({cache.pairs[0].past}), but no input that says how much of it is valid. "
            "Declare model.io.static_cache.kv_sequence_length_input in inference_metadata.yaml."
        )


def _logits(index: GraphIndex, io: IoRoles, cache: Cache, package: ModelPackage, path: Path) -> onnx.ValueInfoProto:
    """Returns the logits output: declared, by name, or the only output that has the right shape."""
    name = io.logits
    if name is not None and name not in index.outputs:
        if io.strict:
            raise PackageError(
                f"{io.source}: declares the output {name!r} as logits, but {path.name} does not have it; its outputs "
                f"are {', '.join(list(index.outputs)[:8])}"
            )
        name = None
    name = name or next((usual for usual in names.LOGITS if usual in index.outputs), None)
    if name is None:
        taken = {pair.present for pair in cache.pairs} | {io.hidden}
        fits = [
            key
            for key, value in index.outputs.items()
            if key not in taken and dtype_of(value) in _LOGITS_DTYPES and _may_be_logits(value, package.vocab_size)
        ]
        if len(fits) != 1 or fits[0] in _ENCODER_OUTPUTS:
            raise _no_logits(index, fits, path)
        name = fits[0]
    value = index.outputs[name]
    dims = dims_of(value)
    if dims is not None and len(dims) != 3:
        raise UnsupportedError(
            f"{path}: output {name} has the shape {shape_text(value)}; this version reads logits of the shape "
            "[batch, sequence, vocab]. A classifier or a step model of another runtime cannot generate text here."
        )
    if value.type.tensor_type.elem_type != 0 and dtype_of(value) not in _LOGITS_DTYPES:
        allowed = ", ".join(item.value for item in _LOGITS_DTYPES)
        raise PackageError(f"{path}: output {name} (logits) has no float type; expected {allowed}")
    return value


def _may_be_logits(value: onnx.ValueInfoProto, vocab_size: int | None) -> bool:
    dims = dims_of(value)
    if dims is None or len(dims) != 3:
        return False
    return dims[-1] < 0 or vocab_size is None or dims[-1] >= vocab_size


def _no_logits(index: GraphIndex, fits: list[str], path: Path) -> Exception:
    encoder = next((name for name in _ENCODER_OUTPUTS if name in index.outputs), None)
    if encoder is not None:
        return UnsupportedError(
            f"{path}: has the output {encoder} and no logits: it is an embedding model, which generates no text; use "
            "onnx_genai.Embedder, or onnx-genai embed"
        )
    why = f"{len(fits)} outputs could be them ({', '.join(fits)})" if fits else "no output of the shape [b, s, vocab]"
    return PackageError(
        f"{path}: cannot tell the logits: {why}; the outputs are {', '.join(list(index.outputs)[:8])}. Declare them as "
        "model.io.logits_output in inference_metadata.yaml."
    )


def _max_batch(
    index: GraphIndex, ports: list[InputPort | None], cache: Cache, logits: onnx.ValueInfoProto, path: Path
) -> int:
    """Static batch dimension of any port; 0 if all are symbolic."""
    sizes: dict[int, str] = {}
    for port in ports:
        if port is not None and port.rank == 2:
            dims = dims_of(index.inputs[port.name])
            if dims is not None and dims[0] > 0:
                sizes[dims[0]] = port.name
    for pair in cache.pairs:
        if pair.dims[pair.batch_axis] > 0:
            sizes[pair.dims[pair.batch_axis]] = pair.past
    dims = dims_of(logits)
    if dims is not None and dims[0] > 0:
        sizes[dims[0]] = logits.name
    if any(size != 1 for size in sizes):
        size, name = next((size, name) for size, name in sizes.items() if size != 1)
        raise UnsupportedError(
            f"{path}: {name} has a fixed batch of {size}; this version needs a symbolic batch, or 1. Export the model "
            "with dynamic shapes."
        )
    return 1 if sizes else 0


def _with_facts(contract: GraphContract, package: ModelPackage, index: GraphIndex, cache: Cache) -> GraphContract:
    """Adds vocabulary, limits and notes."""
    notes = []
    width = logits_width(index, contract.logits)
    if width and package.vocab_size and width != package.vocab_size:
        notes.append(
            f"the graph has logits for {width} tokens, {package.vocab_source} says {package.vocab_size}; the graph wins"
        )
    if any(symbol == "" and size == 1 for symbol, size in _sequence_dims(index, contract.logits)):
        last_only = True
    else:
        last_only = any(item.port.name in names.LOGITS_TO_KEEP for item in contract.constants)
    contract = replace(
        contract, vocab_size=width or package.vocab_size or 0, last_logits_only=last_only, notes=tuple(notes)
    )
    return _with_limit(contract, package, index, cache.capacity)


def _with_limit(contract: GraphContract, package: ModelPackage, index: GraphIndex, capacity: int) -> GraphContract:
    """Adds the smallest limit; ``capacity`` is that of a static cache, or 0."""
    name = contract.model_path.name
    position = contract.position_ids.name if contract.position_ids is not None else None
    limits = (*package.context_limits, *graph_limits(index, position, name))
    if capacity:
        limits += (ContextLimit(tokens=capacity, source=f"{name} static cache capacity"),)
    limit = min(limits, key=lambda item: item.tokens, default=None)
    return replace(
        contract,
        context_limit=limit.tokens if limit is not None else 0,
        context_source=limit.source if limit is not None else "",
    )


def _without_capacity(contract: GraphContract, package: ModelPackage, index: GraphIndex) -> GraphContract:
    """The contract with the limit that holds when the static cache is gone; as it is if nothing else tells a limit."""
    if contract.cache is not CacheStyle.SLOT_STATIC:
        return contract
    freed = _with_limit(contract, package, index, 0)
    return freed if freed.context_limit else contract


def _sequence_dims(index: GraphIndex, logits: str) -> list[tuple[str, int]]:
    value = index.outputs[logits]
    dims = dims_of(value)
    return [(symbols_of(value)[1], dims[1])] if dims is not None and len(dims) == 3 else []


def _whole(contract: GraphContract, skeleton: Skeleton) -> GraphContract:
    """The contract with the joined graph, which no file holds."""
    rewrite = mapped(skeleton, contract.rewrite_reason)
    if not rewrite.model_bytes:
        raise UnsupportedError(
            f"{skeleton.path}: the weights of the decoder and of its embedding cannot be referred to from one place. "
            "Put them on one drive, and export without large constants in functions."
        )
    return replace(contract, model_bytes=rewrite.model_bytes, external_folder=rewrite.folder)


def _rewritten(contract: GraphContract, skeleton: Skeleton, index: GraphIndex) -> GraphContract:
    cut = not contract.last_logits_only
    if cut:
        rewrite = last_logits(skeleton, index, contract.logits)
        cut = bool(rewrite.model_bytes)
    else:
        reason = "the graph computes the logits of the last position only"
        rewrite = Rewrite(folder=skeleton.folder, reason=reason)
    if not rewrite.model_bytes and (skeleton.is_joined or skeleton.weights_inside >= _MAPPED_BYTES):
        rewrite = mapped(skeleton, rewrite.reason)
    return replace(
        contract,
        model_bytes=rewrite.model_bytes,
        external_folder=rewrite.folder,
        last_logits_only=contract.last_logits_only or cut,
        rewrite_reason=rewrite.reason,
    )
