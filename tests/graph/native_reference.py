"""Quantized products for onnx's reference implementation: ONNX Runtime's operators and ours, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_model
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnx_genai.graph import GraphContract
from onnx_genai.graph.index import attributes_of
from tests.kernels.nbits import Quantized, silu

__all__ = ["compute", "compute_contract", "normalised"]

_PARTS_INPUTS, _NORM_WEIGHT, _SUM_OUTPUT = 12, 14, 4
"""Of our operator's inputs behind the first: those of the products, and the norm's weight; and an output."""


class OrtProduct(OpRun):
    """com.microsoft::MatMulNBits."""

    op_domain = "com.microsoft"

    def _run(self, rows: np.ndarray, *rest: Any, **_: Any) -> tuple[np.ndarray]:
        data, scales, zero_points, order, bias = (*rest, None, None, None)[:5]
        assert order is None
        given = attributes_of(self.onnx_node)
        weights = _weights(given, given["N"], data, scales, zero_points, bias)
        return (weights.times(rows).astype(rows.dtype),)


class OurProduct(OpRun):
    """genai.runtime::MatMulNBits."""

    op_domain = "genai.runtime"

    def _run(self, rows: np.ndarray, *rest: Any, **_: Any) -> tuple[np.ndarray, ...]:
        dtype = rows.dtype
        given = attributes_of(self.onnx_node)
        constants, total = rest[:_PARTS_INPUTS], None
        if "norm_epsilon" in given:
            weight, skip = (*rest[_NORM_WEIGHT:], None)[:2]
            assert (skip is not None) == bool(given.get("norm_skip"))
            rows, total = normalised(rows, skip, weight, given["norm_epsilon"])
            rows = rows.astype(dtype)
        while constants and constants[-1] is None:
            constants = constants[:-1]
        sizes = [given["N"], *(given[name] for name in ("N_1", "N_2") if given.get(name))]
        inputs = [*constants, *[None] * (4 * len(sizes) - len(constants))]
        assert len(inputs) == 4 * len(sizes)
        products = [_part(given, part, size, inputs[4 * part : 4 * part + 4], rows) for part, size in enumerate(sizes)]
        if given.get("swiglu"):
            gate, up = products
            products = [silu(gate) * up]
        if given.get("norm_skip"):
            assert total is not None
            products += [np.zeros(0)] * (_SUM_OUTPUT - len(products)) + [total]
        assert len(products) == len(self.onnx_node.output)
        return tuple(product.astype(dtype) for product in products)


class SimplifiedLayerNormalization(OpRun):
    """ONNX Runtime's, in the domain of the standard."""

    op_domain = ""

    def _run(self, rows: np.ndarray, weight: np.ndarray, **_: Any) -> tuple[np.ndarray]:
        epsilon = attributes_of(self.onnx_node).get("epsilon", 1e-5)
        return (normalised(rows, None, weight, epsilon)[0].astype(rows.dtype),)


class SkipSimplifiedLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(self, rows: np.ndarray, skip: np.ndarray, *rest: Any, **_: Any) -> tuple[np.ndarray, ...]:
        weight, bias = (*rest, None)[:2]
        skip = skip if bias is None else skip + bias
        found, total = normalised(rows, skip, weight, attributes_of(self.onnx_node).get("epsilon", 1e-12))
        places = (found, np.zeros(0), 1 / _size(total, 0.0), total)
        return tuple(place.astype(rows.dtype) for place in places[: len(self.onnx_node.output)])


def normalised(
    rows: np.ndarray, skip: np.ndarray | None, weight: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """(rows + skip) / their root mean square * weight, and rows + skip, in float64."""
    total = rows.astype(np.float64) + (0 if skip is None else skip)
    return total / _size(total, epsilon) * weight, total


def _size(rows: np.ndarray, epsilon: float) -> np.ndarray:
    return np.asarray(np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + epsilon))


class QuickGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: np.ndarray, alpha: float | None = None, **_: Any) -> tuple[np.ndarray]:
        factor = attributes_of(self.onnx_node).get("alpha", 1.702)
        return ((x / (1 + np.exp(-factor * x))).astype(x.dtype),)


# The reference implementation finds an operator by the name of its class.
OrtProduct.__name__ = OurProduct.__name__ = "MatMulNBits"


_OPERATORS = [OrtProduct, OurProduct, QuickGelu, SimplifiedLayerNormalization, SkipSimplifiedLayerNormalization]


def compute(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs of a model with its weights in it."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in model.graph.node:  # an output without a name would be the value of all inputs without one
        for place, name in enumerate(node.output):
            node.output[place] = name or f"unused.{node.output[0]}.{place}"
    session = ReferenceEvaluator(model, new_ops=_OPERATORS)
    return [np.asarray(output) for output in session.run(None, dict(feeds))]


def compute_contract(contract: GraphContract, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs of a rewritten model."""
    model = onnx.load_from_string(contract.model_bytes)
    load_external_data_for_model(model, str(contract.external_folder))
    return compute(model, feeds)


def _part(given: Mapping[str, Any], part: int, size: int, constants: Sequence[Any], rows: np.ndarray) -> np.ndarray:
    """One product of a node; of more columns than it has if it is a piece of them."""
    *matrix, bias = constants
    whole = _weights(given, given.get("b_columns") or size, *matrix, None).times(rows)
    first = given.get("b_first" + (f"_{part}" if part else ""), 0)
    piece = whole[..., first : first + size]
    return piece if bias is None else piece + bias.astype(np.float64)


def _weights(
    given: Mapping[str, Any],
    n: int,
    data: np.ndarray,
    scales: np.ndarray,
    zero_points: np.ndarray | None,
    bias: np.ndarray | None,
) -> Quantized:
    if given.get("b_layout"):
        return Quantized(
            k=given["K"],
            block_size=given["block_size"],
            bits=given["bits"],
            data=data,
            scales=scales,
            zero_points=zero_points,
            bias=bias,
            layout=given["b_layout"],
            signed=bool(given["b_signed"]),
            columns=n,
        )
    blocks = -(-given["K"] // given["block_size"])
    assert data.shape == (n, blocks, given["block_size"] * given["bits"] // 8)
    return Quantized(
        k=given["K"],
        block_size=given["block_size"],
        bits=given["bits"],
        data=data,
        scales=scales.reshape(n, blocks),
        zero_points=None if zero_points is None else zero_points.reshape(n, -1),
        bias=bias,
    )
