"""Context limits that a graph has by itself: tables of positions that are baked into it."""

from __future__ import annotations

from onnx_genai.graph.index import GraphIndex, attribute_int, input_of
from onnx_genai.package import ContextLimit

__all__ = ["graph_limits"]

_PASS_THROUGH = ("Cast", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten")


def graph_limits(index: GraphIndex, position_ids: str | None, file_name: str) -> tuple[ContextLimit, ...]:
    """Returns the rows of the smallest table that is looked up by position, if there is one.

    Looked at: learned position embeddings, and cos/sin tables read by Gather or by rotary operators.
    """
    best: tuple[int, str] | None = None
    for node in index.graph.node:
        table = ""
        if node.op_type == "Gather" and position_ids is not None:
            if _comes_from(index, input_of(node, 1), position_ids) and attribute_int(node, "axis", 0) == 0:
                table = input_of(node, 0)
        elif node.op_type == "EmbedLayerNormalization":
            table = input_of(node, 3)
        elif node.op_type == "GroupQueryAttention" and attribute_int(node, "do_rotary", 0):
            table = input_of(node, 7)
        elif node.op_type == "RotaryEmbedding":
            microsoft = node.domain == "com.microsoft"
            place = 2 if microsoft else 1
            by_position = microsoft or bool(input_of(node, 3))
            table = input_of(node, place) if by_position else ""
        if not table:
            continue
        tensor = index.constant(table)
        if (
            tensor is not None
            and len(tensor.dims) == 2
            and tensor.dims[0] > 1
            and (not best or tensor.dims[0] < best[0])
        ):
            best = (int(tensor.dims[0]), table)
    if best is None:
        return ()
    return (ContextLimit(tokens=best[0], source=f"{file_name} table {best[1]}"),)


def _comes_from(index: GraphIndex, name: str, origin: str) -> bool:
    for _ in range(8):
        if name == origin:
            return True
        node = index.producers.get(name)
        if node is None or node.op_type not in _PASS_THROUGH:
            return False
        name = input_of(node, 0)
    return False
