"""Operators between attention: those that keep tokens apart are covered, all others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.paged_cases import BODY, largest_error, paged_and_original, problems_of, tolerance
from tests.graph.tiny import FLOAT
from tests.graph.tiny_attention import Tiny

# Nodes between the layers, from value a to value b, that keep tokens apart.
KEPT: dict[str, Callable[[str, str], list[onnx.NodeProto]]] = {
    "rows_of_heads": lambda a, b: [
        helper.make_node("Reshape", [a, "b.heads"], ["b.1"]),
        helper.make_node("LpNormalization", ["b.1"], ["b.2"], axis=-1, p=2),
        helper.make_node("Reshape", ["b.2", "b.joined"], [b]),
    ],
    "flat": lambda a, b: [
        helper.make_node("Reshape", [a, "b.flat"], ["b.1"]),
        helper.make_node("Gemm", ["b.1", "b.square"], ["b.2"]),
        helper.make_node("Shape", [a], ["b.shape"]),
        helper.make_node("Reshape", ["b.2", "b.shape"], [b]),
    ],
    "transposed": lambda a, b: [
        helper.make_node("Transpose", [a], ["b.1"], perm=[2, 0, 1]),
        helper.make_node("Softmax", ["b.1"], ["b.2"], axis=0),
        helper.make_node("Transpose", ["b.2"], [b], perm=[1, 2, 0]),
    ],
    "split": lambda a, b: [
        helper.make_node("Split", [a], ["b.1", "b.2"], axis=-1, num_outputs=2),
        helper.make_node("Neg", ["b.2"], ["b.3"]),
        helper.make_node("Concat", ["b.3", "b.1"], [b], axis=2),
    ],
    "slice_of_all": lambda a, b: [helper.make_node("Slice", [a, "b.zero", "b.far", "one"], [b])],
    "best_expert": lambda a, b: [
        helper.make_node("TopK", [a, "one"], ["b.1", "b.2"], axis=-1),
        helper.make_node("GatherElements", [a, "b.2"], ["b.3"], axis=2),
        helper.make_node("Mul", [a, "b.3"], [b]),
    ],
    "mean_of_a_token": lambda a, b: [
        helper.make_node("ReduceMean", [a, "minus_one"], ["b.1"]),
        helper.make_node("Sub", [a, "b.1"], [b]),
    ],
    "padded_width": lambda a, b: [
        helper.make_node("Pad", [a, "b.pads"], ["b.1"]),
        helper.make_node("Slice", ["b.1", "b.two", "b.far", "minus_one"], [b]),
    ],
    "padded_last_axis": lambda a, b: [
        helper.make_node("Pad", [a, "b.pad_two", "", "minus_one"], ["b.1"]),
        helper.make_node("Slice", ["b.1", "b.two", "b.far", "minus_one"], [b]),
    ],
    "row_for_each_token_of_zeros": lambda a, b: [
        helper.make_node("Shape", ["input_ids"], ["b.1"]),
        helper.make_node("ConstantOfShape", ["b.1"], ["b.2"]),
        helper.make_node("Unsqueeze", ["b.2", "minus_one"], ["b.3"]),
        helper.make_node("Add", [a, "b.3"], [b]),
    ],
}


@pytest.mark.parametrize("name", KEPT)
def test_operators_that_keep_tokens_apart_are_covered(name: str, tmp_path: Path) -> None:
    contract, original = paged_and_original(Tiny(body=KEPT[name], initializers=BODY), tmp_path)

    assert largest_error(contract, original) < tolerance()


# Nodes that mix tokens, and what is said of them.
MIXED: dict[str, tuple[Callable[[str, str], list[onnx.NodeProto]], str]] = {
    "cumsum": (lambda a, b: [helper.make_node("CumSum", [a, "one"], [b])], "CumSum between sums along the token axis"),
    "mean": (
        lambda a, b: [helper.make_node("ReduceMean", [a, "one"], ["m"]), helper.make_node("Add", [a, "m"], [b])],
        "ReduceMean m takes one value over all tokens",
    ),
    "softmax": (
        lambda a, b: [helper.make_node("Softmax", [a], [b], axis=1)],
        "Softmax between works along axis 1, which is the token axis",
    ),
    "padded": (
        lambda a, b: [
            helper.make_node("Pad", [a, "b.pad_two", "", "one"], ["m"]),
            helper.make_node("Slice", ["m", "b.two", "b.far", "one"], [b]),
        ],
        "Pad m adds tokens",
    ),
    "shift": (
        lambda a, b: [
            helper.make_node("Concat", [a, a], ["m"], axis=1),
            helper.make_node("Slice", ["m", "b.zero", "b.two", "one"], [b]),
        ],
        "Concat m works along axis 1, which is the token axis",
    ),
    "first": (
        lambda a, b: [
            helper.make_node("Gather", [a, "b.first"], ["m"], axis=1),
            helper.make_node("Add", [a, "m"], [b]),
        ],
        "Gather m picks tokens",
    ),
    "some": (
        lambda a, b: [
            helper.make_node("Slice", [a, "b.zero", "b.two", "one"], ["m"]),
            helper.make_node("ReduceSum", ["m", "one"], ["n"]),
            helper.make_node("Add", [a, "n"], [b]),
        ],
        "picks tokens",
    ),
    "last": (
        lambda a, b: [
            helper.make_node("Slice", [a, "minus_one", "b.far", "one"], ["m"]),
            helper.make_node("Add", [a, "m"], [b]),
        ],
        "Slice m picks tokens",
    ),
    "squeezed": (
        lambda a, b: [
            helper.make_node("Squeeze", [a, "one"], ["m"]),
            helper.make_node("Unsqueeze", ["m", "one"], ["n"]),
            helper.make_node("Add", [a, "n"], [b]),
        ],
        "Squeeze m drops the token axis",
    ),
    "products": (
        lambda a, b: [
            helper.make_node("Transpose", [a], ["m"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [a, "m"], ["n"]),
            helper.make_node("MatMul", ["n", a], [b]),
        ],
        "MatMul",
    ),
    "fold": (
        lambda a, b: [
            helper.make_node("Reshape", [a, "b.fold"], ["m"]),
            helper.make_node("ReduceSum", ["m", "minus_one"], ["n"]),
            helper.make_node("Mul", [a, a], [b]),
        ],
        "",
    ),
    "quantize": (
        lambda a, b: [
            helper.make_node("DynamicQuantizeLinear", [a], ["m", "n", "o"]),
            helper.make_node("DequantizeLinear", ["m", "n", "o"], [b]),
        ],
        "DynamicQuantizeLinear m takes one scale for all tokens",
    ),
    "unknown": (
        lambda a, b: [helper.make_node("Einsum", [a], [b], equation="abc->abc")],
        "Einsum between is not known to work a token at a time",
    ),
    "number_of_tokens": (
        lambda a, b: [
            helper.make_node("Shape", ["input_ids"], ["m"], start=1),
            helper.make_node("Cast", ["m"], ["n"], to=FLOAT),
            helper.make_node("Div", [a, "n"], [b]),
        ],
        "Div between computes with n, a length",
    ),
    "length": (
        lambda a, b: [
            helper.make_node("Cast", ["total"], ["n"], to=FLOAT),
            helper.make_node("Div", [a, "n"], [b]),
        ],
        "computes with n, a length",
    ),
    "places_in_the_step": (
        lambda a, b: [
            helper.make_node("Shape", ["input_ids"], ["m"], start=1),
            helper.make_node("Squeeze", ["m"], ["n"]),
            helper.make_node("Range", ["b.first", "n", "b.step"], ["o"]),
            helper.make_node("Cast", ["o"], ["p"], to=FLOAT),
            helper.make_node("Unsqueeze", ["p", "minus_one"], ["q"]),
            helper.make_node("Add", [a, "q"], [b]),
        ],
        "Range o makes a row for each token out of sizes",
    ),
}


@pytest.mark.parametrize("name", [name for name in MIXED if MIXED[name][1]])
def test_operators_that_mix_tokens_are_refused_by_name(name: str, tmp_path: Path) -> None:
    body, reason = MIXED[name]

    problems = problems_of(Tiny(body=body, initializers={**BODY, "b.step": np.array(1)}), tmp_path)

    assert reason in problems


def test_mixing_that_nothing_needs_does_not_matter(tmp_path: Path) -> None:
    contract, original = paged_and_original(Tiny(body=MIXED["fold"][0], initializers=BODY), tmp_path)

    assert largest_error(contract, original) < tolerance()
