"""Element types of values, as far as a graph tells them: :func:`element_type`."""

from __future__ import annotations

from onnx_genai.graph.index import GraphIndex, attribute_int, input_of, operator_of
from onnx_genai.graph.paged import DOMAIN

__all__ = ["element_type"]

_MICROSOFT = "com.microsoft"
_LIKE_FIRST = ("Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_LIKE_EITHER = ("Add", "Div", "MatMul", "Mul", "Sub")
_TOLD_BY: dict[tuple[str, str], tuple[int, ...]] = {
    **{("", name): (0,) for name in _LIKE_FIRST},
    **{("", name): (1, 0) for name in _LIKE_EITHER},
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("", "DequantizeLinear"): (1,),
    (_MICROSOFT, "DequantizeLinear"): (1,),
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): (2, 1, 0),
    (_MICROSOFT, "GatherBlockQuantized"): (2,),
    (_MICROSOFT, "MatMulNBits"): (2, 0),
    (DOMAIN, "MatMulNBits"): (2, 0),
}
"""Inputs whose element type is that of the outputs."""
_OTHER_OUTPUTS = {(_MICROSOFT, "SkipSimplifiedLayerNormalization"): (1, 2)}
"""Outputs that are of another type."""
_SAID_BY = {("", "Cast"): "to", ("", "DequantizeLinear"): "output_dtype"}
"""Attributes that say the type of the output; 0 says nothing."""


def element_type(index: GraphIndex, name: str) -> int:
    """Element type of a value, as ONNX numbers it; 0 if the graph does not tell.

    What the graph states counts, else what the operators that make the value say. Cost: O(nodes) at most.
    """
    asked = [name]
    seen: set[str] = set()
    while asked:
        value = asked.pop()
        if value in seen:
            continue
        seen.add(value)
        stated = _stated(index, value)
        if stated:
            return stated
        node = index.producers.get(value)
        if node is None or list(node.output).index(value) in _OTHER_OUTPUTS.get(operator_of(node), ()):
            continue
        told_by = (input_of(node, position) for position in reversed(_TOLD_BY.get(operator_of(node), ())))
        asked += (other for other in told_by if other)
    return 0


def _stated(index: GraphIndex, name: str) -> int:
    tensor = index.constant(name)
    if tensor is not None:
        return tensor.data_type
    for values in (index.inputs, index.outputs, index.values):
        if name in values:
            return values[name].type.tensor_type.elem_type
    node = index.producers.get(name)
    attribute = "" if node is None else _SAID_BY.get(operator_of(node), "")
    return attribute_int(node, attribute, 0) if node is not None and attribute else 0
