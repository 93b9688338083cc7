"""Pairs past inputs with present outputs, works out their shapes, and decides the cache style."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph.contract import CacheStyle, DType, KvPair
from onnx_genai.graph.index import (
    GraphIndex,
    attribute_int,
    dims_of,
    dtype_name,
    dtype_of,
    input_of,
    shape_text,
    symbols_of,
)
from onnx_genai.graph.names import KvName, parse_kv_name
from onnx_genai.graph.ports import PortFinder
from onnx_genai.package import IoRoles, KvHints

__all__ = ["Cache", "find_cache"]

# Operators that take a past and give the present that continues it: {input: output}.
_PAST_TO_PRESENT = {
    ("com.microsoft", "GroupQueryAttention"): {3: 1, 4: 2},
    ("com.microsoft", "MultiHeadAttention"): {6: 1, 7: 2},
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): {5: 1, 6: 2},
    ("com.microsoft", "Attention"): {4: 1},
    ("", "Attention"): {4: 1, 5: 2},
    ("", "TensorScatter"): {0: 0},
    ("", "Concat"): {0: 0},
}
_KV_DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT8)
_GQA = ("com.microsoft", "GroupQueryAttention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The KV of a graph."""

    style: CacheStyle
    pairs: tuple[KvPair, ...]
    reason: str
    capacity: int = 0
    """Static positions of a static cache; 0 if the caller chooses."""


@dataclass(frozen=True, slots=True)
class _Match:
    past: str
    present: str


def find_cache(finder: PortFinder, io: IoRoles, hints: KvHints, batch_symbol: str) -> Cache:
    """Claims the KV inputs and returns the cache.

    Raises:
        PackageError: A past without a present, or a dimension that nothing tells.
        UnsupportedError: A layout that the decoders cannot drive.
    """
    static = _static_matches(finder, io)
    if static:
        return _static_cache(finder, static, hints)
    matches = _declared_matches(finder, io) or _template_matches(finder, io) or _named_matches(finder)
    matches = matches or _matches_by_use(finder)
    if not matches:
        return Cache(style=CacheStyle.NONE, pairs=(), reason="the graph has no past inputs")
    pairs = tuple(_pair(finder, match, hints, batch_symbol) for match in matches)
    why_not = _why_not_shared(finder.index, pairs)
    if why_not is None:
        reason = "every past is read by one GroupQueryAttention only, which writes its present"
        return Cache(style=CacheStyle.SLOT_GQA, pairs=pairs, reason=reason)
    return Cache(style=CacheStyle.COPY, pairs=pairs, reason=why_not)


def _declared_matches(finder: PortFinder, io: IoRoles) -> list[_Match]:
    matches = []
    for past, present in zip(io.kv_inputs, io.kv_outputs, strict=True):
        finder.declared(past, "KV input", strict=True)
        if present not in finder.index.outputs:
            raise PackageError(
                f"{io.source}: declares the KV output {present!r}, but {finder.path.name} does not have it; "
                f"its outputs are {', '.join(list(finder.index.outputs)[:8])}"
            )
        matches.append(_Match(past, present))
    return matches


def _template_matches(finder: PortFinder, io: IoRoles) -> list[_Match]:
    """Pairs by the ``%d`` names of genai_config.json, for the layers that the graph has."""
    templates = io.kv_templates
    if templates is None:
        return []
    found: list[tuple[int, int, _Match]] = []
    kinds = (
        (templates.past_key, templates.present_key),
        (templates.past_value, templates.present_value),
        (templates.packed_past, templates.packed_present),
    )
    for rank, (past, present) in enumerate(kinds):
        if past is None or present is None:
            continue
        pattern = re.compile(re.escape(past).replace("%d", r"(\d{1,6})"))
        for name in finder.unclaimed:
            match = pattern.fullmatch(name)
            output = present.replace("%d", match[1]) if match else ""
            if match and output in finder.index.outputs:
                found.append((int(match[1]), rank, _Match(name, output)))
    return [match for _, _, match in sorted(found, key=lambda item: item[:2])]


def _named_matches(finder: PortFinder) -> list[_Match]:
    presents: dict[tuple[int, str], str] = {}
    for name in finder.index.outputs:
        parsed = parse_kv_name(name)
        if parsed is not None and parsed.side == "present":
            presents.setdefault((parsed.layer, parsed.part), name)
    pasts: list[tuple[KvName, str]] = []
    for name in finder.unclaimed:
        parsed = parse_kv_name(name)
        if parsed is not None and parsed.side == "past" and _is_kv(finder.index.inputs[name]):
            pasts.append((parsed, name))
    matches = []
    for parsed, name in sorted(pasts, key=lambda item: (item[0].layer, item[0].part)):
        present = presents.get((parsed.layer, parsed.part)) or _present_by_use(finder.index, name)
        if present is None:
            raise PackageError(
                f"{finder.path}: the past input {name} has no present output that continues it; the outputs are "
                f"{', '.join(list(finder.index.outputs)[:8])}. Declare the pairs as model.io.kv_inputs and kv_outputs "
                "in inference_metadata.yaml."
            )
        matches.append(_Match(name, present))
    return matches


def _matches_by_use(finder: PortFinder) -> list[_Match]:
    """Pairs inputs of any name by the attention or Concat node that reads them."""
    matches = []
    for name in finder.unclaimed:
        if _is_kv(finder.index.inputs[name]):
            present = _present_by_use(finder.index, name)
            if present is not None:
                matches.append(_Match(name, present))
    return matches


def _is_kv(value: onnx.ValueInfoProto) -> bool:
    return dtype_of(value) in _KV_DTYPES and len(dims_of(value) or ()) in (3, 4, 5)


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _present_by_use(index: GraphIndex, name: str) -> str | None:
    for node, position in index.uses[name]:
        output = _PAST_TO_PRESENT.get(_key(node), {}).get(position)
        if output is None or output >= len(node.output):
            continue
        present = node.output[output]
        for _ in range(4):  # exporters put an Identity or Cast before the graph output
            if present in index.outputs:
                return present
            readers = [n for n, _ in index.uses[present] if n.op_type in ("Identity", "Cast") and n.output]
            if not readers:
                break
            present = readers[0].output[0]
    return None


def _pair(finder: PortFinder, match: _Match, hints: KvHints, batch_symbol: str) -> KvPair:
    value = finder.claim(match.past)
    dtype = _kv_dtype(finder, value)
    dims, symbols = list(dims_of(value) or ()), symbols_of(value)
    rank = len(dims)
    if rank not in (3, 4, 5):
        raise UnsupportedError(
            f"{finder.path}: the past input {match.past} has the shape {shape_text(value)}; expected rank 4 "
            "[batch, heads, past, head_dim], or 5 with key and value in one"
        )
    batch_axis = {3: 0, 4: 0, 5: 1}[rank]
    if batch_symbol and batch_symbol in symbols:
        batch_axis = symbols.index(batch_symbol)
    open_axes = [axis for axis, size in enumerate(dims) if size < 0 and axis != batch_axis]
    if not open_axes:
        raise UnsupportedError(
            f"{finder.path}: the past input {match.past} has the fixed shape {shape_text(value)}; this version needs a "
            "symbolic past length or a static cache with write indices. Export the model with dynamic shapes."
        )
    usual = {3: 1, 4: 2, 5: 3}[rank]
    sequence_axis = usual if usual in open_axes else open_axes[0]
    heads, width = _geometry(finder.index, match.past, hints)
    for axis in open_axes:
        if axis == sequence_axis:
            continue
        known = width if axis == rank - 1 else heads if axis == usual - 1 else None
        if known is None:
            raise PackageError(
                f"{finder.path}: dimension {axis} of the past input {match.past} {shape_text(value)} is symbolic, and "
                "nothing says how large it is. Declare model.attention.num_kv_heads and head_dim in "
                "inference_metadata.yaml, or keep the config.json of the model in the folder."
            )
        dims[axis] = known
    if any(size == 0 for size in dims):
        raise PackageError(f"{finder.path}: the past input {match.past} has a dimension of 0: {shape_text(value)}")
    return KvPair(
        past=match.past,
        present=match.present,
        dtype=dtype,
        dims=tuple(dims),
        batch_axis=batch_axis,
        sequence_axis=sequence_axis,
    )


def _kv_dtype(finder: PortFinder, value: onnx.ValueInfoProto) -> DType:
    dtype = dtype_of(value)
    if dtype is None or dtype not in _KV_DTYPES:
        allowed = ", ".join(item.value for item in _KV_DTYPES)
        raise UnsupportedError(
            f"{finder.path}: the KV input {value.name} has the element type {dtype_name(value)}; this version keeps KV "
            f"as {allowed}"
        )
    return dtype


def _geometry(index: GraphIndex, past: str, hints: KvHints) -> tuple[int | None, int | None]:
    """KV heads and head size: from the attention node that reads the past, else from the package."""
    heads, width = hints.num_kv_heads, hints.head_dim
    for node, position in index.uses[past]:
        if _key(node) == _GQA and position in (3, 4):
            heads = attribute_int(node, "kv_num_heads", 0) or heads
            width = _head_size(index, node) or width
    return heads, width


def _head_size(index: GraphIndex, node: onnx.NodeProto) -> int | None:
    """Head size of a GroupQueryAttention from the projection that feeds it."""
    heads, kv_heads = attribute_int(node, "num_heads", 0), attribute_int(node, "kv_num_heads", 0)
    packed = not input_of(node, 1)
    columns = _projection_width(index, input_of(node, 0))
    groups = heads + 2 * kv_heads if packed else heads
    return columns // groups if columns and groups and columns % groups == 0 else None


def _projection_width(index: GraphIndex, name: str) -> int | None:
    """Columns of the matrix product behind a value, through biases and rotations."""
    for _ in range(6):
        node = index.producers.get(name)
        if node is None:
            return None
        if node.op_type == "MatMulNBits":
            return attribute_int(node, "N", 0) or None
        if node.op_type == "MatMul":
            weight = index.constant(input_of(node, 1))
            return int(weight.dims[-1]) if weight is not None and len(weight.dims) == 2 else None
        if node.op_type not in ("Add", "Cast", "RotaryEmbedding", "Identity"):
            return None
        name = input_of(node, 0)
    return None


def _why_not_shared(index: GraphIndex, pairs: tuple[KvPair, ...]) -> str | None:
    """None if past and present of every pair may be one buffer; else what speaks against it."""
    for pair in pairs:
        uses = index.uses[pair.past]
        if len(uses) != 1 or _key(uses[0][0]) != _GQA:
            readers = ", ".join(sorted({node.op_type for node, _ in uses})) or "no operator"
            return f"{pair.past} is read by {readers}, so that present is a new tensor each step"
        node, position = uses[0]
        output = _PAST_TO_PRESENT[_GQA].get(position)
        if output is None or output >= len(node.output) or not _leads_to(index, node.output[output], pair.present):
            return f"{pair.present} is not, or not only, the present of the attention that reads {pair.past}"
        if len(pair.dims) != 4 or pair.batch_axis != 0 or pair.sequence_axis != 2:
            return f"{pair.past} is not laid out as [batch, heads, past, head_dim]"
        if attribute_int(node, "sliding_window_cache", 0):
            return f"the attention that reads {pair.past} keeps a window-sized cache"
    return None


def _leads_to(index: GraphIndex, name: str, output: str) -> bool:
    """True if a value is that graph output, or reaches it through Identity nodes, and nothing else reads it."""
    for _ in range(4):
        uses = index.uses[name]
        if name == output:
            return not uses
        follower = uses[0][0] if len(uses) == 1 else None
        if follower is None or follower.op_type != "Identity" or not follower.output or name in index.outputs:
            return False
        name = follower.output[0]
    return False


def _static_matches(finder: PortFinder, io: IoRoles) -> list[_Match]:
    roles = io.static_cache
    if roles is not None:
        names = [name for pair in zip(roles.key_inputs, roles.value_inputs, strict=True) for name in pair]
        outputs = [name for pair in zip(roles.key_outputs, roles.value_outputs, strict=True) for name in pair]
        for name in names:
            finder.declared(name, "static cache", strict=True)
        missing = [name for name in outputs if name not in finder.index.outputs]
        if missing:
            raise PackageError(
                f"{io.source}: declares the cache output {missing[0]!r}, but {finder.path.name} does not have it; "
                f"its outputs are {', '.join(list(finder.index.outputs)[:8])}"
            )
        return [_Match(past, present) for past, present in zip(names, outputs, strict=True)]
    updated: dict[tuple[int, str], str] = {}
    for name in finder.index.outputs:
        parsed = parse_kv_name(name)
        if parsed is not None and parsed.side == "static_out":
            updated[(parsed.layer, parsed.part)] = name
    found: list[tuple[int, str, _Match]] = []
    for name in finder.unclaimed:
        parsed = parse_kv_name(name)
        if parsed is None or parsed.side != "static_in" or not _is_kv(finder.index.inputs[name]):
            continue
        present = updated.get((parsed.layer, parsed.part)) or _present_by_use(finder.index, name)
        if present is not None:
            found.append((parsed.layer, parsed.part, _Match(name, present)))
    return [match for _, _, match in sorted(found, key=lambda item: item[:2])]


def _static_cache(finder: PortFinder, matches: list[_Match], hints: KvHints) -> Cache:
    pairs = []
    capacities = set()
    for match in matches:
        value = finder.claim(match.past)
        dims = list(dims_of(value) or ())
        if len(dims) not in (3, 4):
            raise UnsupportedError(
                f"{finder.path}: the cache input {match.past} has the shape {shape_text(value)}; expected "
                "[batch, capacity, kv_heads * head_dim] or [batch, kv_heads, capacity, head_dim]"
            )
        axis = _scatter_axis(finder, match.past, len(dims))
        _fill_static(dims, axis, hints)
        if any(size <= 0 for place, size in enumerate(dims) if place not in (0, axis)):
            raise PackageError(
                f"{finder.path}: the cache input {match.past} has the shape {shape_text(value)}; expected fixed sizes "
                "besides batch and capacity"
            )
        capacities.add(dims[axis])
        dtype = _kv_dtype(finder, value)
        pairs.append(
            KvPair(
                past=match.past,
                present=match.present,
                dtype=dtype,
                dims=tuple(dims),
                batch_axis=0,
                sequence_axis=axis,
            )
        )
    fixed = [size for size in capacities if size > 0]
    return Cache(
        style=CacheStyle.SLOT_STATIC,
        pairs=tuple(pairs),
        reason="the graph writes caller-owned buffers at given positions",
        capacity=min(fixed, default=0),
    )


def _fill_static(dims: list[int], axis: int, hints: KvHints) -> None:
    heads, width = hints.num_kv_heads, hints.head_dim
    if len(dims) == 3 and dims[3 - axis] < 0 and axis in (1, 2) and heads and width:
        dims[3 - axis] = heads * width
    if len(dims) == 4 and axis == 2:
        if dims[1] < 0 and heads:
            dims[1] = heads
        if dims[3] < 0 and width:
            dims[3] = width


def _scatter_axis(finder: PortFinder, name: str, rank: int) -> int:
    for node, position in finder.index.uses[name]:
        if _key(node) == ("", "TensorScatter") and position == 0:
            mode = next((a.s for a in node.attribute if a.name == "mode"), b"linear")
            if mode != b"linear":
                raise UnsupportedError(
                    f"{finder.path}: the cache input {name} is written in the mode {mode.decode('utf-8', 'replace')}; "
                    "this version drives linear caches only"
                )
            axis = attribute_int(node, "axis", -2)
            return axis + rank if axis < 0 else axis
    return {3: 1, 4: 2}[rank]
