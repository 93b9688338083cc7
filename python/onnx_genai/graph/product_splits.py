"""Products that are cut along their columns become one product for each piece: :func:`split_product`.

Packed gate and up, or query, key and value, then need no copy of the pieces, and gate and up can be multiplied in the
node. The pieces of the weights are references to the same files, or columns that the node finds in the whole.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_genai.graph.index import GraphIndex, attributes_of, dims_of, input_of, operator_of
from onnx_genai.graph.products import Product

__all__ = ["split_product"]

_MAX_PIECES = 3
_BYTES: dict[int, int] = {onnx.TensorProto.UINT8: 1, onnx.TensorProto.FLOAT: 4, onnx.TensorProto.FLOAT16: 2}


def split_product(
    index: GraphIndex, product: Product, split: onnx.NodeProto, place: int
) -> tuple[list[Product], list[onnx.TensorProto]] | None:
    """The pieces of a product, if ``split``, which alone reads it, cuts its columns; and their constants.

    Args:
        index: Of the graph.
        product: Whose output is read by ``split`` only.
        split: The reader.
        place: Index of ``split`` in the graph.
    """
    if operator_of(split) != ("", "Split") or not all(split.output) or not _is_last_axis(index, split):
        return None
    sizes = _sizes(index, split, product.n)
    if sizes is None or not 2 <= len(sizes) <= _MAX_PIECES:
        return None
    tensors = [None if not name else index.constant(name) for name in product.constants]
    kind = product.kind
    if kind.layout:  # the node finds its columns itself
        kind = kind._replace(width=product.n)
        tensors[:3] = [None] * 3
    pieces, made = [], []
    for start, size, output in zip(itertools.accumulate([0, *sizes]), sizes, split.output, strict=False):
        names = []
        for name, tensor in zip(product.constants, tensors, strict=True):
            if tensor is None:
                names.append("")
                continue
            piece = _rows(tensor, f"genai.{name}.{start}.{size}", product.n, start, size)
            made.append(piece)
            names.append(piece.name)
        if kind.layout:
            names[:3] = product.constants[:3]
        weights, scales, zero_points, bias = names
        pieces.append(
            replace(
                product,
                kind=kind,
                n=size,
                first=start if kind.layout else 0,
                weights=weights,
                scales=scales,
                zero_points=zero_points,
                bias=bias,
                output=output,
                taken=[*product.taken, place],
            )
        )
    return pieces, made


def _is_last_axis(index: GraphIndex, split: onnx.NodeProto) -> bool:
    axis = int(attributes_of(split).get("axis", 0))
    value = index.values.get(split.input[0]) if axis > 0 else None
    dims = None if value is None else dims_of(value)
    return axis == -1 or (dims is not None and axis == len(dims) - 1)


def _sizes(index: GraphIndex, split: onnx.NodeProto, n: int) -> list[int] | None:
    """Columns of each piece; None if they are not known or do not fill the product."""
    given = attributes_of(split).get("split")
    if given is None and input_of(split, 1):
        tensor = index.constant(input_of(split, 1))
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        given = numpy_helper.to_array(tensor).reshape(-1)
    if given is None:
        count = len(split.output)
        return [n // count] * count if n % count == 0 else None
    sizes = [int(size) for size in given]
    return sizes if len(sizes) == len(split.output) and min(sizes) > 0 and sum(sizes) == n else None


def _rows(tensor: onnx.TensorProto, name: str, n: int, start: int, size: int) -> onnx.TensorProto:
    """Rows of a tensor that has as much for each of ``n`` rows, as a tensor of [size, ...]."""
    count = int(np.prod(tensor.dims, dtype=np.int64))
    shape = [size, *tensor.dims[1:]] if tensor.dims and tensor.dims[0] == n else [size, count // n]
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        content = numpy_helper.to_array(tensor).reshape(n, -1)[start : start + size]
        return numpy_helper.from_array(np.ascontiguousarray(content).reshape(shape), name)
    row = count // n * _BYTES[tensor.data_type]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    piece = onnx.TensorProto(name=name, data_type=tensor.data_type, dims=shape, data_location=tensor.data_location)
    entries |= {"offset": str(int(entries.get("offset", "0")) + start * row), "length": str(size * row)}
    for key in ("location", "offset", "length"):
        piece.external_data.append(onnx.StringStringEntryProto(key=key, value=entries[key]))
    return piece
