"""Rewrites a graph to genai.runtime::PagedAttention: :func:`paged`.

All attention nodes that keep a past are replaced, or none. Nothing is written to disk; weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_genai.graph.attention import Operand, PagedNode, find_holders, read_attention
from onnx_genai.graph.contract import CacheStyle, Coverage, DType, GraphContract, InputPort, PagedLayer
from onnx_genai.graph.index import GraphIndex, attribute_int, input_of
from onnx_genai.graph.needs import Constant, Needs, Positions, Rows, Substitute, TokenCount, find_needs
from onnx_genai.graph.probe import Probe
from onnx_genai.graph.projection import NotRecognisedError, find_cuts
from onnx_genai.graph.skeleton import Skeleton
from onnx_genai.graph.weights import lift_constants, relocate
from onnx_genai.package import ContextLimit

__all__ = ["BLOCK_SIZE", "DOMAIN", "paged"]

DOMAIN = "genai.runtime"
BLOCK_SIZE = 16
"""Positions of a block: as many keys as the widest vector register holds numbers."""

_LEAST_IR = 4
"""First version in which weights need not be listed among the inputs."""
_MAX_PROBLEMS = 8
_PREFIX = "genai."
_CUMULATIVE = f"{_PREFIX}cumulative_sequence_length"
_PAST = f"{_PREFIX}past_seqlens"
_TABLE = f"{_PREFIX}block_table"
_ROWS = f"{_PREFIX}logits_indices"
_TENSOR_TYPES = {
    DType.FLOAT32: TensorProto.FLOAT,
    DType.FLOAT16: TensorProto.FLOAT16,
    DType.BFLOAT16: TensorProto.BFLOAT16,
    DType.INT8: TensorProto.INT8,
    DType.INT32: TensorProto.INT32,
    DType.INT64: TensorProto.INT64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    attention: Sequence[PagedNode]
    needs: Needs
    probe: Probe


def paged(contract: GraphContract, skeleton: Skeleton, index: GraphIndex, kv_dtype: DType | None) -> GraphContract:
    """Returns the contract of the rewritten graph, or the given one with the reasons in ``coverage``.

    Args:
        contract: Of the graph as it is.
        skeleton: Its ``model`` is the rewritten one on success, and untouched else.
        index: Of ``skeleton.model``; of no use after success.
        kv_dtype: Element type of the KV; None for that of the graph.
    """
    plan, coverage = _plan(contract, index, _opset(skeleton.model))
    if plan is None:
        return replace(contract, coverage=coverage)
    try:
        folder = relocate(skeleton)
    except NotRecognisedError as why:
        return replace(contract, coverage=_uncovered(coverage.attention_nodes, [str(why)]))
    rows = _table_rows(plan)
    found = _Writer(contract, skeleton, plan, kv_dtype).write(folder, coverage)
    if rows is not None and (not found.context_limit or rows.tokens < found.context_limit):
        return replace(found, context_limit=rows.tokens, context_source=rows.source)
    return found


def _table_rows(plan: _Plan) -> ContextLimit | None:
    """Rows of the smallest table that is looked up by position."""
    index, substitutes = plan.probe.index, plan.needs.substitutes
    tables = {item.extras[8] for item in plan.attention if 8 in item.extras}
    for node in index.graph.node:
        rows = node.op_type == "Gather" and attribute_int(node, "axis", 0) == 0
        if rows and isinstance(substitutes.get(input_of(node, 1)), Positions):
            tables.add(input_of(node, 0))
    best: ContextLimit | None = None
    for name in sorted(tables):
        tensor = index.constant(name)
        if tensor is not None and len(tensor.dims) == 2 and (best is None or tensor.dims[0] < best.tokens):
            best = ContextLimit(tokens=int(tensor.dims[0]), source=f"table {name}")
    return best


def _plan(contract: GraphContract, index: GraphIndex, opset: int) -> tuple[_Plan | None, Coverage]:
    if contract.cache is CacheStyle.NONE:
        return None, _uncovered(0, ["the graph keeps no KV"])
    holders, problems = find_holders(index, contract.kv)
    taken = next((name for name in (*index.inputs, *index.producers) if name.startswith(_PREFIX)), None)
    if taken is not None:
        problems.append(f"{taken} has a name of those that the rewrite gives")
    if contract.use_cache_branch is not None:
        problems.insert(0, f"{contract.use_cache_branch.name} switches between two graphs")
    if problems:
        return None, _uncovered(len(holders), problems)
    try:
        probe = Probe(index, contract, opset)
        if not probe.values:
            return None, _uncovered(len(holders), ["a mask or another value made of lengths is too large to be judged"])
        attention, uncovered = read_attention(probe, holders)
        needs = find_needs(probe, attention, contract.logits)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Attributes and constants of a broken graph can be anything; ONNX Runtime says what is wrong with them.
        return None, _uncovered(len(holders), [f"the graph could not be followed ({error})"])
    # An operator that mixes tokens may be why the attention behind it is not understood, so it comes first.
    problems = [*needs.problems, *uncovered]
    if problems:
        return None, _uncovered(len(holders), problems)
    plan = _Plan(attention=[item for item in attention.values() if item is not None], needs=needs, probe=probe)
    return plan, Coverage(attention_nodes=len(holders), replaced=len(holders))


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def _uncovered(nodes: int, problems: Sequence[str]) -> Coverage:
    return Coverage(attention_nodes=nodes, problems=tuple(problems[:_MAX_PROBLEMS]), num_problems=len(problems))


def _port(name: str, dtype: DType, rank: int) -> InputPort:
    return InputPort(name=name, dtype=dtype, rank=rank)


class _Writer:
    """Builds the paged graph from a plan."""

    def __init__(self, contract: GraphContract, skeleton: Skeleton, plan: _Plan, kv_dtype: DType | None) -> None:
        self.contract = contract
        self.skeleton = skeleton
        self.plan = plan
        self.kv_dtype = kv_dtype
        self.graph = onnx.GraphProto(name=skeleton.model.graph.name)
        self.names: dict[str, str] = {}
        """Value of the old graph to value of the new one, where they differ."""
        self._position_name = ""
        self.made: set[str] = set()
        """Constants and values that several nodes share."""
        self._count = ""

    def write(self, folder: Path, coverage: Coverage) -> GraphContract:
        model, contract = self.skeleton.model, self.contract
        self._inputs()
        for name, item in self.plan.needs.substitutes.items():
            self.names[name] = self._substitute(name, item)
        layers = self._nodes()
        self._weights()
        output = onnx.ValueInfoProto()
        output.CopyFrom(next(value for value in model.graph.output if value.name == contract.logits))
        self.graph.output.append(output)
        rows, reason = self._rows()
        model.graph.CopyFrom(self.graph)
        if not any(entry.domain == DOMAIN for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        model.ir_version = max(model.ir_version, _LEAST_IR)
        lift_constants(model.graph)
        return self._contract(layers, folder, coverage, rows=rows, reason=reason)

    def _contract(
        self, layers: tuple[PagedLayer, ...], folder: Path, coverage: Coverage, *, rows: bool, reason: str
    ) -> GraphContract:
        contract, positions = self.contract, self._position_name
        inputs = {value.name for value in self.skeleton.model.graph.input}
        return replace(
            contract,
            model_bytes=self.skeleton.model.SerializeToString(),
            external_folder=folder,
            cache=CacheStyle.PAGED,
            input_ids=_port(contract.input_ids.name, DType.INT64, 2),
            attention_mask=None,
            position_ids=_port(positions, DType.INT64, 2) if positions else None,
            seqlens_k=None,
            total_sequence_length=None,
            past_sequence_length=None,
            cache_position=None,
            write_indices=None,
            nonpad_kv_seqlen=None,
            constants=tuple(item for item in contract.constants if item.port.name in self.plan.needs.inputs),
            adapter_inputs=tuple(item for item in contract.adapter_inputs if item.name in inputs),
            kv=(),
            cumulative_sequence_length=_port(_CUMULATIVE, DType.INT32, 1),
            past_seqlens=_port(_PAST, DType.INT32, 1),
            block_table=_port(_TABLE, DType.INT32, 2),
            logits_indices=_port(_ROWS, DType.INT64, 1) if rows else None,
            paged_layers=layers,
            block_size=BLOCK_SIZE,
            last_logits_only=False,
            max_batch=0,
            cache_reason=f"all {coverage.replaced} attention nodes that keep a past are PagedAttention now",
            rewrite_reason=reason,
            coverage=coverage,
        )

    def _inputs(self) -> None:
        ids = self.contract.input_ids
        self._input(ids.name, TensorProto.INT64, [1, "genai.tokens"])
        if ids.dtype is not DType.INT64:
            self.names[ids.name] = self._node("Cast", [ids.name], f"{_PREFIX}ids", to=_TENSOR_TYPES[ids.dtype])
        if any(isinstance(item, Positions) for item in self.plan.needs.substitutes.values()):
            port = self.contract.position_ids
            self._position_name = port.name if port is not None else self._free_name("position_ids")
            self._input(self._position_name, TensorProto.INT64, [1, "genai.tokens"])
        for constant in self.contract.constants:
            if constant.port.name in self.plan.needs.inputs:
                old = self.plan.probe.index.inputs[constant.port.name]
                self.graph.input.append(old)
        for adapter in self.contract.adapter_inputs:
            if adapter.name in self.plan.needs.inputs:
                self.graph.input.append(self.plan.probe.index.inputs[adapter.name])
        self._input(_CUMULATIVE, TensorProto.INT32, ["genai.sequences_and_one"])
        self._input(_PAST, TensorProto.INT32, ["genai.sequences"])
        self._input(_TABLE, TensorProto.INT32, ["genai.sequences", "genai.max_blocks"])

    def _free_name(self, name: str) -> str:
        index = self.plan.probe.index
        taken = name in index.inputs or name in index.producers or name in index.initializers
        return f"{_PREFIX}{name}" if taken else name

    def _input(self, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))

    def _node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.graph.node.append(helper.make_node(op_type, list(inputs), [output], name=output, **attributes))
        return output

    def _constant(self, name: str, content: object) -> str:
        if name not in self.made:
            self.made.add(name)
            self.graph.initializer.append(numpy_helper.from_array(np.asarray(content), name))
        return name

    def _substitute(self, name: str, item: Substitute) -> str:
        place = f"{_PREFIX}value.{len(self.names)}"
        if isinstance(item, Constant):
            return self._constant(place, item.content)
        if isinstance(item, TokenCount):
            return self._token_count(place, item)
        if isinstance(item, Rows):
            sizes = np.array(item.row.shape)
            tokens = (np.arange(item.row.ndim) == item.axis).astype(np.int64)
            shape = self._token_count(f"{place}.shape", TokenCount(sizes * (1 - tokens), tokens))
            return self._node("Expand", [self._constant(f"{place}.row", item.row), shape], place)
        return self._positions(place, item)

    def _token_count(self, place: str, item: TokenCount) -> str:
        if not self._count:
            shape = self._node("Shape", [self.contract.input_ids.name], f"{_PREFIX}shape")
            one = self._constant(f"{_PREFIX}one", np.array(1))
            self._count = self._node("Gather", [shape, one], f"{_PREFIX}tokens", axis=0)
        count = self._count
        if item.base.dtype != np.int64:
            kind = helper.np_dtype_to_tensor_dtype(item.base.dtype)
            count = self._node("Cast", [count], f"{place}.cast", to=kind)
        grown = self._node("Mul", [count, self._constant(f"{place}.count", item.count)], f"{place}.grown")
        return self._node("Add", [grown, self._constant(f"{place}.base", item.base)], place)

    def _positions(self, place: str, item: Positions) -> str:
        source = self._position_name
        shape = "_".join(str(size) for size in item.shape).replace("-1", "n")
        done = f"{_PREFIX}positions.{item.dtype.name}.{shape}"
        if done in self.made:
            return done
        if item.dtype != np.int64:
            kind = helper.np_dtype_to_tensor_dtype(item.dtype)
            source = self._node("Cast", [source], f"{place}.cast", to=kind)
        if item.shape == (1, -1):
            return source
        self.made.add(done)
        return self._node("Reshape", [source, self._constant(f"{done}.shape", np.array(item.shape))], done)

    def _nodes(self) -> tuple[PagedLayer, ...]:
        """Copies the nodes that stay and replaces attention, in order."""
        needs = self.plan.needs
        attention = {id(item.node): item for item in self.plan.attention}
        layers: dict[int, PagedLayer] = {}
        for node in self.skeleton.model.graph.node:
            if id(node) not in needs.nodes:
                continue
            if id(node) in needs.picks:
                source = self.names.get(node.input[0], node.input[0])
                if node.output[0] == self.contract.logits:
                    self._node("Identity", [source], node.output[0])
                self.names[node.output[0]] = source
                continue
            item = attention.get(id(node))
            if item is not None:
                layers[item.layer] = self._attention(item)
                continue
            copy = self.graph.node.add()
            copy.CopyFrom(node)
            for place, name in enumerate(copy.input):
                renamed = self.names.get(name)
                if renamed is not None:
                    copy.input[place] = renamed
        return tuple(layer for _, layer in sorted(layers.items()))

    def _attention(self, item: PagedNode) -> PagedLayer:
        layer = self._layer(item)
        output, prefix = item.node.output[0], f"{_PREFIX}attention.{item.layer}"
        inputs = [""] * 17
        for place, operand in enumerate((item.query, item.key, item.value)):
            if operand is not None:
                inputs[place] = self._widened(self._operand(operand, item, f"{prefix}.{'qkv'[place]}"), item)
        inputs[3:8] = [layer.key_cache, layer.value_cache, _CUMULATIVE, _PAST, _TABLE]
        for place, name in item.extras.items():
            inputs[place] = self._widened(self.names.get(name, name), item)
        inputs[14:16] = [layer.key_scale, layer.value_scale]
        while not inputs[-1]:
            inputs.pop()
        narrow = item.dtype is not DType.FLOAT32
        joined = output if item.result_rank == 3 else f"{prefix}.flat"
        result = f"{prefix}.wide" if narrow else joined
        attributes: dict[str, Any] = {**item.attributes, "num_heads": item.heads, "kv_num_heads": item.kv_heads}
        name = item.node.name or prefix
        self.graph.node.append(
            helper.make_node("PagedAttention", inputs, [result], domain=DOMAIN, name=name, **attributes)
        )
        shape: list[int | str] = [1, "genai.tokens", item.heads * item.value_dim]
        self.graph.value_info.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, shape))
        if narrow:
            self._node("Cast", [result], joined, to=_TENSOR_TYPES[item.dtype])
        if item.result_rank == 4:
            sizes = self._constant(f"{_PREFIX}heads.{item.heads}", np.array([0, 0, item.heads, -1]))
            heads = self._node("Reshape", [joined, sizes], f"{prefix}.heads")
            self._node("Transpose", [heads], output, perm=[0, 2, 1, 3])
        return layer

    def _widened(self, name: str, item: PagedNode) -> str:
        """The value as float32, in which the operator computes.

        ONNX Runtime replaces a float16 operator between casts by its float32 kernel and then casts all its float16
        inputs, caches too: the operator would write into copies. With float32 operands there is nothing to replace, and
        the casts are those that it puts around float16 products on a CPU anyway.
        """
        if item.dtype is DType.FLOAT32:
            return name
        wide = f"{_PREFIX}wide.{name}"
        if wide not in self.made:
            self.made.add(wide)
            self._node("Cast", [name], wide, to=TensorProto.FLOAT)
        return wide

    def _operand(self, operand: Operand, item: PagedNode, prefix: str) -> str:
        name = self.names.get(operand.name, operand.name)
        if operand.transpose:
            name = self._node("Transpose", [name], f"{prefix}.transposed", perm=[0, 2, 1, 3])
        if operand.reshape:
            name = self._node(
                "Reshape", [name, self._constant(f"{_PREFIX}join", np.array([0, 0, -1]))], f"{prefix}.flat"
            )
        if operand.bias is not None:
            start, end = (self._constant(f"{_PREFIX}at.{place}", np.array([place])) for place in operand.bias)
            bias = self.names.get(item.bias, item.bias)
            part = self._node("Slice", [bias, start, end], f"{prefix}.bias")
            name = self._node("Add", [name, part], f"{prefix}.biased")
        return name

    def _layer(self, item: PagedNode) -> PagedLayer:
        dtype = self.kv_dtype or item.dtype
        number = item.layer
        quantized = dtype is DType.INT8
        layer = PagedLayer(
            key_cache=f"{_PREFIX}key_cache.{number}",
            value_cache=f"{_PREFIX}value_cache.{number}",
            key_scale=f"{_PREFIX}key_scale.{number}" if quantized else "",
            value_scale=f"{_PREFIX}value_scale.{number}" if quantized else "",
            dtype=dtype,
            kv_heads=item.kv_heads,
            head_dim=item.head_dim,
            value_dim=item.value_dim,
        )
        blocks, size = "genai.num_blocks", "genai.block_size"
        self._input(layer.key_cache, _TENSOR_TYPES[dtype], [blocks, item.kv_heads, item.head_dim, size])
        self._input(layer.value_cache, _TENSOR_TYPES[dtype], [blocks, item.kv_heads, size, item.value_dim])
        for name in (layer.key_scale, layer.value_scale):
            if name:
                self._input(name, TensorProto.FLOAT, [blocks, item.kv_heads, size])
        return layer

    def _weights(self) -> None:
        """Copies the initializers that are still read; those that an adapter may replace stay inputs."""
        used = {name for node in self.graph.node for name in node.input}
        used.add(self.contract.logits)
        self.graph.initializer.extend(t for t in self.skeleton.model.graph.initializer if t.name in used)
        self.graph.input.extend(v for name, v in self.plan.probe.index.overridable.items() if name in used)
        sparse = self.skeleton.model.graph.sparse_initializer
        self.graph.sparse_initializer.extend(t for t in sparse if t.values.name in used)

    def _rows(self) -> tuple[bool, str]:
        """Puts Gather(genai.logits_indices) before the last projection, and says whether that was possible."""
        output = self.graph.output[0]
        shape = output.type.tensor_type.shape
        try:
            if len(shape.dim) != 3:
                raise NotRecognisedError("the logits do not state their shape")
            shape.dim[0].dim_value = 1
            shape.dim[1].dim_param = "genai.tokens"
            cut = find_cuts(GraphIndex(self.graph), output.name, {})[0]
            if cut.graph is not self.graph:
                raise NotRecognisedError("the projection is inside an If node")
            data = cut.node.input[cut.position]
            axis = self._axis(data)
        except NotRecognisedError as why:
            return False, f"logits of all tokens are computed: {why}"
        self._input(_ROWS, TensorProto.INT64, ["genai.rows"])
        name = f"{_PREFIX}rows"
        place = next(i for i, node in enumerate(self.graph.node) if node.output == cut.node.output)
        cut.node.input[cut.position] = name
        self.graph.node.insert(place, helper.make_node("Gather", [data, _ROWS], [name], name=name, axis=axis))
        shape.dim[1].dim_param = "genai.rows"
        return True, f"only the rows that are wanted reach {cut.node.op_type} {cut.node.name}".rstrip()

    def _axis(self, data: str) -> int:
        old = {new: name for name, new in self.names.items()}.get(data, data)
        value = self.plan.probe.value(old)
        if value is None or value.axis < 0 or value.group != 1:
            raise NotRecognisedError(f"the tokens of {data} lie along an unknown axis")
        return value.axis
