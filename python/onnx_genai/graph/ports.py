"""Gives every graph input a role: declared ones first, then by name and shape; KV is left to ``kv``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph import names
from onnx_genai.graph.contract import AdapterInput, ConstantInput, DType, InputPort
from onnx_genai.graph.index import GraphIndex, dims_of, dtype_name, dtype_of, operator_of, shape_text, symbols_of

__all__ = ["PortFinder"]

_INTEGERS = (DType.INT64, DType.INT32)
_LENGTHS = (DType.INT64, DType.INT32)
_MASKS = (DType.INT64, DType.INT32, DType.BOOL, DType.FLOAT32, DType.FLOAT16)

# Where products take weights, and what may stand before them.
_WEIGHT_PLACES: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "Gemm"): (0, 1),
    ("", "MatMul"): (0, 1),
    ("com.microsoft", "FusedMatMul"): (0, 1),
    ("com.microsoft", "MatMulNBits"): (1, 2, 3),
}
_PASSING = (("", "Cast"), ("", "DequantizeLinear"), ("", "Identity"), ("", "Transpose"))

# Attention operators and the inputs at which they take lengths.
_LENGTH_USES = {
    ("com.microsoft", "GroupQueryAttention", 5): "seqlens_k",
    ("com.microsoft", "GroupQueryAttention", 6): "total_sequence_length",
    ("", "TensorScatter", 2): "write_indices",
    ("", "Attention", 6): "nonpad_kv_seqlen",
}


class PortFinder:
    """Hands out graph inputs; one that has been handed out is claimed. One thread."""

    def __init__(self, index: GraphIndex, path: Path, source: str) -> None:
        self.index = index
        self.path = path
        self._source = source
        self.unclaimed = dict(index.inputs)

    def declared(self, name: str | None, role: str, *, strict: bool) -> str | None:
        """Returns a declared input name if the graph has it.

        Raises:
            PackageError: The graph lacks it and ``strict`` is set.
        """
        if name is None or name in self.index.inputs:
            return name
        if not strict:
            return None
        raise PackageError(
            f"{self._source}: declares the input {name!r} as {role}, but {self.path.name} does not have it; "
            f"its inputs are {_listing(self.index.inputs)}"
        )

    def claim(self, name: str) -> onnx.ValueInfoProto:
        self.unclaimed.pop(name, None)
        return self.index.inputs[name]

    def port(
        self, declared: str | None, usual: Sequence[str], role: str, *, dtypes: Sequence[DType], ranks: Sequence[int]
    ) -> InputPort | None:
        """Claims the input of a role: the declared one, else one with a usual name."""
        name = declared or next((name for name in usual if name in self.unclaimed), None)
        return None if name is None else self.as_port(name, role, dtypes=dtypes, ranks=ranks)

    def as_port(self, name: str, role: str, *, dtypes: Sequence[DType], ranks: Sequence[int]) -> InputPort:
        """Claims an input and checks its type and rank."""
        value = self.claim(name)
        dtype, dims = dtype_of(value), dims_of(value)
        if dtype not in dtypes or dtype is None:
            allowed = " or ".join(item.value for item in dtypes)
            raise PackageError(
                f"{self.path}: input {name} ({role}) has the element type {dtype_name(value)}; expected {allowed}"
            )
        if dims is None or len(dims) not in ranks:
            allowed = " or ".join(str(rank) for rank in ranks)
            raise UnsupportedError(
                f"{self.path}: input {name} ({role}) has the shape {shape_text(value)}; "
                f"this version feeds it with rank {allowed} only. Export the model with the usual shape."
            )
        return InputPort(name=name, dtype=dtype, rank=len(dims))

    def token_port(self, declared: str | None) -> InputPort:
        """Claims the token ids: declared, by name, or the only integer input of rank 2."""
        name = declared or next((name for name in names.INPUT_IDS if name in self.unclaimed), None)
        if name is None:
            known = set(names.ATTENTION_MASK + names.POSITION_IDS + names.TOKEN_TYPES + names.CACHE_POSITION)
            matches = [
                key
                for key, value in self.unclaimed.items()
                if dtype_of(value) in _INTEGERS and len(dims_of(value) or ()) == 2 and key not in known
            ]
            if len(matches) != 1:
                raise self._no_tokens(matches)
            name = matches[0]
        value = self.index.inputs[name]
        dims = dims_of(value)
        if dims is not None and len(dims) == 1 and any(names.foreign_kind(key) for key in self.unclaimed):
            self.fail_foreign()
        if dims is not None and len(dims) == 2 and dims[1] > 0:
            raise UnsupportedError(
                f"{self.path}: input {name} has the fixed shape {shape_text(value)}; this version needs a symbolic "
                "sequence length. Export the model with dynamic shapes."
            )
        return self.as_port(name, "token ids", dtypes=_INTEGERS, ranks=(2,))

    def _no_tokens(self, matches: list[str]) -> Exception:
        for name in self.index.inputs:
            kind = names.foreign_kind(name)
            if kind is not None:
                return UnsupportedError(
                    f"{self.path}: input {name} shows that this is {kind}; this version runs single-graph text "
                    "decoders only. Use a text-only export."
                )
        why = f"{len(matches)} inputs could be them ({', '.join(matches)})" if matches else "no integer input of rank 2"
        return PackageError(
            f"{self.path}: cannot tell the token ids input: {why}; the inputs are {_listing(self.index.inputs)}. "
            "Declare it as model.io.token_input in inference_metadata.yaml."
        )

    def lengths_by_use(self) -> dict[str, InputPort]:
        """Claims inputs that feed an attention operator's length input directly, whatever their names."""
        found: dict[str, InputPort] = {}
        for name in list(self.unclaimed):
            for node, position in self.index.uses[name]:
                domain = "" if node.domain == "ai.onnx" else node.domain
                role = _LENGTH_USES.get((domain, node.op_type, position))
                if role is not None and role not in found:
                    found[role] = self.as_port(name, role, dtypes=_LENGTHS, ranks=(0, 1, 2))
                    break
        return found

    def constants(self) -> tuple[ConstantInput, ...]:
        """Claims the inputs that always receive the same tensor."""
        found = []
        for name in names.LOGITS_TO_KEEP:
            if name in self.unclaimed:
                port = self.as_port(name, "logits to keep", dtypes=_INTEGERS, ranks=(0, 1))
                found.append(ConstantInput(port=port, dims=(1,) * port.rank, value=1))
        for name in names.TOKEN_TYPES:
            if name in self.unclaimed:
                port = self.as_port(name, "token types", dtypes=_INTEGERS, ranks=(2,))
                found.append(ConstantInput(port=port, shape="like_ids", value=0))
        return tuple(found)

    def adapter_inputs(self) -> tuple[AdapterInput, ...]:
        """Claims the inputs that nothing but an adapter can feed: weights of products, with a value or without."""
        found = [AdapterInput(name=name, has_default=True) for name in self.index.overridable]
        for name, value in list(self.unclaimed.items()):
            if names.foreign_kind(name) is None and names.parse_kv_name(name) is None and self._is_weight(name, value):
                self.claim(name)
                found.append(AdapterInput(name=name, has_default=False))
        return tuple(found)

    def _is_weight(self, name: str, value: onnx.ValueInfoProto) -> bool:
        """Whether an input has the shape of weights, no size of a batch among them, and products alone read it."""
        dims = dims_of(value)
        if not dims or len(dims) > 3 or max(dims) < 1 or dims.count(-1) > 1:
            return False
        integers = [other for other in self.index.inputs.values() if dtype_of(other) in _INTEGERS]
        if not {symbol for other in integers for symbol in symbols_of(other) if symbol}.isdisjoint(symbols_of(value)):
            return False
        reads = list(self.index.uses[name])
        for node, position in reads:
            operator = operator_of(node)
            if operator in _PASSING and position == 0:
                reads += self.index.uses[node.output[0]]
            elif position not in _WEIGHT_PLACES.get(operator, ()):
                return False
        return bool(reads)

    def mask_port(self, declared: str | None) -> InputPort | None:
        return self.port(declared, names.ATTENTION_MASK, "attention mask", dtypes=_MASKS, ranks=(2,))

    def position_port(self, declared: str | None) -> InputPort | None:
        name = declared or next((name for name in names.POSITION_IDS if name in self.unclaimed), None)
        if name is not None and len(dims_of(self.index.inputs[name]) or ()) == 3:
            raise UnsupportedError(
                f"{self.path}: input {name} has the shape {shape_text(self.index.inputs[name])}: positions on several "
                "axes, the decoder of a vision-language pipeline; this version runs single-graph text decoders only."
            )
        return self.port(declared, names.POSITION_IDS, "positions", dtypes=_INTEGERS, ranks=(1, 2))

    def length_port(self, declared: str | None, usual: Sequence[str], role: str) -> InputPort | None:
        return self.port(declared, usual, role, dtypes=_LENGTHS, ranks=(0, 1, 2))

    def flag_port(self) -> InputPort | None:
        return self.port(None, names.USE_CACHE, "use of the cache", dtypes=(DType.BOOL,), ranks=(0, 1))

    def fail_foreign(self) -> None:
        """Raises for inputs that are left over: UnsupportedError if a name tells the kind of model."""
        for name, value in self.unclaimed.items():
            kind = names.foreign_kind(name)
            if names.parse_kv_name(name) is not None and dtype_of(value) is None:
                raise UnsupportedError(
                    f"{self.path}: the KV input {name} has the element type {dtype_name(value)}, which this version "
                    "does not keep. Export the model with a KV cache of float32 or float16."
                )
            if kind is not None:
                raise UnsupportedError(
                    f"{self.path}: input {name} {shape_text(value)} shows that this is {kind}; this version runs "
                    "single-graph text decoders only. Use a text-only export."
                )
        if self.unclaimed:
            name, value = next(iter(self.unclaimed.items()))
            more = f" ({len(self.unclaimed)} such inputs)" if len(self.unclaimed) > 1 else ""
            raise PackageError(
                f"{self.path}: input {name} ({dtype_name(value)} {shape_text(value)}) has no known role{more}. Declare "
                "it in inference_metadata.yaml under model.io (token_input, attention_mask_input, position_ids_input, "
                "kv_inputs with kv_outputs), or export the model without it."
            )


def _listing(values: dict[str, onnx.ValueInfoProto]) -> str:
    keys = list(values)
    return ", ".join(keys[:8]) + (f", ... ({len(keys)} in all)" if len(keys) > 8 else "")
