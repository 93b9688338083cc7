"""Rows of prompts in PagedAttention: computed with bfloat16 operands where the CPU multiplies them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.conftest import PROMPT_ISAS
from tests.kernels.operator import Array, Case, Node, Sequence, make_case, make_session
from tests.kernels.reference import absolute_bounds, expected_output, fill_past

CHUNK = [Sequence(past=0, new=1), Sequence(past=33, new=47), Sequence(past=0, new=21), Sequence(past=250, new=13)]


def _has_bf16() -> bool:
    """Whether marked rows come out otherwise than rows that are not: in bfloat16."""
    node = Node(prompts=True)
    case = make_case(node, [Sequence(past=0, new=9)])
    session = make_session(node.model())
    marked = case.run(session)
    case.inputs["prompt_rows"][...] = 0
    return not np.array_equal(marked, case.run(session))


needs_bf16 = pytest.mark.skipif(not _has_bf16(), reason="this CPU or build has no products of bfloat16")

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "head_dim_16": {"head_dim": 16, "value_dim": 16},
    "head_dim_32": {"head_dim": 32, "value_dim": 48},
    "head_dim_80": {"head_dim": 80, "value_dim": 80},
    "head_dim_96": {"head_dim": 96, "value_dim": 96},
    "head_dim_128": {"head_dim": 128, "value_dim": 128},
    "head_dim_256": {"head_dim": 256, "value_dim": 256},
    "value_dim_differs": {"head_dim": 192, "value_dim": 128},
    "not_whole_vectors": {"head_dim": 40, "value_dim": 40},
    "group_1": {"num_heads": 3, "kv_heads": 3},
    "group_3": {"num_heads": 9, "kv_heads": 3},
    "group_7": {"num_heads": 14, "kv_heads": 2},
    "group_64": {"num_heads": 64, "kv_heads": 1, "head_dim": 16, "value_dim": 16},
    "block_48": {"block_size": 48},
    "block_256": {"block_size": 256},
    "packed": {"packed": True},
    "rank_3": {"rank": 3},
    "scale": {"scale": 0.05},
    "softcap": {"softcap": 2.0},
    "window_1": {"window": 1},
    "window_5": {"window": 5},
    "window_40": {"window": 40},
    "window_240": {"window": 240},
    "sink": {"sink": True},
    "smooth": {"smooth": True},
    "not_causal": {"causal": False},
    "not_causal_window": {"causal": False, "window": 9},
    "rotary": {"rotary": 64},
    "norm_rotary": {"norm": True, "rotary": 32, "interleaved": True},
    "mapped": {"mapped": True},
    "float16": {"io": "float16", "rotary": 64, "norm": True, "sink": True},
    "float16_all": {"io": "float16", "kv": "float16", "head_dim": 80, "value_dim": 80, "rotary": 40},
    "kv_float16": {"kv": "float16"},
    "kv_bfloat16": {"kv": "bfloat16", "head_dim": 80, "value_dim": 80},
    "kv_int8": {"kv": "int8"},
    "kv_int8_softcap_window": {"kv": "int8", "softcap": 3.0, "window": 20, "head_dim": 80, "value_dim": 48},
}


def check(node: Node, sequences: list[Sequence], seed: int = 0, threads: int = 1) -> None:
    case = make_case(replace(node, prompts=True), sequences, seed)
    past = fill_past(case)
    expected = expected_output(case, past)
    bounds = prompt_bounds(case, past)

    output = case.run(make_session(case.node.model(), threads))

    assert output.dtype == np.dtype(node.io)
    assert output.shape == expected.shape
    error = np.abs(output - expected)
    assert (error <= bounds).all(), float((error / bounds).max())
    # Roundings do not add up like that: half of a percent of a typical value.
    assert np.sqrt((error**2).mean()) <= 2.0**-7 * np.sqrt((expected**2).mean())


def prompt_bounds(case: Case, past: list[tuple[Array, Array]]) -> Array:
    """Largest error of each output that the rounding of operands to bfloat16 explains.

    With u = 2^-9 each of query and key is off by u, so a score by d = 2 u sum |q k|, which cannot shrink under softcap,
    and a weight by e^2d - 1 of it, as numerator and sum may err to opposite sides. Weight and value are off by u each.
    A rotated key may be rounded to the other side in a narrow cache. The rest is float32 and an output in float16.
    """
    scores, values = absolute_bounds(case, past)
    step = 0.0
    if case.node.rotary or case.node.norm:
        step = {"float32": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}[case.node.kv]
    weights = np.expm1(2 * (2.0**-8 + step + 2.0**-16) * scores)
    return np.asarray((weights + 2.0**-8 + 2.0**-10) * values + 1e-5)


@pytest.mark.parametrize("feature", FEATURES)
def test_prompts_given_a_feature_equal_reference(feature: str) -> None:
    check(Node(**FEATURES[feature]), CHUNK)


@pytest.mark.parametrize("new", [1, 2, 3, 5, 10, 11, 15, 16, 17, 31, 32, 33, 64, 85, 86, 130])
def test_prompt_given_any_length_equals_reference(new: int) -> None:
    check(Node(num_heads=3, kv_heads=1), [Sequence(past=0, new=new)])


@pytest.mark.parametrize("past", [1, 15, 16, 31, 32, 33, 250, 255, 256, 257, 511, 600])
def test_chunk_given_any_past_equals_reference(past: int) -> None:
    check(Node(num_heads=3, kv_heads=1, rotary=64), [Sequence(past=past, new=7)])


def test_long_prompts_given_two_threads_equal_reference() -> None:
    check(Node(rotary=64, window=700), [Sequence(past=1000, new=30), Sequence(past=0, new=300)], threads=2)


def _random_node(seed: int) -> tuple[Node, list[Sequence]]:
    random = np.random.default_rng(seed)

    def pick(*choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    kv_heads = int(random.integers(1, 4))
    head_dim = 16 * int(random.integers(1, 9))
    values: dict[str, Any] = {
        "head_dim": head_dim,
        "value_dim": 16 * int(random.integers(1, 9)),
        "kv_heads": kv_heads,
        "num_heads": kv_heads * int(random.integers(1, 9)),
        "block_size": pick(16, 32, 80),
        "io": pick("float32", "float32", "float16"),
        "kv": pick("float32", "float16", "bfloat16", "int8"),
        "softcap": pick(0.0, 0.0, 5.0),
        "window": pick(-1, -1, 1, 17, 256, 400),
        "causal": bool(random.random() < 0.8),
    }
    if values["kv"] != "int8":
        values["rotary"] = pick(0, 2 * int(random.integers(0, head_dim // 2 + 1)))
        values["norm"] = bool(random.random() < 0.4)
    for name in ("interleaved", "smooth", "sink", "packed", "mapped"):
        values[name] = bool(random.random() < 0.4)
    sequences = [
        Sequence(past=int(pick(0, 1, *random.integers(0, 700, 3))), new=int(pick(0, 1, *random.integers(1, 60, 3))))
        for _ in range(random.integers(2, 6))
    ]
    return Node(**values), [*sequences, Sequence(past=0, new=5)]


@pytest.mark.parametrize("seed", range(24))
def test_random_features_equal_reference(seed: int) -> None:
    node, sequences = _random_node(seed)

    check(node, sequences, seed, threads=1 + seed % 2)


@needs_bf16
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_usual_heads_use_bfloat16(head_dim: int) -> None:
    node = Node(head_dim=head_dim, value_dim=head_dim, prompts=True)
    case = make_case(node, [Sequence(past=0, new=40)])
    marked = case.run(make_session(node.model()))
    case.inputs["prompt_rows"][...] = 0

    assert (marked != case.run(make_session(node.model()))).mean() > 0.9


@pytest.mark.parametrize("feature", ["plain", "head_dim_80", "group_7", "window_40", "kv_int8_softcap_window"])
def test_each_instruction_set_equals_reference_in_bfloat16(prompt_isa: str, feature: str) -> None:
    assert prompt_isa
    check(Node(**FEATURES[feature]), CHUNK)
    assert _has_bf16()


def test_switched_off_rows_of_prompts_are_as_others(prompt_isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompt_isa
    monkeypatch.setenv("ONNX_GENAI_PROMPT_BF16", "0")

    assert not _has_bf16()


def test_lower_instruction_sets_compute_rows_of_prompts_as_others(any_isa: str) -> None:
    assert _has_bf16() == (any_isa in PROMPT_ISAS)


@pytest.mark.parametrize("name", ["ONNX_GENAI_CPU_ISA", "ONNX_GENAI_PROMPT_BF16"])
def test_without_bf16_rows_of_prompts_are_as_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, {"ONNX_GENAI_CPU_ISA": "plain", "ONNX_GENAI_PROMPT_BF16": "0"}[name])
    node = Node(prompts=True)
    case = make_case(node, [Sequence(past=0, new=40)])
    marked = case.run(make_session(node.model()))

    np.testing.assert_array_equal(marked, _unmarked(case))


def _unmarked(case: Case, threads: int = 1) -> Array:
    """The same call by a node without prompt_rows."""
    node = replace(case.node, prompts=False)
    return replace(case, node=node).run(make_session(node.model(), threads))


NODES = [
    Node(rotary=64, prompts=True),
    Node(kv="int8", num_heads=14, window=70, prompts=True),
    Node(io="float16", kv="float16", head_dim=80, value_dim=80, num_heads=9, kv_heads=3, norm=True, prompts=True),
    Node(kv="bfloat16", num_heads=6, kv_heads=1, softcap=5.0, sink=True, prompts=True),
]
COMPANY = [
    Sequence(past=900, new=2),
    Sequence(past=511, new=33),
    Sequence(past=2, new=3),
    Sequence(past=0, new=90),
    Sequence(past=300, new=1),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("node", NODES)
def test_row_of_any_kind_has_the_same_bits_in_any_company(node: Node, threads: int) -> None:
    """A row of a prompt is what it is in a call of prompts alone, another row what it is without any marks."""
    case = make_case(node, COMPANY)
    fill_past(case)
    session = make_session(node.model(), threads)
    marked = case.part(list(range(len(COMPANY)))).run(make_session(node.model()))
    unmarked = _unmarked(case.part(list(range(len(COMPANY)))))
    random = np.random.default_rng(3)
    for rarity in (0.5, 0.1, 0.9):
        marks = (random.random(len(marked)) < rarity).astype(np.int32)
        marks[-1] = 0
        case.inputs["prompt_rows"][...] = marks
        output = case.part(list(range(len(COMPANY)))).run(session)
        np.testing.assert_array_equal(output, np.where(marks[:, None] != 0, marked, unmarked))
        for index, start in enumerate(case.inputs["cumulative_sequence_length"][:-1]):
            alone = case.part([index]).run(session)
            np.testing.assert_array_equal(alone, output[start : start + COMPANY[index].new])


def test_recomputed_sequence_has_rows_of_both_kinds() -> None:
    node = Node(rotary=64, num_heads=9, kv_heads=3, prompts=True)
    case = make_case(node, [Sequence(past=40, new=300)])
    fill_past(case)
    marked = case.part([0]).run(make_session(node.model()))
    unmarked = _unmarked(case.part([0]))
    for length in (1, 17, 216, 299):
        case.inputs["prompt_rows"][...] = np.arange(300) < length

        output = case.part([0]).run(make_session(node.model(), threads=2))

        np.testing.assert_array_equal(output, np.concatenate([marked[:length], unmarked[length:]]))


def _run_in_chunks(case: Case, chunk: int, threads: int) -> Array:
    """The rows of one sequence, `chunk` at a time."""
    session = make_session(case.node.model(), threads)
    outputs = []
    total = case.sequences[0].new
    for start in range(0, total, chunk):
        count = min(chunk, total - start)
        inputs = dict(case.inputs)
        for name in ("query", "key", "value", "prompt_rows"):
            inputs[name] = np.ascontiguousarray(inputs[name][start : start + count])
        inputs["cumulative_sequence_length"] = np.array([0, count], np.int32)
        inputs["past_seqlens"] = np.array([start], np.int32)
        outputs.append(replace(case, inputs=inputs, sequences=[Sequence(past=start, new=count)]).run(session))
    return np.concatenate(outputs)


@pytest.mark.parametrize("node", NODES)
def test_row_is_the_same_whatever_the_chunks(node: Node) -> None:
    case = make_case(node, [Sequence(past=0, new=600)])
    whole = case.part([0]).run(make_session(node.model(), threads=2))

    for chunk, threads in ((1, 1), (7, 2), (64, 1), (255, 2), (599, 1)):
        np.testing.assert_array_equal(_run_in_chunks(case.part([0]), chunk, threads), whole)


def test_nan_in_a_query_reaches_its_output_only() -> None:
    node = Node(prompts=True)
    case = make_case(node, [Sequence(past=20, new=5)])
    fill_past(case)
    case.inputs["query"][2, 3] = np.nan

    output = case.run(make_session(node.model()))

    assert np.isnan(output[2, : node.value_dim]).all()
    assert np.isfinite(output[2, node.value_dim :]).all()
    assert np.isfinite(output[[0, 1, 3, 4]]).all()


def test_scores_that_are_far_apart_do_not_overflow() -> None:
    node = Node(prompts=True, scale=1.0)
    case = make_case(node, [Sequence(past=0, new=40)])
    case.inputs["query"] *= 1000
    expected = expected_output(case, fill_past(case))

    output = case.run(make_session(node.model()))

    # One key has all the weight, where the first two are not near each other.
    assert np.isfinite(output).all()
    assert (np.abs(output - expected).max(axis=1) < 0.02).mean() > 0.7


def test_equal_values_come_out_as_they_are() -> None:
    node = Node(prompts=True)
    case = make_case(node, [Sequence(past=0, new=300)])
    case.inputs["value"][...] = 1.5

    output = case.run(make_session(node.model()))

    np.testing.assert_allclose(output, 1.5, rtol=2.0**-9)
