"""PagedAttention in plain onnxruntime against float64 NumPy, for every feature, element type and instruction set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.operator import Array, Case, Node, Sequence, make_case, make_session
from tests.kernels.reference import expected_output, fill_past

MIXED = [Sequence(past=33, new=7), Sequence(past=0, new=21), Sequence(past=5, new=0), Sequence(past=300, new=1)]


def tolerance(node: Node, expected: Array) -> float:
    """Largest difference that rounding explains.

    Scores are sums of head_dim products of numbers of about 1; their absolute error, which softmax turns into a
    relative error of the weights, is a few float32 steps of the largest score, for which 32 stands. An output in
    float16 is rounded once more, and so are rotated keys in a narrow cache, where a tie may fall to either side: one
    step of one element of one key.
    """
    error = 32 * np.finfo(np.float32).eps * 4 * np.sqrt(node.head_dim)
    if node.io == "float16":
        error += np.finfo(np.float16).eps * np.abs(expected).max()
    steps = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8, "int8": 1 / 127}
    if node.rotary or node.norm:
        error += steps[node.kv] * 4 / np.sqrt(node.head_dim)
    return float(error)


def check(node: Node, sequences: list[Sequence], seed: int = 0, threads: int = 1) -> None:
    case = make_case(node, sequences, seed)
    expected = expected_output(case, fill_past(case))

    output = case.run(make_session(node.model(), threads))

    assert output.dtype == np.dtype(node.io)
    assert output.shape == expected.shape
    np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance(node, expected))


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "head_dim_40": {"head_dim": 40, "value_dim": 40},
    "head_dim_80": {"head_dim": 80, "value_dim": 80},
    "head_dim_128": {"head_dim": 128, "value_dim": 128},
    "head_dim_256": {"head_dim": 256, "value_dim": 256},
    "head_dim_1": {"head_dim": 1, "value_dim": 1},
    "value_dim_differs": {"head_dim": 24, "value_dim": 72},
    "value_dim_less_than_a_vector": {"head_dim": 33, "value_dim": 7},
    "group_1": {"num_heads": 3, "kv_heads": 3},
    "group_3": {"num_heads": 9, "kv_heads": 3},
    "group_7": {"num_heads": 14, "kv_heads": 2},
    "group_16": {"num_heads": 16, "kv_heads": 1},
    "group_64": {"num_heads": 64, "kv_heads": 1, "head_dim": 16, "value_dim": 16},
    "block_48": {"block_size": 48},
    "block_256": {"block_size": 256},
    "packed": {"packed": True},
    "packed_value_dim": {"packed": True, "value_dim": 24},
    "rank_3": {"rank": 3},
    "scale": {"scale": 0.05},
    "softcap": {"softcap": 2.0},
    "window_1": {"window": 1},
    "window_5": {"window": 5},
    "window_290": {"window": 290},
    "sink": {"sink": True},
    "smooth": {"smooth": True},
    "not_causal": {"causal": False},
    "not_causal_window": {"causal": False, "window": 9},
    "rotary": {"rotary": 64},
    "rotary_partial": {"rotary": 22},
    "rotary_interleaved": {"rotary": 64, "interleaved": True},
    "norm": {"norm": True},
    "norm_rotary": {"norm": True, "rotary": 32, "interleaved": True},
    "mapped": {"mapped": True},
    "float16": {"io": "float16", "rotary": 64, "norm": True, "sink": True},
    "float16_all": {"io": "float16", "kv": "float16", "head_dim": 40, "value_dim": 40, "rotary": 40},
    "float16_odd": {"io": "float16", "kv": "bfloat16", "head_dim": 37, "value_dim": 21, "packed": True},
    "kv_float16": {"kv": "float16"},
    "kv_bfloat16": {"kv": "bfloat16", "head_dim": 40, "value_dim": 40},
    "kv_int8": {"kv": "int8"},
    "kv_int8_softcap_window": {"kv": "int8", "softcap": 3.0, "window": 20, "head_dim": 40, "value_dim": 24},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_feature_given_mixed_sequences_equals_reference(isa: str, feature: str) -> None:
    check(Node(**FEATURES[feature]), MIXED)


@pytest.mark.parametrize("past", [0, 1, 15, 16, 17, 31, 32, 63, 64, 65, 255, 256, 257, 511, 512, 1100])
def test_decode_given_past_of_any_length_equals_reference(isa: str, past: int) -> None:
    check(Node(rotary=64), [Sequence(past=past, new=1)])


@pytest.mark.parametrize("new", [1, 2, 3, 5, 11, 12, 13, 16, 17, 25, 47, 48, 49, 70, 130])
def test_prefill_given_any_length_equals_reference(isa: str, new: int) -> None:
    check(Node(num_heads=3, kv_heads=1, head_dim=24, value_dim=24), [Sequence(past=0, new=new)])


def test_long_sequences_given_two_threads_equal_reference(isa: str) -> None:
    rows = [Sequence(past=1100, new=1), Sequence(past=2000, new=3), Sequence(past=1000, new=40)]

    check(Node(rotary=64, window=1500), rows, threads=2)


def _random_node(seed: int) -> tuple[Node, list[Sequence]]:
    random = np.random.default_rng(seed)

    def pick(*choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    head_dim = int(random.integers(1, 100))
    kv_heads = int(random.integers(1, 4))
    values: dict[str, Any] = {
        "head_dim": head_dim,
        "value_dim": int(random.integers(1, 100)),
        "kv_heads": kv_heads,
        "num_heads": kv_heads * int(random.integers(1, 9)),
        "block_size": pick(16, 16, 32, 80),
        "io": pick("float32", "float32", "float16"),
        "kv": pick("float32", "float16", "bfloat16", "int8"),
        "scale": pick(0.0, 0.1),
        "softcap": pick(0.0, 0.0, 5.0),
        "window": pick(-1, -1, 1, 17, 256, 400),
        "rotary": pick(0, 2 * int(random.integers(0, head_dim // 2 + 1))),
        "causal": bool(random.random() < 0.8),
    }
    for name in ("interleaved", "smooth", "sink", "norm", "packed", "mapped"):
        values[name] = bool(random.random() < 0.4)
    values["rank"] = pick(2, 3)
    sequences = [
        Sequence(past=int(pick(0, 1, *random.integers(0, 700, 3))), new=int(pick(0, 1, 1, *random.integers(0, 40, 2))))
        for _ in range(random.integers(1, 6))
    ]
    return Node(**values), sequences


@pytest.mark.parametrize("seed", range(40))
def test_random_features_equal_reference(isa: str, seed: int) -> None:
    node, sequences = _random_node(seed)

    check(node, sequences, seed, threads=1 + seed % 2)


def test_zero_keys_in_int8_read_back_as_zero(isa: str) -> None:
    node = Node(kv="int8")
    case = make_case(node, [Sequence(past=0, new=5)])
    case.inputs["key"][...] = 0
    case.inputs["value"][...] = 0

    output = case.run(make_session(node.model()))

    assert np.all(output == 0)
    block = case.inputs["block_table"][0, 0]
    assert np.all(case.blocks.tensors["k_scale"][block, :, :5] == 1)


def test_int8_given_known_rows_stores_rounded_to_even(isa: str) -> None:
    node = Node(num_heads=1, kv_heads=1, head_dim=4, value_dim=4, kv="int8")
    case = make_case(node, [Sequence(past=0, new=1)])
    case.inputs["key"][0] = [127.0, 0.5, 1.5, -2.5]
    case.inputs["value"][0] = [-254.0, 1.0, 3.0, 253.0]

    case.run(make_session(node.model()))

    block = case.inputs["block_table"][0, 0]
    assert case.blocks.tensors["key_cache"][block, 0, :, 0].tolist() == [127, 0, 2, -2]
    assert case.blocks.tensors["value_cache"][block, 0, 0].tolist() == [-127, 0, 2, 126]
    assert case.blocks.tensors["k_scale"][block, 0, 0] == 1.0
    assert case.blocks.tensors["v_scale"][block, 0, 0] == 2.0


def test_slot_minus_one_keeps_the_caches(isa: str) -> None:
    node = Node(mapped=True)
    case = make_case(node, [Sequence(past=20, new=1)])
    fill_past(case)
    case.inputs["slot_mapping"][...] = -1
    before = case.blocks.copy()

    case.run(make_session(node.model()))

    for name, tensor in case.blocks.tensors.items():
        np.testing.assert_array_equal(tensor, before.tensors[name])


def test_nan_in_a_key_reaches_the_output(isa: str) -> None:
    node = Node()
    case = make_case(node, [Sequence(past=20, new=1)])
    fill_past(case)
    case.inputs["query"][0, 3] = np.nan

    output = case.run(make_session(node.model()))

    assert np.isnan(output[0, : node.value_dim]).all()
    assert np.isfinite(output[0, node.value_dim :]).all()


@pytest.mark.parametrize(
    "node", [Node(rotary=64), Node(kv="int8", num_heads=14), Node(io="float16", kv="float16", window=100)]
)
def test_row_is_the_same_alone_and_in_company(isa: str, node: Node) -> None:
    sequences = [*MIXED, Sequence(past=900, new=2), Sequence(past=511, new=33), Sequence(past=2, new=3)]
    case = make_case(node, sequences)
    fill_past(case)
    alone = [case.part([i]) for i in range(len(sequences))]
    pairs = case.part([5, 0])

    together = case.run(make_session(node.model(), threads=2))

    session = make_session(node.model(), threads=1)
    np.testing.assert_array_equal(together, np.concatenate([part.run(session) for part in alone]))
    starts = case.inputs["cumulative_sequence_length"]
    order = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in (5, 0)])
    np.testing.assert_array_equal(together[order], pairs.run(session))


def _run_in_chunks(case: Case, chunk: int, threads: int) -> Array:
    """The rows of one sequence, `chunk` at a time."""
    session = make_session(case.node.model(), threads)
    outputs = []
    total = case.sequences[0].new
    for start in range(0, total, chunk):
        count = min(chunk, total - start)
        inputs = dict(case.inputs)
        for name in ("query", "key", "value"):
            inputs[name] = np.ascontiguousarray(inputs[name][start : start + count])
        inputs["cumulative_sequence_length"] = np.array([0, count], np.int32)
        inputs["past_seqlens"] = np.array([start], np.int32)
        outputs.append(replace(case, inputs=inputs, sequences=[Sequence(past=start, new=count)]).run(session))
    return np.concatenate(outputs)


@pytest.mark.parametrize(
    "node", [Node(rotary=64), Node(kv="int8", window=70), Node(kv="float16", num_heads=14, norm=True)]
)
def test_row_is_the_same_whatever_the_chunks(isa: str, node: Node) -> None:
    case = make_case(node, [Sequence(past=0, new=600)])
    whole = case.part([0]).run(make_session(node.model(), threads=2))

    for chunk, threads in ((1, 1), (7, 2), (64, 1), (255, 2)):
        np.testing.assert_array_equal(_run_in_chunks(case.part([0]), chunk, threads), whole)


def test_concurrent_runs_of_one_session_give_the_same_rows() -> None:
    node = Node(rotary=64, num_heads=9, kv_heads=3)
    case = make_case(node, [Sequence(past=900, new=1), Sequence(past=0, new=90), Sequence(past=300, new=5)])
    fill_past(case)
    session = make_session(node.model(), threads=3)
    expected = case.part([0, 1, 2]).run(session)
    copies = [case.part([0, 1, 2]) for _ in range(8)]

    with ThreadPoolExecutor(4) as executor:
        outputs = list(executor.map(lambda copy: copy.run(session), copies))

    for output in outputs:
        np.testing.assert_array_equal(output, expected)
