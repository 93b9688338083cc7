"""Products whose weights are a matrix of 8 (or 4) bits: :func:`read_integer_product`.

Three families, as quantizers write them:

- ``DynamicQuantizeLinear``, ``MatMulInteger``, ``Cast``, ``Mul``: activations are rounded when the graph runs. Also as
  the operators ``MatMulIntegerToFloat`` and ``DynamicQuantizeMatMul`` of ONNX Runtime.
- ``MatMul`` of weights behind ``DequantizeLinear``, maybe transposed.
- ``Gemm`` of such weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import onnx

from onnx_genai.graph.index import GraphIndex, attribute_int, attributes_of, input_of, operator_of

__all__ = ["BLOCK_SIZES", "INT8_ACTIVATIONS", "IntegerProduct", "Layout", "read_integer_product"]

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Weights of a column that share a scale."""
INT8_ACTIVATIONS = 4
"""The accuracy_level that allows int8 activations."""

_FLOAT = onnx.TensorProto.FLOAT
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_BITS: dict[int, int] = {
    onnx.TensorProto.INT8: 8,
    onnx.TensorProto.UINT8: 8,
    onnx.TensorProto.INT4: 4,
    onnx.TensorProto.UINT4: 4,
}
_DEQUANTIZE = ("", "com.microsoft")


class Layout(IntEnum):
    """Values of ``b_layout``."""

    ROWS = 1
    """[K, N]"""
    COLUMNS = 2
    """[N, K]"""


@dataclass(slots=True, kw_only=True)
class IntegerProduct:
    """``output`` = ``source`` times dequantized weights, plus ``added``."""

    source: str
    output: str
    k: int
    n: int
    weights: str
    scales: str
    zero_points: str = ""
    layout: Layout
    block_size: int = 0
    """Rows of the matrix that share a scale; 0 for all."""
    rounded: bool
    """Whether the graph rounds its activations to 8 bits, too."""
    added: str = ""
    """A value that is added at the end; "" for none."""
    added_to: str = ""
    """Name of the sum, if ``added``."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    """Nodes that it computes as a whole; nothing else reads what is between them."""
    feeders: list[onnx.NodeProto] = field(default_factory=list)
    """Nodes that it does not need; others may."""


class _RefusedError(Exception):
    """The product has a form that our operator does not compute; the text is the rest of "it ..."."""


def read_integer_product(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct | str | None:
    """The product that a node is; why it cannot be computed, as the rest of "it ..."; None if it is none."""
    reader = _READERS.get(operator_of(node))
    if reader is None or len(node.output) != 1 or not node.output[0] or not input_of(node, 0):
        return None
    try:
        return reader(index, node)
    except _RefusedError as why:
        return f"is {node.op_type} {why}"
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Attributes and constants of a broken graph can be anything; ONNX Runtime says what is wrong with them.
        return f"could not be followed ({error})"


# Activations that are rounded when the graph runs ---------------------------------------------------------------------


def _integers(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct:
    """MatMulInteger, and the Cast and Mul behind it."""
    quantizer = _quantizer(index, node, zero_point=2)
    cast = _reader(index, node.output[0])
    if cast is None or operator_of(cast) != ("", "Cast") or attribute_int(cast, "to", 0) != _FLOAT:
        raise _RefusedError("whose sums are no float32 next")
    found = _weights(index, node, 1, zero_point=3)
    nodes, factors = [node, cast], [quantizer.output[1], ""]
    feeders = [quantizer]
    value, scales = cast.output[0], ""
    while factors:
        times = _reader(index, value)
        if times is None or operator_of(times) != ("", "Mul"):
            raise _RefusedError("whose sums are not multiplied with the scales of activations and weights")
        other = input_of(times, 1) if input_of(times, 0) == value else input_of(times, 0)
        for factor in _factors(index, other, feeders):
            if factor in factors:
                factors.remove(factor)
            elif "" in factors and index.constant(factor) is not None:
                factors.remove("")
                scales = factor
            else:
                raise _RefusedError("whose sums are multiplied with something else than two scales")
        nodes.append(times)
        value = times.output[0]
    found.scales, found.nodes, found.feeders = scales, nodes, feeders
    found.source, found.output = input_of(quantizer, 0), value
    _check_scales(index, found)
    return found


def _factors(index: GraphIndex, name: str, feeders: list[onnx.NodeProto]) -> list[str]:
    """What a factor is the product of."""
    node = index.producers.get(name)
    if node is None or operator_of(node) != ("", "Mul"):
        return [name]
    feeders.append(node)
    return list(node.input)


def _integers_to_float(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct:
    """MatMulIntegerToFloat: A, B, scale of A, scales of B, zero points of A and B, bias."""
    quantizer = _quantizer(index, node, zero_point=4)
    if input_of(node, 2) != quantizer.output[1]:
        raise _RefusedError("with another scale than that of its activations")
    found = _weights(index, node, 1, zero_point=5)
    found.scales, found.nodes, found.feeders = input_of(node, 3), [node], [quantizer]
    found.source = input_of(quantizer, 0)
    _add(found, input_of(node, 6), node.output[0])
    _check_scales(index, found)
    return found


def _dynamic(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct:
    """DynamicQuantizeMatMul: A in float32, B, its scales and zero points, bias."""
    found = _weights(index, node, 1, zero_point=3)
    found.scales, found.nodes, found.source = input_of(node, 2), [node], input_of(node, 0)
    _add(found, input_of(node, 4), node.output[0])
    _check_scales(index, found)
    return found


def _quantizer(index: GraphIndex, node: onnx.NodeProto, *, zero_point: int) -> onnx.NodeProto:
    """The DynamicQuantizeLinear that makes the activations."""
    found = index.producers.get(input_of(node, 0))
    if found is None or operator_of(found) != ("", "DynamicQuantizeLinear") or len(found.output) != 3:
        raise _RefusedError("whose activations are not made by DynamicQuantizeLinear")
    if found.output[0] != input_of(node, 0) or found.output[2] != input_of(node, zero_point):
        raise _RefusedError("with another zero point than that of its activations")
    return found


def _weights(index: GraphIndex, node: onnx.NodeProto, place: int, *, zero_point: int) -> IntegerProduct:
    """The product with B [K, N] of 8 bits and its zero points; the rest is not known yet."""
    name, zeros = input_of(node, place), input_of(node, zero_point)
    tensor = index.constant(name)
    if tensor is None:
        raise _RefusedError("of weights that are computed")
    if _BITS.get(tensor.data_type) != 8 or len(tensor.dims) != 2 or min(tensor.dims) < 1:
        raise _RefusedError(f"of weights of the type {_type_name(tensor)} and the shape {list(tensor.dims)}")
    k, n = tensor.dims
    found = IntegerProduct(
        source="", output="", k=k, n=n, weights=name, scales="", zero_points=zeros, layout=Layout.ROWS, rounded=True
    )
    if zeros:
        _check_vector(index, zeros, "zero points", n, (tensor.data_type,))
    return found


def _check_scales(index: GraphIndex, found: IntegerProduct) -> None:
    _check_vector(index, found.scales, "scales", found.n, (_FLOAT,))


def _check_vector(index: GraphIndex, name: str, what: str, n: int, types: Sequence[int]) -> None:
    """One for the matrix, or one for each of its columns."""
    tensor = index.constant(name)
    if tensor is None:
        raise _RefusedError(f"with {what} that are computed")
    if tensor.data_type not in types:
        raise _RefusedError(f"with {what} of the type {_type_name(tensor)}")
    count = math.prod(tensor.dims)
    if count != 1 and (count != n or tensor.dims[-1] != n):
        raise _RefusedError(
            f"with {what} of the shape {list(tensor.dims)}, neither one nor one for each of {n} columns"
        )


# Weights behind DequantizeLinear --------------------------------------------------------------------------------------


def _matmul(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct | None:
    found = _dequantized(index, node, turned=False)
    if found is not None:
        found.output = node.output[0]
    return found


def _gemm(index: GraphIndex, node: onnx.NodeProto) -> IntegerProduct | None:
    given = attributes_of(node)
    found = _dequantized(index, node, turned=bool(given.get("transB", 0)))
    if found is None:
        return None
    if given.get("transA", 0):
        raise _RefusedError("of transposed activations")
    added = input_of(node, 2)
    if given.get("alpha", 1.0) != 1.0 or (added and given.get("beta", 1.0) != 1.0):
        raise _RefusedError("with factors alpha or beta")
    _add(found, added, node.output[0])
    return found


def _add(found: IntegerProduct, added: str, output: str) -> None:
    found.output = output
    if added:
        found.added, found.added_to, found.output = added, output, f"{output}.genai.product"


def _dequantized(index: GraphIndex, node: onnx.NodeProto, *, turned: bool) -> IntegerProduct | None:
    """The product of activations and weights behind DequantizeLinear; None if it is not one."""
    maker = index.producers.get(input_of(node, 1))
    feeders = []
    if maker is not None and operator_of(maker) == ("", "Transpose"):
        feeders.append(maker)
        turned = not turned
        maker = index.producers.get(input_of(maker, 0))
    if maker is None or maker.op_type != "DequantizeLinear" or maker.domain not in (*_DEQUANTIZE, "ai.onnx"):
        return None
    name, scales, zeros = (input_of(maker, place) for place in range(3))
    tensor = index.constant(name)
    if tensor is None:
        return None  # activations
    where = "of weights behind DequantizeLinear"
    if tensor.data_type not in _BITS or len(tensor.dims) != 2 or min(tensor.dims) < 1:
        raise _RefusedError(f"{where} of the type {_type_name(tensor)} and the shape {list(tensor.dims)}")
    scale, zero = index.constant(scales), index.constant(zeros) if zeros else None
    if scale is None or (zeros and zero is None):
        raise _RefusedError(f"{where} with scales or zero points that are computed")
    if scale.data_type not in _FLOATS or attribute_int(maker, "output_dtype", 0) not in (0, scale.data_type):
        raise _RefusedError(f"{where} with scales of the type {_type_name(scale)}")
    if zero is not None and (zero.data_type != tensor.data_type or list(zero.dims) != list(scale.dims)):
        raise _RefusedError(f"{where} with zero points of another type or shape than its weights and scales")
    k, n = tensor.dims[::-1] if turned else tensor.dims
    block = _block(maker, tensor, scale, column=0 if turned else 1)
    if isinstance(block, str):
        raise _RefusedError(f"{where} {block}")
    return IntegerProduct(
        source=input_of(node, 0),
        output="",
        k=k,
        n=n,
        weights=name,
        scales=scales,
        zero_points=zeros,
        layout=Layout.COLUMNS if turned else Layout.ROWS,
        block_size=block,
        rounded=False,
        nodes=[node],
        feeders=[*feeders, maker],
    )


def _block(maker: onnx.NodeProto, tensor: onnx.TensorProto, scale: onnx.TensorProto, *, column: int) -> int | str:
    """Rows that share a scale, 0 for all of them; or why the scales do not fit.

    Args:
        maker: The DequantizeLinear.
        tensor: Its weights.
        scale: Its scales.
        column: Which of the two axes of ``tensor`` is N.
    """
    block, axis = attribute_int(maker, "block_size", 0), attribute_int(maker, "axis", 1)
    axis += 2 if axis < 0 else 0
    if not block:
        if math.prod(scale.dims) == 1:
            return 0
        if axis != column:
            return "with a scale for each of its rows"
        fits = list(scale.dims) == [tensor.dims[column]]
        return 0 if fits else f"with scales of the shape {list(scale.dims)}"
    depth = 1 - column
    if axis != depth:
        return "with blocks along its columns"
    wanted = list(tensor.dims)
    wanted[depth] = -(-wanted[depth] // block)
    if list(scale.dims) != wanted:
        return f"with scales of the shape {list(scale.dims)}"
    if wanted[depth] == 1:
        return 0
    return block if block in BLOCK_SIZES else f"with blocks of {block} weights"


def _reader(index: GraphIndex, name: str) -> onnx.NodeProto | None:
    """The only node that reads a value; None if there are others, or it is an output of the graph."""
    uses = index.uses.get(name, [])
    return uses[0][0] if len(uses) == 1 and uses[0][1] >= 0 and name not in index.outputs else None


def _type_name(tensor: onnx.TensorProto) -> str:
    try:
        return onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    except ValueError:
        return str(tensor.data_type)


_READERS = {
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    ("", "MatMulInteger"): _integers,
    ("com.microsoft", "DynamicQuantizeMatMul"): _dynamic,
    ("com.microsoft", "MatMulIntegerToFloat"): _integers_to_float,
}
