"""ONNX graphs: what a model's ports mean, how its KV is kept, and rewrites. With ``convert`` the only user of onnx."""

from __future__ import annotations

from onnx_genai.graph.contract import (
    OPTIONAL_PORTS,
    AdapterInput,
    CacheStyle,
    ConstantInput,
    Coverage,
    CrossInput,
    DType,
    EncoderGraph,
    EncoderPort,
    GraphContract,
    InputPort,
    KvPair,
    OperatorCount,
    PagedLayer,
    Products,
)
from onnx_genai.graph.describe import describe
from onnx_genai.graph.io import resolve

__all__ = [
    "OPTIONAL_PORTS",
    "AdapterInput",
    "CacheStyle",
    "ConstantInput",
    "Coverage",
    "CrossInput",
    "DType",
    "EncoderGraph",
    "EncoderPort",
    "GraphContract",
    "InputPort",
    "KvPair",
    "OperatorCount",
    "PagedLayer",
    "Products",
    "describe",
    "resolve",
]
