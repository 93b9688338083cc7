"""Beam search through the Python API: against a search over all continuations, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_genai import LLM, SamplingParams, errors
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

VOCAB = 6
EOS = 0
LOGITS = np.random.default_rng(7).normal(0.0, 1.5, (VOCAB, VOCAB)).astype(np.float32)


def logprobs() -> np.ndarray:
    rows = LOGITS.astype(np.float64)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def best_sequences(last: int, length: int, *, length_penalty: float, count: int) -> list[tuple[tuple[int, ...], float]]:
    """The best of all sequences that end with EOS or have ``length`` tokens, with their scores."""
    table = logprobs()
    found: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(VOCAB), repeat=length):
        end = ids.index(EOS) + 1 if EOS in ids else length
        sequence = ids[:end]
        steps = zip((last, *sequence), sequence, strict=False)
        found[sequence] = sum(table[before, after] for before, after in steps) / end**length_penalty
    return sorted(found.items(), key=lambda item: -item[1])[:count]


@pytest.fixture(scope="module")
def llm(table_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(table_package(LOGITS), threads=1) as model:
        yield model


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("last", [1, 3])
def test_beams_as_wide_as_the_tree_find_the_best_of_all_sequences(llm: LLM, length_penalty: float, last: int) -> None:
    params = SamplingParams(
        max_new_tokens=3, num_beams=40, n=5, length_penalty=length_penalty, early_stopping="never", temperature=0
    )

    result = llm.generate([last], params)

    expected = best_sequences(last, 3, length_penalty=length_penalty, count=5)
    assert [choice.token_ids for choice in result.choices] == [ids for ids, _ in expected]
    assert [choice.score for choice in result.choices] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert [choice.index for choice in result.choices] == list(range(5))


def test_one_choice_has_no_score_without_beams(llm: LLM) -> None:
    assert llm.generate([1], SamplingParams(max_new_tokens=3, temperature=0)).choices[0].score is None


def test_package_defaults_count_only_where_beams_are_asked_for(checksum_package: Callable[..., Path]) -> None:
    defaults = {"num_beams": 4, "length_penalty": 3.0, "early_stopping": True}
    plain = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    with LLM(checksum_package("gqa"), threads=1) as model:
        score = model.generate([1, 2], SamplingParams(**plain, num_beams=2, length_penalty=1.0)).choices[0].score  # type: ignore[arg-type]
    with LLM(checksum_package("gqa", generation=defaults), threads=1) as model:
        greedy = model.generate([1, 2], SamplingParams(**plain))  # type: ignore[arg-type]
        beams = model.generate([1, 2], SamplingParams(**plain, num_beams=2))  # type: ignore[arg-type]

    assert greedy.choices[0].score is None
    assert list(greedy.token_ids) == checksum_generate([1, 2], 6)
    assert score is not None
    assert beams.choices[0].score == pytest.approx(score * 6 / 6**3, rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 65}, "num_beams is 65; allowed: a whole number in 1..64"),
        ({"num_beams": True}, "num_beams is True"),
        ({"num_beams": 2, "n": 3}, "n is 3 with num_beams=2"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature is 0.5 with num_beams=2"),
        ({"length_penalty": float("nan")}, "length_penalty is nan"),
        ({"early_stopping": "often"}, "early_stopping is 'often'"),
        ({"early_stopping": 1}, "early_stopping is 1"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        SamplingParams(**fields)

    assert words in str(caught.value)


def test_more_beams_than_sequences_may_run_is_refused(table_package: Callable[..., Path]) -> None:
    with (
        LLM(table_package(LOGITS), threads=1, max_num_seqs=3) as model,
        pytest.raises(errors.InvalidArgumentError, match="num_beams is 4; allowed: at most max_num_seqs"),
    ):
        model.generate([1], SamplingParams(max_new_tokens=2, num_beams=4))
