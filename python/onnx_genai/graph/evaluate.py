"""Computes small values of a graph with NumPy: masks, positions, lengths and shapes.

Source of the semantics: https://onnx.ai/onnx/operators
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

__all__ = ["MAX_ELEMENTS", "Array", "TooLargeError", "evaluate"]

Array = npt.NDArray[Any]
Attributes = Mapping[str, Any]
Inputs = Sequence[Array | None]

MAX_ELEMENTS = 4_000_000
"""Values above this size are not computed."""


class TooLargeError(Exception):
    """A value has more than MAX_ELEMENTS elements."""


def evaluate(op_type: str, attributes: Attributes, inputs: Inputs) -> list[Array] | None:
    """Returns the outputs of a standard operator; None for an operator or a form that is not computed here.

    Raises:
        TooLargeError: An output would have more than MAX_ELEMENTS elements.
    """
    function = _OPERATORS.get(op_type)
    if function is None:
        return None
    try:
        with np.errstate(all="ignore"):
            found = function(attributes, inputs)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
        return None  # a form that the operator does not have: ONNX Runtime will say so
    outputs = found if isinstance(found, list) else [found]
    return [np.asarray(output) for output in outputs]


def _check_size(shape: Sequence[int]) -> None:
    size = 1
    for dim in shape:
        size *= int(dim)
    if size > MAX_ELEMENTS:
        raise TooLargeError


def _need(inputs: Inputs, place: int) -> Array:
    value = inputs[place]
    if value is None:
        raise ValueError("a required input is left out")
    return value


def _optional(inputs: Inputs, place: int) -> Array | None:
    return inputs[place] if place < len(inputs) else None


def _ints(inputs: Inputs, place: int, attributes: Attributes, name: str) -> list[int] | None:
    """A list that is an input in new opsets and an attribute in old ones."""
    value = _optional(inputs, place)
    if value is not None:
        return [int(item) for item in value.reshape(-1)]
    found = attributes.get(name)
    return None if found is None else [int(item) for item in found]


def _unary(function: Callable[[Array], Any]) -> Callable[[Attributes, Inputs], Array]:
    return lambda attributes, inputs: np.asarray(function(_need(inputs, 0)))


def _binary(function: Callable[[Array, Array], Any]) -> Callable[[Attributes, Inputs], Array]:
    def apply(attributes: Attributes, inputs: Inputs) -> Array:
        a, b = _need(inputs, 0), _need(inputs, 1)
        _check_size(np.broadcast_shapes(a.shape, b.shape))
        return np.asarray(function(a, b))

    return apply


def _variadic(function: Callable[[Array, Array], Any]) -> Callable[[Attributes, Inputs], Array]:
    def apply(attributes: Attributes, inputs: Inputs) -> Array:
        result = _need(inputs, 0)
        for place in range(1, len(inputs)):
            other = _need(inputs, place)
            _check_size(np.broadcast_shapes(result.shape, other.shape))
            result = np.asarray(function(result, other))
        return result

    return apply


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        quotient: Array = (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)
        return quotient
    return np.asarray(a / b)


def _modulo(attributes: Attributes, inputs: Inputs) -> Array:
    function = np.fmod if attributes.get("fmod", 0) else np.mod
    return np.asarray(function(_need(inputs, 0), _need(inputs, 1)))


def _power(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b.astype(a.dtype)))


def _cast(attributes: Attributes, inputs: Inputs) -> Array:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(int(attributes["to"]))
    return _need(inputs, 0).astype(dtype)


def _constant_of_shape(attributes: Attributes, inputs: Inputs) -> Array:
    shape = [int(size) for size in _need(inputs, 0)]
    _check_size(shape)
    tensor = attributes.get("value")
    fill = np.zeros(1, np.float32) if tensor is None else onnx.numpy_helper.to_array(tensor)
    return np.full(shape, fill.reshape(-1)[0], dtype=fill.dtype)


def _range(attributes: Attributes, inputs: Inputs) -> Array:
    start, limit, delta = (_need(inputs, place).reshape(-1)[0] for place in range(3))
    _check_size([max(0, int(np.ceil((limit - start) / delta)))])
    found: Array = np.arange(start, limit, delta, dtype=start.dtype)
    return found


def _gather(attributes: Attributes, inputs: Inputs) -> Array:
    data, indices, axis = _need(inputs, 0), _need(inputs, 1), int(attributes.get("axis", 0))
    _check_size([indices.size, data.size // max(1, data.shape[axis])])
    return np.take(data, indices, axis=axis)


def _slice(attributes: Attributes, inputs: Inputs) -> Array:
    data = _need(inputs, 0)
    starts, ends = _ints(inputs, 1, attributes, "starts"), _ints(inputs, 2, attributes, "ends")
    if starts is None or ends is None:
        raise ValueError("no starts or ends")
    axes = _ints(inputs, 3, attributes, "axes") or list(range(len(starts)))
    steps = _ints(inputs, 4, attributes, "steps") or [1] * len(starts)
    places = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        last = None if (step < 0 and end < -data.shape[axis]) else end
        places[axis] = slice(start, last, step)
    return data[tuple(places)]


def _reshape(attributes: Attributes, inputs: Inputs) -> Array:
    data, wanted = _need(inputs, 0), _need(inputs, 1)
    sizes = [int(size) for size in wanted]
    if not attributes.get("allowzero", 0):
        sizes = [data.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    return data.reshape(sizes)


def _unsqueeze(attributes: Attributes, inputs: Inputs) -> Array:
    axes = _ints(inputs, 1, attributes, "axes")
    return np.expand_dims(_need(inputs, 0), tuple(axes or ()))


def _squeeze(attributes: Attributes, inputs: Inputs) -> Array:
    axes = _ints(inputs, 1, attributes, "axes")
    return np.squeeze(_need(inputs, 0), None if axes is None else tuple(axes))


def _expand(attributes: Attributes, inputs: Inputs) -> Array:
    data = _need(inputs, 0)
    shape = np.broadcast_shapes(data.shape, tuple(int(size) for size in _need(inputs, 1)))
    _check_size(shape)
    return np.broadcast_to(data, shape)


def _where(attributes: Attributes, inputs: Inputs) -> Array:
    condition, a, b = (_need(inputs, place) for place in range(3))
    _check_size(np.broadcast_shapes(condition.shape, a.shape, b.shape))
    return np.where(condition, a, b)


def _tile(attributes: Attributes, inputs: Inputs) -> Array:
    data, repeats = _need(inputs, 0), [int(size) for size in _need(inputs, 1)]
    _check_size([data.size, *repeats])
    return np.tile(data, repeats)


def _concat(attributes: Attributes, inputs: Inputs) -> Array:
    return np.concatenate([_need(inputs, place) for place in range(len(inputs))], axis=int(attributes["axis"]))


def _transpose(attributes: Attributes, inputs: Inputs) -> Array:
    return np.transpose(_need(inputs, 0), attributes.get("perm"))


def _split(attributes: Attributes, inputs: Inputs) -> list[Array]:
    data, axis = _need(inputs, 0), int(attributes.get("axis", 0))
    sizes = _ints(inputs, 1, attributes, "split")
    if sizes is None:
        raise ValueError("the number of parts is not given")
    return list(np.split(data, np.cumsum(sizes)[:-1], axis=axis))


def _reduce(function: Callable[..., Any]) -> Callable[[Attributes, Inputs], Array]:
    def apply(attributes: Attributes, inputs: Inputs) -> Array:
        data = _need(inputs, 0)
        axes = _ints(inputs, 1, attributes, "axes")
        if not axes and attributes.get("noop_with_empty_axes", 0):
            return data
        keep = bool(attributes.get("keepdims", 1))
        return np.asarray(function(data, axis=tuple(axes) if axes else None, keepdims=keep)).astype(data.dtype)

    return apply


def _cumulate(attributes: Attributes, inputs: Inputs) -> Array:
    data, axis = _need(inputs, 0), int(_need(inputs, 1).reshape(-1)[0])
    if attributes.get("exclusive", 0) or attributes.get("reverse", 0):
        raise ValueError("exclusive and reverse sums are not computed")
    return np.cumsum(data, axis=axis, dtype=data.dtype)


def _triangle(attributes: Attributes, inputs: Inputs) -> Array:
    offset = _optional(inputs, 1)
    k = 0 if offset is None else int(offset.reshape(-1)[0])
    function = np.triu if attributes.get("upper", 1) else np.tril
    return function(_need(inputs, 0), k)


def _matmul(a: Array, b: Array) -> Array:
    _check_size([*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2] if a.ndim > 1 else 1, b.shape[-1]])
    return np.asarray(np.matmul(a, b))


def _clip(attributes: Attributes, inputs: Inputs) -> Array:
    low, high = _optional(inputs, 1), _optional(inputs, 2)
    data = _need(inputs, 0)
    lowest = attributes.get("min") if low is None else low
    highest = attributes.get("max") if high is None else high
    return data if lowest is None and highest is None else np.clip(data, lowest, highest).astype(data.dtype)


_OPERATORS: Mapping[str, Callable[[Attributes, Inputs], Array | list[Array]]] = {
    "Abs": _unary(np.abs),
    "Ceil": _unary(np.ceil),
    "Cos": _unary(np.cos),
    "Exp": _unary(np.exp),
    "Floor": _unary(np.floor),
    "Identity": _unary(lambda a: a),
    "IsNaN": _unary(np.isnan),
    "Log": _unary(np.log),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Reciprocal": _unary(lambda a: (1 / a).astype(a.dtype)),
    "Round": _unary(np.rint),
    "Sign": _unary(np.sign),
    "Sin": _unary(np.sin),
    "Sqrt": _unary(np.sqrt),
    "Tanh": _unary(np.tanh),
    "Add": _binary(np.add),
    "And": _binary(np.logical_and),
    "Div": _binary(_divide),
    "Equal": _binary(np.equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "MatMul": lambda attributes, inputs: _matmul(_need(inputs, 0), _need(inputs, 1)),
    "Mul": _binary(np.multiply),
    "Or": _binary(np.logical_or),
    "Pow": _binary(_power),
    "Sub": _binary(np.subtract),
    "Xor": _binary(np.logical_xor),
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Sum": _variadic(np.add),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulate,
    "Expand": _expand,
    "Gather": _gather,
    "Mod": _modulo,
    "Range": _range,
    "ReduceMax": _reduce(np.max),
    "ReduceMean": _reduce(np.mean),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
