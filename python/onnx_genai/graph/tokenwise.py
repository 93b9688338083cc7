"""Whether an operator keeps tokens apart: :func:`why_mixed`.

Tokens of many sequences lie one after another in a paged graph. An operator is safe if the rows of a token in its
outputs depend on the rows of the same token in its inputs only. What is not known to be safe is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from onnx_genai.graph.index import attributes_of, operator_of
from onnx_genai.graph.probe import MIXED, UNKNOWN, WHOLE, Point, Probe, Value
from onnx_genai.graph.shapes import ELEMENTWISE, NORMS, PROJECTIONS, Shape, ShapeCase, reduced_axes

__all__ = ["why_mixed"]

_MICROSOFT = frozenset(
    {
        "BiasGelu",
        "DynamicQuantizeMatMul",
        "FastGelu",
        "FusedMatMul",
        "GatherBlockQuantized",
        "Gelu",
        "MatMulBnb4",
        "MatMulIntegerToFloat",
    }
    | {"MatMulNBits", "MoE", "QMoE", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization"}
    | {"SkipSimplifiedLayerNormalization", "DequantizeLinear", "QuantizeLinear"}
)


_OURS = ("genai.runtime", "MatMulNBits")
_FAR = 2**31 - 1
"""Ends from here on mean the end of the axis."""


@dataclass(slots=True)
class _Case:
    node: onnx.NodeProto
    attributes: dict[str, Any]
    inputs: Sequence[Value | None]
    """None for an input that is left out."""
    outputs: Sequence[Value | None]
    points: Sequence[Point]
    opset: int

    def axis(self, place: int) -> int:
        """Token axis of an input; negative if it has none or is left out."""
        value = self.inputs[place] if place < len(self.inputs) else None
        return -1 if value is None else value.axis

    def shape(self, place: int) -> Shape:
        value = self.inputs[place] if place < len(self.inputs) else None
        return value.shapes[0] if value is not None and value.shapes is not None else ()

    def number(self, name: str, default: int) -> int:
        return int(self.attributes.get(name, default))

    def along(self, axis: int, place: int = 0) -> bool:
        """Whether an axis, perhaps counted from the end, is the token axis of an input."""
        found = self.axis(place)
        return found >= 0 and axis % len(self.shape(place)) == found

    def shape_case(self) -> ShapeCase:
        return ShapeCase(
            op_type=self.node.op_type,
            attributes=self.attributes,
            shapes=[None if v is None or v.shapes is None else v.shapes[0] for v in self.inputs],
            contents=[None if v is None or v.contents is None else v.contents[0] for v in self.inputs],
            num_outputs=len(self.node.output),
        )


def why_mixed(
    node: onnx.NodeProto, inputs: Sequence[Value | None], outputs: Sequence[Value | None], probe: Probe
) -> str | None:
    """None if the operator keeps tokens apart; else why it may not, as the rest of "it ...".

    Args:
        node: Reads at least one value with a token axis.
        inputs: One value an input; None where it is left out.
        outputs: One value an output; None where it is left out.
        probe: What the values are of.
    """
    domain, op_type = operator_of(node)
    rule = _RULES.get(op_type)
    if rule is None:
        if op_type in ELEMENTWISE:
            rule = _elementwise
        elif op_type in NORMS:
            rule = _norm
        elif op_type in PROJECTIONS:
            rule = _projection
        elif op_type.startswith("Reduce"):
            rule = _reduce
    known = not domain or (domain == "com.microsoft" and op_type in _MICROSOFT) or (domain, op_type) == _OURS
    if rule is None or not known:
        return "is not known to work a token at a time"
    shapeless = next((why for why in map(_why_shapeless, inputs) if why is not None), None)
    if shapeless is not None:
        return f"has an input {shapeless}"
    groups = {value.group for value in inputs if value is not None and value.axis >= 0}
    if len(groups) > 1:
        return "joins inputs with different numbers of rows a token"
    mixed = rule(_Case(node, attributes_of(node), inputs, outputs, probe.points, probe.opset))
    if mixed is not None or not outputs:
        return mixed
    shapeless = _why_shapeless(outputs[0])
    if shapeless is not None:
        return f"has an output {shapeless}"
    return "drops the token axis" if outputs[0] is not None and outputs[0].axis == WHOLE else None


def _why_shapeless(value: Value | None) -> str | None:
    if value is None or value.axis not in (UNKNOWN, MIXED):
        return None
    return "of unknown shape" if value.axis == UNKNOWN else "whose shape depends on lengths in a way that is not known"


def _elementwise(case: _Case) -> str | None:
    ranks = [len(case.shape(place)) for place in range(len(case.inputs))]
    ends = {case.axis(place) - ranks[place] for place in range(len(ranks)) if case.axis(place) >= 0}
    if len(ends) != 1:
        return "joins inputs whose tokens lie along different axes"
    if case.node.op_type in ("QuantizeLinear", "DequantizeLinear") and any(case.axis(p) >= 0 for p in (1, 2)):
        return "takes its scales from the tokens"
    end = ends.pop()
    for place, rank in enumerate(ranks):
        if case.axis(place) < 0 and rank >= -end and case.shape(place)[end] != 1:
            return "has a fixed number of rows along the token axis"
    return None


def _norm(case: _Case) -> str | None:
    op_type, rank = case.node.op_type, len(case.shape(0))
    if any(case.axis(place) >= 0 for place in range(2 if op_type.startswith("Skip") else 1, len(case.inputs))):
        return "has weights that depend on tokens"
    if op_type.startswith("Skip"):
        first = case.along(rank - 1) or (case.axis(0) != case.axis(1)) or case.shape(0) != case.shape(1)
        return "normalises or adds along the token axis" if first else None
    if op_type == "CumSum":
        content = case.inputs[1].contents if len(case.inputs) > 1 and case.inputs[1] is not None else None
        if content is None:
            return "sums along an axis that is not known"
        axis = int(content[0].reshape(-1)[0]) % rank
        return "sums along the token axis" if case.along(axis) else None
    if case.opset < 13 and op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        axis = case.number("axis", 1) % rank
        return None if 0 <= case.axis(0) < axis else f"works along all axes from {axis} on"
    axis = case.number("axis", -1) % rank
    if op_type in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
        return f"works along axis {axis}, which is the token axis" if case.along(axis) else None
    return "normalises over the token axis" if case.axis(0) >= axis else None


def _projection(case: _Case) -> str | None:
    if case.number("transA", 0) or case.number("transBatchA", 0) or case.number("transBatchB", 0):
        return "is a transposed product"
    rank = len(case.shape(0))
    if case.axis(0) >= 0 and case.axis(1) >= 0:
        return "multiplies tokens with tokens"
    if any(case.axis(place) >= 0 for place in range(2, len(case.inputs))):
        return "has weights that depend on tokens"
    if case.axis(0) >= 0:
        if rank < 2 or case.along(rank - 1):
            return "sums over the token axis"
        wide = len(case.shape(1)) > 2 and case.node.op_type not in ("MatMulNBits", "MatMulBnb4")
        if not wide or case.along(rank - 2):
            return None
        end = case.axis(0) - rank
        other = case.shape(1)
        return "has a fixed number of rows along the token axis" if len(other) >= -end and other[end] != 1 else None
    if case.number("transB", 0) or not case.along(len(case.shape(1)) - 1, 1):
        return "sums over the token axis"
    return None


def _gemm(case: _Case) -> str | None:
    if case.number("transA", 0) or case.axis(0) != 0 or case.axis(1) >= 0 or case.axis(2) >= 0:
        return "multiplies tokens in a way that is not known to keep them apart"
    bias = case.shape(2)
    return "has a fixed number of rows along the token axis" if len(bias) == 2 and bias[0] != 1 else None


def _reduce(case: _Case) -> str | None:
    return "takes one value over all tokens" if case.axis(0) in reduced_axes(case.shape_case()) else None


def _gather(case: _Case) -> str | None:
    if case.axis(0) >= 0 and case.axis(1) >= 0:
        return "looks up tokens by tokens"
    if case.axis(0) >= 0 and case.along(case.number("axis", 0)):
        return "picks tokens"
    return None


def _gather_quantized(case: _Case) -> str | None:
    tokens = [place for place in range(len(case.inputs)) if case.axis(place) >= 0]
    return None if tokens == [1] else "looks up tokens"


def _elements(case: _Case) -> str | None:
    axis = case.number("axis", 0)
    if case.along(axis) or case.along(axis, 1):
        return "moves values along the token axis"
    axes = {case.axis(place) for place in range(len(case.inputs))}
    return None if len(axes) == 1 else "joins inputs whose tokens lie along different axes"


def _same_axis(case: _Case) -> str | None:
    """Operators with one axis attribute along which data is cut, joined or searched."""
    axis = case.number("axis", {"TopK": -1}.get(case.node.op_type, 0))
    if any(case.along(axis, place) for place in range(len(case.inputs))):
        return f"works along axis {axis}, which is the token axis"
    axes = {case.axis(place) for place in range(len(case.inputs))}
    if case.node.op_type == "Concat" and len(axes) != 1:
        return "joins inputs whose tokens lie along different axes"
    return None


def _one_input(case: _Case) -> str | None:
    """The shape rule has moved the axis; nothing else moves."""
    return None if case.axis(0) >= 0 else "has sizes that depend on tokens"


def _reshape(case: _Case) -> str | None:
    """Rows of a token stay together if as many elements lie before the token axis as before."""
    before, after = case.inputs[0], case.outputs[0]
    if before is None or after is None or before.shapes is None or after.shapes is None or before.axis < 0:
        return "has sizes that depend on tokens"
    if after.axis < 0:
        return "folds the token axis into another"
    if math.prod(before.shapes[0][: before.axis]) != math.prod(after.shapes[0][: after.axis]):
        return "folds the token axis into another"
    return None


def _slice(case: _Case) -> str | None:
    """Along the token axis only a slice that takes all tokens is safe."""
    before, after = case.inputs[0], case.outputs[0]
    if before is None or after is None or before.axis < 0 or (after.axis, after.group) != (before.axis, before.group):
        return "picks tokens"
    rank = len(case.shape(0))
    count = len(_list(case, 1, "starts", 0))
    axes = [axis % rank for axis in _list(case, 3, "axes", 0)] or list(range(count))
    if before.axis not in axes:
        return None
    at = axes.index(before.axis)
    for place, point in enumerate(case.points):
        start, end = _list(case, 1, "starts", place)[at], _list(case, 2, "ends", place)[at]
        steps = _list(case, 4, "steps", place)
        whole = start in (0, -point.new * before.group) and (end == point.new * before.group or end >= _FAR)
        if not whole or (steps and steps[at] != 1):
            return "picks tokens"
    return None


def _pad(case: _Case) -> str | None:
    """Along the token axis nothing may be added."""
    before = case.inputs[0]
    if before is None or before.axis < 0:
        return "has sizes that depend on tokens"
    rank = len(case.shape(0))
    for place in range(len(case.points)):
        pads = _list(case, 1, "pads", place)
        axes = [axis % rank for axis in _list(case, 3, "axes", place)] or list(range(rank))
        if len(pads) != 2 * len(axes):
            return "adds an unknown number of tokens"
        if before.axis in axes:
            at = axes.index(before.axis)
            if pads[at] or pads[len(axes) + at]:
                return "adds tokens"
    return None


def _list(case: _Case, place: int, name: str, point: int) -> list[int]:
    value = case.inputs[place] if place < len(case.inputs) else None
    if value is not None and value.contents is not None:
        return [int(item) for item in value.contents[point].reshape(-1)]
    return [int(item) for item in case.attributes.get(name, ())]


def _tile(case: _Case) -> str | None:
    before, after = case.inputs[0], case.outputs[0]
    same = before is not None and after is not None and (before.axis, before.group) == (after.axis, after.group)
    return None if same and case.axis(0) >= 0 else "repeats tokens"


def _expand(case: _Case) -> str | None:
    return None if case.axis(0) >= 0 else "has sizes that depend on tokens"


def _rotary(case: _Case) -> str | None:
    """Standard: x, cos, sin, positions; com.microsoft: x, positions, cos, sin."""
    microsoft = case.node.domain == "com.microsoft"
    tables, positions = ((2, 3), 1) if microsoft else ((1, 2), 3)
    rank = len(case.shape(0))
    if case.axis(0) != (2 if rank == 4 else 1):
        return "has its tokens along an unusual axis"
    by_position = microsoft or (len(case.inputs) > 3 and case.inputs[3] is not None)
    if by_position:
        right = case.axis(positions) == 1 and all(case.axis(place) < 0 for place in tables)
        return None if right else "counts positions from the start of its input"
    return None if all(case.axis(place) == 1 for place in tables) else "has tables that do not follow its tokens"


def _experts(case: _Case) -> str | None:
    rest = [place for place in range(2, len(case.inputs)) if case.axis(place) >= 0]
    return "has weights that depend on tokens" if rest or case.axis(1) < 0 else None


def _one_scale(case: _Case) -> str | None:
    return "takes one scale for all tokens"


_RULES: Mapping[str, Callable[[_Case], str | None]] = {
    "ArgMax": _same_axis,
    "ArgMin": _same_axis,
    "Concat": _same_axis,
    "DynamicQuantizeLinear": _one_scale,
    "DynamicQuantizeMatMul": _one_scale,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherBlockQuantized": _gather_quantized,
    "GatherElements": _elements,
    "Gemm": _gemm,
    "MoE": _experts,
    "Pad": _pad,
    "QMoE": _experts,
    "Reshape": _reshape,
    "RotaryEmbedding": _rotary,
    "ScatterElements": _elements,
    "Slice": _slice,
    "Split": _same_axis,
    "Squeeze": _one_input,
    "Tile": _tile,
    "TopK": _same_axis,
    "Transpose": _one_input,
    "Unsqueeze": _one_input,
}
