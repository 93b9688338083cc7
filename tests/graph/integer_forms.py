"""Products with integer weights in the forms that quantizers write: with MatMulInteger, and behind DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.graph.quantized_forms import Builder, node
from tests.kernels.nbits import Quantized

__all__ = ["CHAINS", "dequantized", "dynamic", "embedding", "held", "quantized"]

_TYPES = {
    (8, True): TensorProto.INT8,
    (8, False): TensorProto.UINT8,
    (4, True): TensorProto.INT4,
    (4, False): TensorProto.UINT4,
}


def held(graph: Builder, name: str, made: Quantized) -> list[str]:
    """Adds weights, scales and zero points of a matrix, and returns their names; "" if there are no zero points."""
    dtype = _TYPES[made.bits, made.signed]
    dims = (made.k, made.n) if made.layout == 1 else (made.n, made.k)
    graph.initializers.append(helper.make_tensor(f"{name}.q", dtype, dims, made.data.tobytes(), raw=True))
    shape = made.scales.shape if made.block_size or not made.scales.ndim else (made.n,)
    names = [f"{name}.q", graph.constant(f"{name}.s", made.scales.reshape(shape))]
    if made.zero_points is None:
        return [*names, ""]
    one = made.zero_points.size == 1 and made.n * made.scales.size > 1
    tensor = helper.make_tensor(
        f"{name}.z", dtype, () if one else (shape or (made.n,)), made.zero_points.tobytes(), raw=True
    )
    graph.initializers.append(tensor)
    return [*names, f"{name}.z"]


def quantized(graph: Builder, source: str) -> list[str]:
    """The three results of DynamicQuantizeLinear, which is added once for a value."""
    names = [f"{source}.{part}" for part in ("quantized", "scale", "zero")]
    if not any(names[0] in item.output for item in graph.nodes):
        graph.add(helper.make_node("DynamicQuantizeLinear", [source], names, name=f"node.{names[0]}"))
    return names


Chain = Callable[[Builder, str, str, str, str], None]


def _joined(graph: Builder, sums: str, a: str, b: str, output: str) -> None:
    graph.add(node("Mul", [a, b], f"{output}.ab"), node("Mul", [sums, f"{output}.ab"], output))


def _joined_first(graph: Builder, sums: str, a: str, b: str, output: str) -> None:
    graph.add(node("Mul", [b, a], f"{output}.ba"), node("Mul", [f"{output}.ba", sums], output))


def _activations_first(graph: Builder, sums: str, a: str, b: str, output: str) -> None:
    graph.add(node("Mul", [sums, a], f"{output}.a"), node("Mul", [f"{output}.a", b], output))


def _weights_first(graph: Builder, sums: str, a: str, b: str, output: str) -> None:
    graph.add(node("Mul", [b, sums], f"{output}.b"), node("Mul", [a, f"{output}.b"], output))


CHAINS: dict[str, Chain] = {
    "joined": _joined,
    "joined_first": _joined_first,
    "activations_first": _activations_first,
    "weights_first": _weights_first,
}
"""How sums are multiplied with the scales of activations and weights."""


def dynamic(graph: Builder, source: str, output: str, made: Quantized, chain: str = "joined") -> str:
    """Adds a product whose activations are rounded when the graph runs."""
    weights, scales, zeros = held(graph, output, made)
    rows, scale, zero = quantized(graph, source)
    inputs = [rows, weights, zero, zeros] if zeros else [rows, weights, zero]
    graph.add(node("MatMulInteger", inputs, f"{output}.sums"))
    graph.add(node("Cast", [f"{output}.sums"], f"{output}.floats", to=TensorProto.FLOAT))
    CHAINS[chain](graph, f"{output}.floats", scale, scales, output)
    return output


def dequantized(
    graph: Builder, source: str, output: str, made: Quantized, *, transposes: int = 0, domain: str = ""
) -> str:
    """Adds MatMul of weights behind DequantizeLinear, and so many Transposes."""
    names = held(graph, output, made)
    attributes = {}
    if made.scales.ndim:
        columns = 1 if made.layout == 1 else 0
        attributes["axis"] = 1 - columns if made.block_size else columns
    if made.block_size:
        attributes["block_size"] = made.block_size
    value = f"{output}.dense"
    graph.add(node("DequantizeLinear", names if names[-1] else names[:-1], value, domain, **attributes))
    for count in range(transposes):
        graph.add(node("Transpose", [value], f"{value}.{count}", perm=[1, 0]))
        value = f"{value}.{count}"
    graph.add(node("MatMul", [source, value], output))
    return output


def embedding(graph: Builder) -> np.ndarray:
    """The table that ``hidden`` is looked up in."""
    return np.asarray(onnx.numpy_helper.to_array(graph.initializers[0]))
