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

__all__ = ["compute", "compute_contract"]


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
        given = attributes_of(self.onnx_node)
        sizes = [given["N"], *(given[name] for name in ("N_1", "N_2") if given.get(name))]
        inputs = [*rest, *[None] * (4 * len(sizes) - len(rest))]
        assert len(inputs) == 4 * len(sizes)
        products = [_part(given, part, size, inputs[4 * part : 4 * part + 4], rows) for part, size in enumerate(sizes)]
        if given.get("swiglu"):
            gate, up = products
            products = [silu(gate) * up]
        assert len(products) == len(self.onnx_node.output)
        return tuple(product.astype(rows.dtype) for product in products)


class QuickGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: np.ndarray, alpha: float | None = None, **_: Any) -> tuple[np.ndarray]:
        factor = attributes_of(self.onnx_node).get("alpha", 1.702)
        return ((x / (1 + np.exp(-factor * x))).astype(x.dtype),)


# The reference implementation finds an operator by the name of its class.
OrtProduct.__name__ = OurProduct.__name__ = "MatMulNBits"


def compute(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs of a model with its weights in it."""
    session = ReferenceEvaluator(model, new_ops=[OrtProduct, OurProduct, QuickGelu])
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
