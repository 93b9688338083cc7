"""PagedAttention gives what onnxruntime's GroupQueryAttention gives, for one sequence with a past."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.kernels.operator import Array, Case, Node, Sequence, make_case, make_session
from tests.kernels.reference import fill_past

# In the order of its inputs; position_ids and attention_bias are not used. It has no norm weights on the CPU.
_INPUTS = [
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total",
    "cos_cache",
    "sin_cache",
    "",
    "",
    "head_sink",
]
_LENGTHS = {"seqlens_k", "total"}


def _group_query_attention(case: Case, past: tuple[Array, Array]) -> Array:
    """Output [1, new, width] of one sequence whose past keys and values are [past, kv_heads, dim]."""
    node, sequence = case.node, case.sequences[0]
    io = np.dtype(node.io)
    feeds: dict[str, Array] = {
        name: case.inputs[name][None] for name in ("query", "key", "value") if name in case.inputs
    }
    for name, rows in zip(("past_key", "past_value"), past, strict=True):
        feeds[name] = np.ascontiguousarray(rows.transpose(1, 0, 2)[None]).astype(io)
    feeds["seqlens_k"] = np.array([sequence.past + sequence.new - 1], np.int32)
    feeds["total"] = np.array(sequence.past + sequence.new, np.int32)
    if node.rotary:
        feeds["cos_cache"], feeds["sin_cache"] = case.inputs["cos_cache"], case.inputs["sin_cache"]
    if node.sink:
        feeds["head_sink"] = case.inputs["head_sink"]
    names = [name if name in feeds else "" for name in _INPUTS]
    while not names[-1]:
        names.pop()
    code = TensorProto.FLOAT16 if node.io == "float16" else TensorProto.FLOAT
    attributes = node.attributes()
    del attributes["is_causal"]
    graph = helper.make_graph(
        [helper.make_node("GroupQueryAttention", names, ["y", "k", "v"], domain="com.microsoft", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32 if name in _LENGTHS else code, None)
            for name in names
            if name
        ],
        [helper.make_tensor_value_info(name, code, None) for name in ("y", "k", "v")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], feeds)[0])


NODES = {
    "plain": Node(),
    "rotary": Node(rotary=64),
    "rotary_interleaved": Node(rotary=64, interleaved=True),
    "rotary_partial": Node(rotary=32),
    "packed": Node(rotary=64, packed=True, num_heads=9, kv_heads=3),
    "scale": Node(scale=0.07),
    "window": Node(window=10),
    "window_softcap": Node(window=33, softcap=1.5),
    "sink": Node(sink=True),
    "smooth": Node(smooth=True),
    "group_7": Node(num_heads=14, rotary=64),
    "head_dim_80": Node(head_dim=80, value_dim=80, rotary=80),
    "head_dim_128": Node(head_dim=128, value_dim=128, rotary=128, sink=True, window=50),
    "float16": Node(io="float16", kv="float16", rotary=64),
}


@pytest.mark.parametrize("sequence", [Sequence(past=0, new=37), Sequence(past=50, new=1), Sequence(past=300, new=20)])
@pytest.mark.parametrize("name", NODES)
def test_node_equals_group_query_attention(name: str, sequence: Sequence) -> None:
    node = NODES[name]
    case = make_case(node, [sequence])
    past = fill_past(case)[0]

    expected = _group_query_attention(case, past)

    # Both round scores of about sqrt(head_dim) terms; in float16 each rounds its own intermediate values.
    steps = 8 if node.io == "float16" else 32 * np.sqrt(node.head_dim)
    output = case.run(make_session(node.model()))
    atol = float(steps * np.finfo(node.io).eps)
    np.testing.assert_allclose(output, expected[0], rtol=0, atol=atol)
