"""Shapes of an operator's outputs from the shapes of its inputs: :func:`output_shapes`.

Covers the operators of language model graphs. It says nothing of the others: a value without a shape cannot be shown to
keep tokens apart, so its graph is left alone.

Source: https://onnx.ai/onnx/operators and ONNX Runtime's ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_genai.graph.evaluate import Array

__all__ = ["ELEMENTWISE", "NORMS", "PROJECTIONS", "Shape", "ShapeCase", "output_shapes", "reduced_axes"]

Shape = tuple[int, ...]

_UNARY = """
    Abs Acos Asin Atan BiasGelu BitwiseNot Cast Ceil Celu Clip Cos Cosh DequantizeLinear Dropout Elu Erf Exp
    FastGelu Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not QuantizeLinear
    QuickGelu Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh
    ThresholdedRelu CastLike
"""
_BINARY = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max
    Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor
"""

ELEMENTWISE = frozenset(_BINARY.split()) | frozenset(_UNARY.split())
"""Output (i, j, ...) is made of the inputs at (i, j, ...), which broadcast."""

NORMS = frozenset(
    {
        "CumSum",
        "Hardmax",
        "LayerNormalization",
        "LogSoftmax",
        "LpNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "Softmax",
    }
)
"""The outputs have the shape of input 0 and mix along stated axes only."""

PROJECTIONS = frozenset({"FusedMatMul", "MatMul", "MatMulBnb4", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"})
"""Products of [..., rows, k] and a matrix."""

_FULL_NORM_OUTPUTS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})


@dataclass(slots=True)
class ShapeCase:
    """One operator at one probe."""

    op_type: str
    attributes: Mapping[str, Any]
    shapes: Sequence[Shape | None]
    """None for an input that is left out or of unknown shape."""
    contents: Sequence[Array | None]
    num_outputs: int

    def ints(self, place: int, name: str) -> list[int] | None:
        """A list that is an input in new opsets and an attribute in old ones; None if it is not known."""
        if place < len(self.contents):
            content = self.contents[place]
            if content is not None:
                return [int(item) for item in content.reshape(-1)]
        found = self.attributes.get(name)
        return None if found is None else [int(item) for item in found]

    def shape(self, place: int) -> Shape:
        found = self.shapes[place] if place < len(self.shapes) else None
        if found is None:
            raise _UnknownError
        return found


class _UnknownError(Exception):
    """The shape depends on something that is not known."""


def output_shapes(case: ShapeCase) -> list[Shape | None]:
    """One shape an output; None where it is not known."""
    rule = _RULES.get(case.op_type)
    if rule is None:
        if case.op_type in ELEMENTWISE:
            rule = _elementwise
        elif case.op_type in NORMS:
            rule = _norm
        elif case.op_type.startswith("Reduce"):
            rule = _reduce
        else:
            return [None] * case.num_outputs
    try:
        found = rule(case)
    except (_UnknownError, ArithmeticError, LookupError, TypeError, ValueError):
        found = []
    return [*found, *[None] * (case.num_outputs - len(found))]


def reduced_axes(case: ShapeCase) -> list[int]:
    """Axes of a Reduce operator, not negative."""
    rank = len(case.shape(0))
    given = len(case.shapes) > 1 and case.shapes[1] is not None
    axes = case.ints(1, "axes")
    if given and axes is None:
        raise _UnknownError
    if not axes:
        return [] if case.attributes.get("noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes]


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    sizes = []
    for place in range(-rank, 0):
        dims = {shape[place] for shape in shapes if len(shape) >= -place} - {1}
        if len(dims) > 1:
            raise ValueError("the shapes do not broadcast")
        sizes.append(dims.pop() if dims else 1)
    return tuple(sizes)


def _elementwise(case: ShapeCase) -> list[Shape | None]:
    if case.op_type in _UNARY_OPS:
        return [case.shape(0)]
    return [_broadcast([case.shape(place) for place in range(len(case.shapes))])]


_UNARY_OPS = frozenset(_UNARY.split())


def _norm(case: ShapeCase) -> list[Shape | None]:
    if case.op_type in _FULL_NORM_OUTPUTS:
        return [case.shape(0), None, None, case.shape(0)][: case.num_outputs]
    return [case.shape(0)]


def _reduce(case: ShapeCase) -> list[Shape | None]:
    shape, axes = case.shape(0), reduced_axes(case)
    if case.attributes.get("keepdims", 1):
        return [tuple(1 if place in axes else size for place, size in enumerate(shape))]
    return [tuple(size for place, size in enumerate(shape) if place not in axes)]


def _product(case: ShapeCase) -> list[Shape | None]:
    a, b = case.shape(0), case.shape(1)
    if case.op_type == "FusedMatMul" and case.attributes.get("transB", 0):
        b = (*b[:-2], b[-1], b[-2])
    if len(a) < 2 or len(b) < 2:
        raise _UnknownError
    return [(*_broadcast([a[:-2], b[:-2]]), a[-2], b[-1])]


def _packed_product(case: ShapeCase) -> list[Shape | None]:
    return [(*case.shape(0)[:-1], int(case.attributes["N"]))]


def _gemm(case: ShapeCase) -> list[Shape | None]:
    a, b = case.shape(0), case.shape(1)
    rows = a[1] if case.attributes.get("transA", 0) else a[0]
    return [(rows, b[0] if case.attributes.get("transB", 0) else b[1])]


def _gather(case: ShapeCase) -> list[Shape | None]:
    data, indices = case.shape(0), case.shape(1)
    axis = int(case.attributes.get("axis", 0)) % len(data)
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def _gather_quantized(case: ShapeCase) -> list[Shape | None]:
    data, indices = case.shape(0), case.shape(1)
    axis = int(case.attributes.get("gather_axis", 0)) % len(data)
    # Bytes hold several numbers, types of 4 bits one; the scales tell which it is.
    unpacked = data[-1] * 8 // int(case.attributes.get("bits", 4))
    room = case.shape(2)[-1] * int(case.attributes.get("block_size", 128))
    width = unpacked if unpacked <= room else data[-1]
    row = [*data[axis + 1 :]]
    if row:
        row[-1] = width
    return [(*data[:axis], *indices, *row)]


def _same_as_indices(case: ShapeCase) -> list[Shape | None]:
    return [case.shape(1)]


def _transpose(case: ShapeCase) -> list[Shape | None]:
    shape = case.shape(0)
    order = case.attributes.get("perm") or list(range(len(shape)))[::-1]
    return [tuple(shape[place] for place in order)]


def _reshape(case: ShapeCase) -> list[Shape | None]:
    shape, wanted = case.shape(0), case.ints(1, "shape")
    if wanted is None:
        raise _UnknownError
    zero = bool(case.attributes.get("allowzero", 0))
    sizes = [shape[place] if size == 0 and not zero else size for place, size in enumerate(wanted)]
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // known
    if math.prod(sizes) != math.prod(shape):
        raise ValueError("the sizes do not fit")
    return [tuple(sizes)]


def _flatten(case: ShapeCase) -> list[Shape | None]:
    shape, axis = case.shape(0), int(case.attributes.get("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return [(math.prod(shape[:axis]), math.prod(shape[axis:]))]


def _unsqueeze(case: ShapeCase) -> list[Shape | None]:
    axes = case.ints(1, "axes")
    if axes is None:
        raise _UnknownError
    shape = list(case.shape(0))
    rank = len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    return [tuple(shape)]


def _squeeze(case: ShapeCase) -> list[Shape | None]:
    shape, axes = case.shape(0), case.ints(1, "axes")
    if axes is None:
        raise _UnknownError  # which axes go would depend on the number of tokens
    gone = {axis % len(shape) for axis in axes}
    return [tuple(size for place, size in enumerate(shape) if place not in gone)]


def _expand(case: ShapeCase) -> list[Shape | None]:
    wanted = case.ints(1, "shape")
    if wanted is None:
        raise _UnknownError
    return [_broadcast([case.shape(0), tuple(wanted)])]


def _concat(case: ShapeCase) -> list[Shape | None]:
    shapes = [case.shape(place) for place in range(len(case.shapes))]
    axis = int(case.attributes["axis"]) % len(shapes[0])
    first = shapes[0]
    return [(*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])]


def _split(case: ShapeCase) -> list[Shape | None]:
    shape = case.shape(0)
    axis = int(case.attributes.get("axis", 0)) % len(shape)
    sizes = case.ints(1, "split")
    if sizes is None:
        part = -(-shape[axis] // case.num_outputs)
        sizes = [part] * (case.num_outputs - 1)
        sizes.append(shape[axis] - sum(sizes))
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _slice(case: ShapeCase) -> list[Shape | None]:
    shape = list(case.shape(0))
    starts, ends = case.ints(1, "starts"), case.ints(2, "ends")
    if starts is None or ends is None:
        raise _UnknownError
    axes = case.ints(3, "axes") or list(range(len(starts)))
    steps = case.ints(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1:
            raise _UnknownError
        shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return [tuple(shape)]


def _pad(case: ShapeCase) -> list[Shape | None]:
    shape, pads = list(case.shape(0)), case.ints(1, "pads")
    if pads is None:
        raise _UnknownError
    axes = case.ints(3, "axes") or list(range(len(shape)))
    for place, axis in enumerate(axes):
        shape[axis] += pads[place] + pads[len(axes) + place]
    return [tuple(shape)]


def _tile(case: ShapeCase) -> list[Shape | None]:
    repeats = case.ints(1, "repeats")
    if repeats is None:
        raise _UnknownError
    return [tuple(size * count for size, count in zip(case.shape(0), repeats, strict=True))]


def _top(case: ShapeCase) -> list[Shape | None]:
    shape, count = list(case.shape(0)), case.ints(1, "k")
    if count is None:
        raise _UnknownError
    shape[int(case.attributes.get("axis", -1))] = count[0]
    return [tuple(shape)] * 2


def _extreme(case: ShapeCase) -> list[Shape | None]:
    shape = list(case.shape(0))
    axis = int(case.attributes.get("axis", 0)) % len(shape)
    if case.attributes.get("keepdims", 1):
        shape[axis] = 1
    else:
        del shape[axis]
    return [tuple(shape)]


def _first(case: ShapeCase) -> list[Shape | None]:
    return [case.shape(0)]


_RULES: Mapping[str, Callable[[ShapeCase], list[Shape | None]]] = {
    "ArgMax": _extreme,
    "ArgMin": _extreme,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "FusedMatMul": _product,
    "Gather": _gather,
    "GatherBlockQuantized": _gather_quantized,
    "GatherElements": _same_as_indices,
    "Gemm": _gemm,
    "MatMul": _product,
    "MatMulBnb4": _packed_product,
    "MatMulInteger": _product,
    "MatMulIntegerToFloat": _product,
    "MatMulNBits": _packed_product,
    "MoE": _first,
    "Pad": _pad,
    "QMoE": _first,
    "Reshape": _reshape,
    "RotaryEmbedding": _first,
    "ScatterElements": _first,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
