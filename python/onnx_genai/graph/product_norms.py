"""Normalisations that a product computes itself: :func:`read_norm`.

A node of ours that alone reads the result of an RMS norm can normalise each row where it rounds it, and add the
residual to it before that: the normalised rows are then never in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from onnx_genai.graph.element_types import element_type
from onnx_genai.graph.index import GraphIndex, attributes_of, input_of, operator_of
from onnx_genai.graph.products import Kind

__all__ = ["Norm", "read_norm"]

_SKIP = ("com.microsoft", "SkipSimplifiedLayerNormalization")
_EPSILONS = {
    ("", "RMSNormalization"): 1e-5,
    ("", "SimplifiedLayerNormalization"): 1e-5,
    _SKIP: 1e-12,
}
"""RMS norms, and their epsilons where a node says none."""
_SUM_OUTPUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """What becomes of a product's rows first: (``source`` + ``skip``) / its root mean square, times ``weight``."""

    place: int
    """Index of its node in the graph."""
    source: str
    skip: str = ""
    """Is added to the source; "" for nothing."""
    weight: str
    epsilon: float
    total: str = ""
    """Name of source + skip; "" if nothing reads it."""


def read_norm(index: GraphIndex, kind: Kind, readers: Collection[int], places: dict[int, int]) -> Norm | None:
    """The norm that makes the activations of products; None if there is none, others need its result, or its element
    types are not known to be those of the products.

    Args:
        index: Of the graph.
        kind: Of the products.
        readers: Places of the nodes of all products that shall normalise.
        places: Of the nodes, by their id().
    """
    node = index.producers.get(kind.source)
    if node is None or operator_of(node) not in _EPSILONS or kind.source in index.outputs:
        return None
    given = attributes_of(node)
    if given.get("axis", -1) != -1 or given.get("stash_type", 1) != 1:
        return None
    if any(position != 0 or places[id(reader)] not in readers for reader, position in index.uses[kind.source]):
        return None
    has_skip = operator_of(node) == _SKIP
    weight = input_of(node, 2 if has_skip else 1)
    tensor = index.constant(weight)
    if tensor is None or list(tensor.dims) != [kind.k] or tensor.data_type != kind.dtype:
        return None
    # The other norms may read one type and make another; here all inputs and outputs have that of the weight.
    if not has_skip and element_type(index, input_of(node, 0)) != kind.dtype:
        return None
    outputs = [name for name in node.output if name]
    total = node.output[_SUM_OUTPUT] if has_skip and len(node.output) > _SUM_OUTPUT else ""
    if input_of(node, 3) or not {*outputs} <= {kind.source, total} or node.output[0] != kind.source:
        return None
    epsilon = float(given.get("epsilon", _EPSILONS[operator_of(node)]))
    if not (math.isfinite(epsilon) and epsilon >= 0):
        return None
    return Norm(
        place=places[id(node)],
        source=input_of(node, 0),
        skip=input_of(node, 1) if has_skip else "",
        weight=weight,
        epsilon=epsilon,
        total=total,
    )
