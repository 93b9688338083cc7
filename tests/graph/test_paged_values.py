"""Positions, rotary tables, sizes and masks are judged by what they are worth, whatever makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_genai.graph import DType, InputPort
from tests.graph.paged_cases import (
    BODY,
    CAUSAL,
    DIFFERS_IN_OLD,
    FORMS,
    IS_OLD,
    ROTARY,
    TOKENS,
    largest_error,
    logits_or_skip,
    nodes_of,
    paged_and_original,
    problems_of,
    tolerance,
)
from tests.graph.paged_reference import ort_runner
from tests.graph.tiny import FLOAT, INT32, INT64, value
from tests.graph.tiny_attention import CAPACITY, HEADS, HIDDEN, LAYERS, WIDTH, Tiny, causal_mask, mask_constants


def positions(*nodes: onnx.NodeProto, **more: Any) -> Tiny:
    return Tiny(positions=True, nodes=list(nodes), **more)


POSITIONS: dict[str, Tiny] = {
    "input": positions(
        helper.make_node("Identity", ["position_ids"], ["positions"]),
        ports=[value("position_ids", INT64, ("batch", "new"))],
    ),
    "flat_int32_input": positions(
        helper.make_node("Unsqueeze", ["position_ids", "b.zero"], ["positions"]),
        ports=[value("position_ids", INT32, ("new",))],
        initializers=BODY,
    ),
    "cache_position": positions(
        helper.make_node("Unsqueeze", ["cache_position", "b.zero"], ["positions"]),
        ports=[value("cache_position", INT64, ("new",))],
        initializers=BODY,
    ),
    "counted_from_the_mask": positions(
        helper.make_node("CumSum", ["attention_mask", "one"], ["p.1"]),
        helper.make_node("Sub", ["p.1", "one"], ["p.2"]),
        helper.make_node("Shape", ["input_ids"], ["p.3"], start=1),
        helper.make_node("Neg", ["p.3"], ["p.4"]),
        helper.make_node("Slice", ["p.2", "p.4", "b.far", "one"], ["positions"]),
        initializers=BODY,
    ),
    "past_and_range": positions(
        helper.make_node("Shape", ["past.1.key"], ["p.1"], start=2, end=3),
        helper.make_node("Squeeze", ["p.1"], ["p.2"]),
        helper.make_node("Shape", ["input_ids"], ["p.3"], start=1),
        helper.make_node("Squeeze", ["p.3"], ["p.4"]),
        helper.make_node("Add", ["p.2", "p.4"], ["p.5"]),
        helper.make_node("Range", ["p.2", "p.5", "b.step"], ["p.6"]),
        helper.make_node("Unsqueeze", ["p.6", "b.zero"], ["positions"]),
        initializers={**BODY, "b.step": np.array(1)},
    ),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_of_any_origin_become_one_input(name: str, tmp_path: Path) -> None:
    contract, original = paged_and_original(POSITIONS[name], tmp_path)

    assert contract.position_ids == InputPort(name="position_ids", dtype=DType.INT64, rank=2)
    assert largest_error(contract, original) < tolerance()


def turn(kind: str, cos: str = "cos", **attributes: Any) -> Callable[[str, str, int], list[onnx.NodeProto]]:
    """RotaryEmbedding of query and keys in the forms of ``rotary_body``."""

    def nodes(a: str, b: str, heads: int) -> list[onnx.NodeProto]:
        if kind == "microsoft":
            inputs = [a, "position_ids", cos, "sin"]
            return [helper.make_node("RotaryEmbedding", inputs, [b], domain="com.microsoft", **attributes)]
        if kind == "by_position":
            inputs = [a, cos, "sin", "position_ids"]
            return [helper.make_node("RotaryEmbedding", inputs, [b], num_heads=heads, **attributes)]
        return [
            helper.make_node("Gather", [cos, "position_ids"], [f"{b}.cos"]),
            helper.make_node("Gather", ["sin", "position_ids"], [f"{b}.sin"]),
            helper.make_node("RotaryEmbedding", [a, f"{b}.cos", f"{b}.sin"], [b], num_heads=heads, **attributes),
        ]

    return nodes


PLACES: dict[str, Any] = {"ports": [value("position_ids", INT64, ("batch", "new"))]}
HALF = {name: table[:, : WIDTH // 4] for name, table in ROTARY.items()}
TURNED: dict[str, Tiny] = {
    "looked_up": Tiny(form="attention", attributes=CAUSAL, turn=turn("looked_up"), initializers=ROTARY, **PLACES),
    "by_position": Tiny(form="static", attributes=CAUSAL, turn=turn("by_position"), initializers=ROTARY, **PLACES),
    "with_a_heads_axis": Tiny(
        form="attention_4d", attributes=CAUSAL, turn=turn("by_position"), initializers=ROTARY, **PLACES
    ),
    "interleaved": Tiny(
        form="static_4d", attributes=CAUSAL, turn=turn("looked_up", interleaved=1), initializers=ROTARY, **PLACES
    ),
    "in_part": Tiny(
        form="attention",
        attributes=CAUSAL,
        turn=turn("by_position", rotary_embedding_dim=WIDTH // 2),
        initializers=HALF,
        **PLACES,
    ),
    "microsoft": Tiny(turn=turn("microsoft"), initializers=ROTARY, **PLACES),
}


@pytest.mark.parametrize("name", TURNED)
def test_rotary_embedding_of_query_and_keys_moves_into_the_operator(name: str, tmp_path: Path) -> None:
    contract, original = paged_and_original(TURNED[name], tmp_path)

    assert {node.op_type for node in nodes_of(contract)} <= {
        "Gather",
        "MatMul",
        "Add",
        "PagedAttention",
        "Reshape",
        "Transpose",
    }
    assert contract.position_ids is None
    assert contract.context_limit == CAPACITY
    assert largest_error(contract, original) < tolerance()


@pytest.mark.parametrize("name", [*FORMS, *TURNED])
def test_paged_graph_runs_in_onnxruntime_with_our_operator(name: str, tmp_path: Path) -> None:
    core = pytest.importorskip("onnx_genai._core")
    if IS_OLD and name in DIFFERS_IN_OLD:
        pytest.skip("this onnxruntime computes the original in another way")
    contract, original = paged_and_original({**FORMS, **TURNED}[name], tmp_path)
    logits_or_skip(original, TOKENS[0])

    assert largest_error(contract, original, ort_runner(contract, Path(core.__file__))) < tolerance()


def test_rotary_embedding_by_other_tables_stays_where_it_is(tmp_path: Path) -> None:
    """Keys are turned by another table than the query, so no single table would do."""

    def nodes(a: str, b: str, heads: int) -> list[onnx.NodeProto]:
        return turn("by_position", "cos" if heads == HEADS else "other")(a, b, heads)

    tables = {**ROTARY, "other": ROTARY["cos"] / 2}
    tiny = Tiny(form="attention", attributes=CAUSAL, turn=nodes, initializers=tables, **PLACES)

    contract, original = paged_and_original(tiny, tmp_path)

    assert sum(node.op_type == "RotaryEmbedding" for node in nodes_of(contract)) == 2 * LAYERS
    assert largest_error(contract, original) < tolerance()


def rotary_body(kind: str) -> Callable[[str, str], list[onnx.NodeProto]]:
    """RotaryEmbedding of ONNX Runtime, or the standard one with its tables by position or looked up before."""

    def body(a: str, b: str) -> list[onnx.NodeProto]:
        if kind == "microsoft":
            inputs = [a, "position_ids", "cos", "sin"]
            return [helper.make_node("RotaryEmbedding", inputs, [b], domain="com.microsoft")]
        if kind == "by_position":
            return [helper.make_node("RotaryEmbedding", [a, "cos", "sin", "position_ids"], [b], num_heads=1)]
        return [
            helper.make_node("Gather", ["cos", "position_ids"], ["r.cos"]),
            helper.make_node("Gather", ["sin", "position_ids"], ["r.sin"]),
            helper.make_node("RotaryEmbedding", [a, "r.cos", "r.sin"], [b], num_heads=1),
        ]

    return body


@pytest.mark.parametrize("kind", ["microsoft", "by_position", "looked_up"])
def test_rotary_nodes_follow_the_positions(kind: str, tmp_path: Path) -> None:
    tiny = Tiny(
        form="attention",
        attributes=CAUSAL,
        body=rotary_body(kind),
        ports=[value("position_ids", INT64, ("batch", "new"))],
        initializers=ROTARY,
    )

    contract, original = paged_and_original(tiny, tmp_path)

    assert contract.position_ids is not None
    if kind == "microsoft":  # onnx's reference does not have it
        core = pytest.importorskip("onnx_genai._core")
        assert largest_error(contract, original, ort_runner(contract, Path(core.__file__))) < tolerance()
    else:
        assert largest_error(contract, original) < tolerance()


def test_sizes_made_of_the_mask_are_made_of_the_ids(tmp_path: Path) -> None:
    """Reshape to [1, total - past, width], as exporters of static shapes write it."""

    def body(a: str, b: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Shape", ["attention_mask"], ["s.1"], start=1),
            helper.make_node("Shape", ["past.0.key"], ["s.2"], start=2, end=3),
            helper.make_node("Sub", ["s.1", "s.2"], ["s.3"]),
            helper.make_node("Concat", ["one", "s.3", "b.width"], ["s.4"], axis=0),
            helper.make_node("Reshape", [a, "s.4"], [b]),
        ]

    tiny = Tiny(body=body, initializers={"b.width": np.array([HIDDEN])})

    contract, original = paged_and_original(tiny, tmp_path)

    assert largest_error(contract, original) < tolerance()


def test_rows_cut_out_of_the_mask_are_ones(tmp_path: Path) -> None:
    """Models that set the hidden state of padding to zero."""

    def body(a: str, b: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Shape", ["input_ids"], ["s.1"], start=1),
            helper.make_node("Neg", ["s.1"], ["s.2"]),
            helper.make_node("Slice", ["attention_mask", "s.2", "b.far", "one"], ["s.3"]),
            helper.make_node("Cast", ["s.3"], ["s.4"], to=FLOAT),
            helper.make_node("Unsqueeze", ["s.4", "minus_one"], ["s.5"]),
            helper.make_node("Mul", [a, "s.5"], [b]),
        ]

    contract, original = paged_and_original(Tiny(body=body, initializers=BODY), tmp_path)

    assert largest_error(contract, original) < tolerance()


UNCOVERED: dict[str, tuple[Tiny, str]] = {
    "attention_bias": (
        Tiny(inputs={10: "b"}, initializers={"b": np.zeros((1, 1, 1, 1), np.float32)}),
        "GroupQueryAttention attention.0 has the input attention_bias (b)",
    ),
    "quantized_kv": (
        Tiny(inputs={12: "s", 13: "s"}, initializers={"s": np.ones(1, np.float32)}),
        "GroupQueryAttention attention.0 has the input k_scale (s)",
    ),
    "window_sized_cache": (Tiny(attributes={"sliding_window_cache": 1}), "has sliding_window_cache=1"),
    "no_mask": (
        Tiny(form="attention"),
        "Attention attention.0 has the mask (none), which hides other keys than those after the query",
    ),
    "bias_in_the_mask": (
        Tiny(
            form="attention",
            nodes=[*causal_mask("float"), helper.make_node("Sub", ["mask", "tilt"], ["tilted"])],
            initializers={**mask_constants(), "tilt": np.array(0.5, np.float32)},
            inputs={3: "tilted"},
        ),
        "has the mask tilted, which adds a bias to the scores",
    ),
    "mask_of_heads": (
        Tiny(
            form="attention",
            nodes=[*causal_mask("bool"), helper.make_node("And", ["mask", "some"], ["each"])],
            initializers={**mask_constants(), "some": np.array([1, 1, 0, 1], bool).reshape(1, HEADS, 1, 1)},
            inputs={3: "each"},
        ),
        "has the mask each, which differs between heads",
    ),
    "mask_of_text": (
        Tiny(
            form="attention",
            nodes=[
                *causal_mask("bool"),
                helper.make_node("Equal", ["input_ids", "m.0"], ["t.1"]),
                helper.make_node("Cast", ["t.1"], ["t.2"], to=INT32),
                helper.make_node("ReduceMax", ["t.2"], ["t.3"], keepdims=0),
                helper.make_node("Cast", ["t.3"], ["t.4"], to=onnx.TensorProto.BOOL),
                helper.make_node("Or", ["mask", "t.4"], ["text"]),
            ],
            initializers=mask_constants(),
            inputs={3: "text"},
        ),
        "takes its mask from text, which cannot be followed to lengths",
    ),
    "two_directions": (Tiny(form="mha"), "MultiHeadAttention attention.0 has the mask (none), which hides other keys"),
    "wrong_lengths": (
        Tiny(inputs={5: "counts"}),
        "GroupQueryAttention attention.0 takes seqlens_k from counts, which is 7 where 6 is expected",
    ),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_attention_that_the_operator_does_not_cover_is_refused_by_name(name: str, tmp_path: Path) -> None:
    tiny, reason = UNCOVERED[name]

    assert reason in problems_of(tiny, tmp_path)
