"""What PagedAttention refuses: always an error that says what, value and limit, never a crash."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kernels.operator import Array, Node, Sequence, make_case, make_session
from tests.kernels.reference import fill_past

NODE = Node(rotary=64, mapped=True, sink=True, norm=True, kv="int8")
SEQUENCES = [Sequence(past=3, new=2), Sequence(past=20, new=1)]

# Input, what replaces it, part of the message.
BAD: list[tuple[str, Any, str]] = [
    ("past_seqlens", [-1, 20], "past_seqlens is -1; allowed: >= 0"),
    ("past_seqlens", [3, 2_000_000_000], "need more than the 3 columns of block_table (16 tokens each)"),
    ("past_seqlens", [3], "cumulative_sequence_length has shape [3]; expected [2]"),
    ("cumulative_sequence_length", [0, 2, 4], "goes from 0 to 4; expected from 0 to the number of tokens, 3"),
    ("cumulative_sequence_length", [1, 2, 3], "goes from 1 to 3"),
    ("cumulative_sequence_length", [0, 5, 3], "sequence 1: cumulative_sequence_length falls by 2"),
    ("cumulative_sequence_length", [0, 3], "cumulative_sequence_length has shape [2]; expected [3]"),
    ("block_table", [[-1, -1, -1], [1, 2, -1]], "sequence 0: block_table has block -1 at column 0; allowed: 0..5"),
    ("block_table", [[0, -1, -1], [1, 6, -1]], "sequence 1: block_table has block 6 at column 1; allowed: 0..5"),
    ("block_table", [0, 1], "block_table has shape [2]; expected [2,-1]"),
    ("slot_mapping", [0, 1, 96], "slot_mapping of token 2 is 96; allowed: -1..95"),
    ("slot_mapping", [0, -2, 1], "slot_mapping of token 1 is -2"),
    ("slot_mapping", [0, 1], "slot_mapping has shape [2]; expected [3]"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_indices_are_refused(name: str, value: Any, message: str) -> None:
    case = make_case(NODE, SEQUENCES)
    fill_past(case)
    case.inputs[name] = np.array(value, np.int32)

    with pytest.raises(Exception, match=re.escape(message)):
        case.run(make_session(NODE.model()))


def _cut(array: Array, axis: int) -> Array:
    return np.ascontiguousarray(array.take(range(array.shape[axis] - 1), axis=axis))


@pytest.mark.parametrize(
    ("name", "axis", "message"),
    [
        ("query", 1, "query has shape [3,255]; expected [3,256]"),
        ("key", 1, "key has shape [3,127]; expected [3,128]"),
        ("key", 0, "key has shape [2,128]"),
        ("value", 0, "value has shape [2,128]"),
        ("key_cache", 0, "value_cache has shape [6,2,16,64]; expected [5,2,16,-1]"),
        ("key_cache", 1, "key_cache has shape [6,1,64,16]; expected [-1,2,-1,-1]"),
        ("key_cache", 3, "the block size is 15; allowed: multiples of 16"),
        ("value_cache", 2, "value_cache has shape"),
        ("value_cache", 3, "value has shape [3,128]; expected [3,126]"),
        ("cos_cache", 0, "sin_cache has shape [21,32]; expected [20,32]"),
        ("head_sink", 0, "head_sink has shape [3]; expected [4]"),
        ("q_norm_weight", 0, "q_norm_weight has shape [63]; expected [64]"),
        ("k_norm_weight", 0, "k_norm_weight has shape [63]; expected [64]"),
        ("k_scale", 0, "k_scale has shape"),
        ("v_scale", 2, "v_scale has shape"),
    ],
)
def test_bad_shapes_are_refused(name: str, axis: int, message: str) -> None:
    case = make_case(NODE, SEQUENCES)
    tensors = case.blocks.tensors if name in case.blocks.tensors else case.inputs
    tensors[name] = _cut(tensors[name], axis)
    if name == "key_cache" and axis == 3:
        case.blocks.tensors["value_cache"] = _cut(case.blocks.tensors["value_cache"], 2)

    with pytest.raises(Exception, match=re.escape(message)):
        case.run(make_session(NODE.model()))


def test_positions_behind_the_rotary_tables_are_refused() -> None:
    case = make_case(NODE, SEQUENCES)
    for name in ("cos_cache", "sin_cache"):
        case.inputs[name] = _cut(case.inputs[name], 0)

    with pytest.raises(Exception, match=re.escape("position 20; allowed: below 20 (rows of cos_cache)")):
        case.run(make_session(NODE.model()))


def test_rotary_tables_that_are_too_wide_are_refused() -> None:
    case = make_case(NODE, SEQUENCES)
    for name in ("cos_cache", "sin_cache"):
        case.inputs[name] = np.ones((30, 33), np.float32)

    with pytest.raises(Exception, match="cos_cache has 33 columns; allowed: up to half of the head size, 32"):
        case.run(make_session(NODE.model()))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_heads": 0}, "attribute num_heads is 0; allowed: 1.."),
        ({"kv_num_heads": 3}, "num_heads = 4 is not a multiple of kv_num_heads = 3"),
        ({"kv_num_heads": -2}, "attribute kv_num_heads is -2"),
        ({"local_window_size": -5}, "attribute local_window_size is -5"),
        ({"softcap": -1.0}, "softcap = -1.0"),
        ({"scale": float("inf")}, "scale = inf"),
    ],
)
def test_bad_attributes_are_refused_at_load(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        make_session(Node().model(**attributes))


def test_int8_caches_without_scales_are_refused() -> None:
    node = Node(kv="int8", scales=False)
    case = make_case(node, SEQUENCES)

    with pytest.raises(Exception, match="k_scale is missing"):
        case.run(make_session(node.model()))


def test_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_GENAI_CPU_ISA", "mmx")

    with pytest.raises(Exception, match='ONNX_GENAI_CPU_ISA is "mmx"; this CPU and build have: plain'):
        make_session(Node().model())


def test_refused_call_leaves_the_session_usable() -> None:
    node = Node()
    case = make_case(node, SEQUENCES)
    fill_past(case)
    session = make_session(node.model(), threads=2)
    good = case.part([0, 1])
    case.inputs["past_seqlens"] = np.array([3, -4], np.int32)

    with pytest.raises(Exception, match="past_seqlens"):
        case.run(session)

    assert np.isfinite(good.run(session)).all()


def test_no_tokens_gives_an_empty_output() -> None:
    node = Node()
    case = make_case(node, [Sequence(past=3, new=0)])

    assert case.run(make_session(node.model())).shape == (0, node.num_heads * node.value_dim)


def test_no_sequences_gives_an_empty_output() -> None:
    node = Node()
    case = make_case(node, [])

    assert case.run(make_session(node.model())).shape == (0, node.num_heads * node.value_dim)
