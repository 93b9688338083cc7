"""Runs a graph in thought at a few lengths: shapes of all values, and contents of those that are made of lengths only.

What a mask, a position or a shape is worth is then seen from its values instead of the pattern that makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnx_genai.graph.contract import CacheStyle, DType, GraphContract, InputPort
from onnx_genai.graph.evaluate import Array, TooLargeError, evaluate
from onnx_genai.graph.index import GraphIndex, attributes_of, dims_of, operator_of
from onnx_genai.graph.shapes import Shape, ShapeCase, output_shapes

__all__ = ["MIXED", "UNKNOWN", "WHOLE", "Point", "Probe", "Value"]

WHOLE = -1
"""No axis depends on the number of tokens."""
MIXED = -2
"""Axes depend on lengths in another way than one axis of so and so many rows a token."""
UNKNOWN = -3
"""The shape is not known."""

_ANY_RANK = 8
"""For the sizes of adapter weights that a graph leaves open."""
_LONGEST = (131_072, 4099, 1031)
"""Longest past to try; the next one if a value (a square mask) becomes too large."""


@dataclass(frozen=True, slots=True)
class Point:
    """Lengths at which the graph is looked at: one sequence."""

    past: int
    new: int

    @property
    def total(self) -> int:
        return self.past + self.new


@dataclass(slots=True)
class Value:
    """A value at every point."""

    shapes: tuple[Shape, ...] | None
    contents: tuple[Array, ...] | None
    """None if the value depends on the text, or cannot be computed here."""
    removed: bool = False
    """Made from an input that a paged graph does not have, or from positions."""
    axis: int = UNKNOWN
    """The axis that counts tokens, or WHOLE, MIXED, UNKNOWN."""
    group: int = 1
    """Rows along the axis for one token."""

    @property
    def is_same(self) -> bool:
        """Whether shape and contents are equal at every point."""
        if self.contents is None:
            return False
        first = self.contents[0]
        return all(other is first or _equal(other, first) for other in self.contents[1:])


def _equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b))


class Probe:
    """The values of a graph at a few points. Read-only after construction. Cost: O(nodes) and the sizes of masks.

    Args:
        index: Of the graph.
        contract: What the inputs of the graph mean.
        opset: Version of the standard operators.
    """

    def __init__(self, index: GraphIndex, contract: GraphContract, opset: int) -> None:
        self.opset = opset
        self.index = index
        self._contract = contract
        self.last_picks: set[int] = set()
        """id() of the nodes that take the last token of a step. Their outputs are given the shape of their input: a
        paged graph takes rows at its end instead."""
        self._axes: dict[tuple[Shape, ...] | None, tuple[int, int]] = {}
        for longest in _LONGEST:
            self.points = _points(contract, longest)
            self._axes.clear()
            self.last_picks.clear()
            try:
                self.values = self._run()
                break
            except TooLargeError:
                continue
        else:
            self.values = {}  # every mask is too large

    def value(self, name: str) -> Value | None:
        """A value by name; None if it is left out or nothing is known of it."""
        found = self.values.get(name)
        return found if found is not None else self._constant(name)

    def _constant(self, name: str) -> Value | None:
        tensor = self.index.initializers.get(name)
        if tensor is None:
            return None
        found = self._tensor(tensor)
        self.values[name] = found
        return found

    def _tensor(self, tensor: onnx.TensorProto) -> Value:
        count = len(self.points)
        shape = tuple(tensor.dims)
        content = None
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            content = (onnx.numpy_helper.to_array(tensor),) * count
        return Value((shape,) * count, content, axis=WHOLE)

    def _run(self) -> dict[str, Value]:
        self.values = _input_values(self._contract, self.points)
        for adapter in self._contract.adapter_inputs:
            value = self.index.overridable.get(adapter.name) or self.index.inputs[adapter.name]
            self.values[adapter.name] = _weight(value, len(self.points))
        for node in self.index.graph.node:
            self._node(node)
        return self.values

    def _node(self, node: onnx.NodeProto) -> None:
        domain, op_type = operator_of(node)
        attributes = attributes_of(node)
        inputs = [self.value(name) if name else None for name in node.input]
        removed = any(value is not None and value.removed for value in inputs)
        shapes: list[tuple[Shape, ...] | None]
        if (domain, op_type) in _ATTENTIONS:
            shapes = _attention_shapes(op_type, attributes, node, inputs, self.points)
            for place, (name, shape) in enumerate(zip(node.output, shapes, strict=False)):
                self._store(name, shape, None, removed=place > 0)
            return
        if op_type == "TensorScatter":
            past = inputs[0]
            self._store(node.output[0], past.shapes if past is not None else None, None, removed=True)
            return
        contents = self._contents(node, domain, op_type, attributes, inputs)
        if contents is not None:
            for name, content in zip(node.output, contents, strict=False):
                self._store(name, tuple(item.shape for item in content), content, removed=removed)
            return
        if _takes_last(node, attributes, inputs, self.points) and inputs[0] is not None:
            self.last_picks.add(id(node))
            self._store(node.output[0], inputs[0].shapes, None, removed=removed)
            return
        shapes = self._shapes(node, op_type, attributes, inputs)
        for name, shape in zip(node.output, shapes, strict=False):
            self._store(name, shape, None, removed=removed)

    def _store(
        self, name: str, shapes: tuple[Shape, ...] | None, contents: tuple[Array, ...] | None, *, removed: bool
    ) -> None:
        if name:
            known = self._axes.get(shapes)
            if known is None:
                known = self._axes[shapes] = _token_axis(shapes, self.points)
            axis, group = known
            self.values[name] = Value(shapes, contents, removed=removed, axis=axis, group=group)

    def _contents(
        self,
        node: onnx.NodeProto,
        domain: str,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[Value | None],
    ) -> list[tuple[Array, ...]] | None:
        """Contents of each output at each point."""
        if domain:
            return None
        count = len(self.points)
        if op_type == "Constant":
            tensor = _constant_of(attributes)
            value = None if tensor is None else self._tensor(tensor)
            return None if value is None or value.contents is None else [value.contents]
        if op_type == "Shape":
            shapes = inputs[0].shapes if inputs and inputs[0] is not None else None
            if shapes is None:
                return None
            start, end = attributes.get("start", 0), attributes.get("end")
            return [tuple(np.array(shape[start:end], dtype=np.int64) for shape in shapes)]
        if any(
            name and (value is None or value.contents is None) for name, value in zip(node.input, inputs, strict=True)
        ):
            return None
        given = [value.contents if value is not None else None for value in inputs]
        fixed = all(item is None or all(other is item[0] for other in item) for item in given)
        found: list[list[Array]] = []
        for place in range(1 if fixed else count):
            outputs = evaluate(op_type, attributes, [None if item is None else item[place] for item in given])
            if outputs is None:
                return None
            found.append(outputs)
        if fixed:
            found = found * count
        return [tuple(items) for items in zip(*found, strict=True)]

    def _shapes(
        self, node: onnx.NodeProto, op_type: str, attributes: Mapping[str, Any], inputs: Sequence[Value | None]
    ) -> list[tuple[Shape, ...] | None]:
        if op_type == "Constant":  # its data is a reference
            tensor = _constant_of(attributes)
            return [None if tensor is None else (tuple(tensor.dims),) * len(self.points)]
        points = []
        for place in range(len(self.points)):
            case = ShapeCase(
                op_type=op_type,
                attributes=attributes,
                shapes=[None if v is None or v.shapes is None else v.shapes[place] for v in inputs],
                contents=[None if v is None or v.contents is None else v.contents[place] for v in inputs],
                num_outputs=len(node.output),
            )
            points.append(output_shapes(case))
        joined: list[tuple[Shape, ...] | None] = []
        for items in zip(*points, strict=True):
            known = tuple(item for item in items if item is not None)
            joined.append(known if len(known) == len(items) else None)
        return joined


_ATTENTIONS = frozenset(
    {
        ("com.microsoft", "GroupQueryAttention"),
        ("com.microsoft", "MultiHeadAttention"),
        ("", "Attention"),
    }
)


def _takes_last(
    node: onnx.NodeProto, attributes: Mapping[str, Any], inputs: Sequence[Value | None], points: Sequence[Point]
) -> bool:
    """Whether a node is x[:, -1:] of a value along its token axis."""
    kind = operator_of(node)
    data = inputs[0] if inputs else None
    if kind not in (("", "Slice"), ("", "Gather")) or data is None or data.axis < 0 or data.group != 1:
        return False
    parts = [value.contents for value in inputs[1:] if value is not None and value.contents is not None]
    if len(parts) != len(node.input) - 1 or any(part[0].shape != (1,) for part in parts):
        return False
    rank = len(data.shapes[0]) if data.shapes is not None else 1
    for place, point in enumerate(points):
        numbers = [int(part[place][0]) for part in parts]
        if kind[1] == "Gather":
            axis, taken = int(attributes.get("axis", 0)), range(point.new)[numbers[0] :][:1]
        elif len(numbers) in (3, 4) and numbers[3:] in ([], [1]):
            axis, taken = numbers[2], range(point.new)[numbers[0] : numbers[1]]
        else:
            return False
        if axis % rank != data.axis or taken != range(point.new - 1, point.new):
            return False
    return True


def _constant_of(attributes: Mapping[str, Any]) -> onnx.TensorProto | None:
    value = attributes.get("value")
    if isinstance(value, onnx.TensorProto):
        return value
    for name, dtype in (
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
        ("value_floats", np.float32),
    ):
        if name in attributes:
            return onnx.numpy_helper.from_array(np.array(attributes[name], dtype=dtype))
    return None


def _points(contract: GraphContract, longest: int) -> tuple[Point, ...]:
    """A prompt, chunks, single tokens, and a long past; all within what the graph can hold."""
    limit = contract.context_limit or longest
    capacities = [pair.dims[pair.sequence_axis] for pair in contract.kv if pair.dims[pair.sequence_axis] > 0]
    if contract.cache is CacheStyle.SLOT_STATIC:
        limit = min([limit, *capacities])
    wanted = [(0, 7), (3, 5), (12, 1), (0, 1), (min(longest, limit) - 3, 3)]
    return tuple(Point(past, new) for past, new in wanted if past >= 0 and past + new <= max(limit, 12))


def _token_axis(shapes: tuple[Shape, ...] | None, points: Sequence[Point]) -> tuple[int, int]:
    if shapes is None:
        return UNKNOWN, 1
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return WHOLE, 1
    if any(len(shape) != len(first) for shape in shapes):
        return MIXED, 1
    found, group = WHOLE, 1
    for axis, sizes in enumerate(zip(*shapes, strict=True)):
        if all(size == sizes[0] for size in sizes):
            continue
        rows = sizes[0] // points[0].new
        if found >= 0 or rows < 1 or any(size != rows * p.new for size, p in zip(sizes, points, strict=True)):
            return MIXED, 1
        found, group = axis, rows
    return found, group


def _input_values(contract: GraphContract, points: Sequence[Point]) -> dict[str, Value]:
    values: dict[str, Value] = {}

    def store(name: str, arrays: Sequence[Array], *, known: bool = True, removed: bool = True) -> None:
        shapes = tuple(array.shape for array in arrays)
        axis, group = _token_axis(shapes, points)
        values[name] = Value(shapes, tuple(arrays) if known else None, removed=removed, axis=axis, group=group)

    def length(port: InputPort | None, numbers: Sequence[int]) -> None:
        if port is not None:
            store(port.name, [np.full((1,) * port.rank, number, _numpy(port.dtype)) for number in numbers])

    def along(port: InputPort | None, arrays: Sequence[Array]) -> None:
        if port is not None:
            store(
                port.name,
                [array.reshape((1,) * (port.rank - 1) + (-1,)).astype(_numpy(port.dtype)) for array in arrays],
            )

    store(contract.input_ids.name, [np.zeros((1, p.new)) for p in points], known=False, removed=False)
    places = [np.arange(p.past, p.total) for p in points]
    along(contract.attention_mask, [np.ones(p.total) for p in points])
    along(contract.position_ids, places)
    along(contract.cache_position, places)
    length(contract.seqlens_k, [p.total - 1 for p in points])
    length(contract.total_sequence_length, [p.total for p in points])
    length(contract.past_sequence_length, [p.past for p in points])
    length(contract.use_cache_branch, [int(p.past > 0) for p in points])
    length(contract.write_indices, [p.past for p in points])
    length(contract.nonpad_kv_seqlen, [p.total for p in points])
    for constant in contract.constants:
        dtype = _numpy(constant.port.dtype)
        if constant.shape == "like_ids":
            store(constant.port.name, [np.full((1, p.new), constant.value, dtype) for p in points], removed=False)
        else:
            store(constant.port.name, [np.full(constant.dims, constant.value, dtype)] * len(points))
    room = max(point.total for point in points)
    for pair in contract.kv:
        shapes = []
        for point in points:
            dims = list(pair.dims)
            dims[pair.batch_axis] = 1
            if dims[pair.sequence_axis] < 0:
                dims[pair.sequence_axis] = room if contract.cache is CacheStyle.SLOT_STATIC else point.past
            shapes.append(tuple(dims))
        axis, group = _token_axis(tuple(shapes), points)
        values[pair.past] = Value(tuple(shapes), None, removed=True, axis=axis, group=group)
    return values


def _weight(value: onnx.ValueInfoProto, count: int) -> Value:
    """What an adapter feeds: of one shape at all points, and of unknown content."""
    shape = tuple(_ANY_RANK if size < 0 else size for size in dims_of(value) or ())
    return Value((shape,) * count, None, axis=WHOLE)


def _numpy(dtype: DType) -> np.dtype[np.generic]:
    return np.dtype("float32" if dtype is DType.BFLOAT16 else dtype.value)


def _attention_shapes(
    op_type: str,
    attributes: Mapping[str, Any],
    node: onnx.NodeProto,
    inputs: Sequence[Value | None],
    points: Sequence[Point],
) -> list[tuple[Shape, ...] | None]:
    """Shapes of the result and of the present keys and values."""
    query = inputs[0].shapes if inputs and inputs[0] is not None else None
    if query is None:
        return [None] * len(node.output)
    value = inputs[2].shapes if len(inputs) > 2 and inputs[2] is not None else None
    heads = int(attributes.get("num_heads", attributes.get("q_num_heads", 0)))
    kv_heads = int(attributes.get("kv_num_heads", heads))
    results: list[Shape] = []
    for place, shape in enumerate(query):
        if len(shape) == 4:
            width = value[place][-1] if value is not None else shape[-1]
            results.append((*shape[:-1], width))
        elif value is None:  # packed
            results.append((*shape[:-1], shape[-1] // (heads + 2 * kv_heads) * heads))
        elif kv_heads and heads:
            v = value[place]
            width = v[-1] if len(v) == 4 else v[-1] // kv_heads
            results.append((*shape[:-1], width * heads))
        else:
            results.append(shape)
    presents: list[tuple[Shape, ...] | None] = []
    past_at = {"GroupQueryAttention": 3, "MultiHeadAttention": 6, "Attention": 4}[op_type]
    for place in (past_at, past_at + 1):
        past = inputs[place] if place < len(inputs) else None
        grown = None
        if past is not None and past.shapes is not None and all(len(shape) == 4 for shape in past.shapes):
            grown = tuple((*shape[:2], point.total, shape[3]) for shape, point in zip(past.shapes, points, strict=True))
        presents.append(grown)
    return [tuple(results), *presents]
