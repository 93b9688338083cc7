"""Every cache style, alone and in ragged batches, against the oracle of the checksum model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onnx_genai import LLM, SamplingParams
from tests.models.checksum import CHECKSUM_STYLES, checksum_generate

pytestmark = pytest.mark.boundary

STYLES = sorted(CHECKSUM_STYLES)
NEW_TOKENS = 20
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
PROMPTS = [
    [(7 * row + 3 * column) % 97 for column in range(length)] for row, length in enumerate((1, 2, 3, 7, 12, 16, 25, 40))
]


@pytest.fixture(scope="module", params=STYLES)
def llm(request: pytest.FixtureRequest, checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package(request.param), threads=1) as model:
        yield model


def test_each_prompt_alone_gives_the_oracle_ids(llm: LLM) -> None:
    for prompt in PROMPTS:
        assert list(llm.generate(prompt, GREEDY).token_ids) == checksum_generate(prompt, NEW_TOKENS)


def test_ragged_batch_gives_the_oracle_ids(llm: LLM) -> None:
    results = llm.generate(PROMPTS, GREEDY)

    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == checksum_generate(prompt, NEW_TOKENS)
        assert result.finish_reason == "length"


def test_ragged_batch_with_own_lengths_gives_the_oracle_ids(llm: LLM) -> None:
    params = [SamplingParams(max_new_tokens=1 + 5 * (row % 4), temperature=0, ignore_eos=True) for row in range(8)]

    results = llm.generate(PROMPTS, params)

    for prompt, own, result in zip(PROMPTS, params, results, strict=True):
        assert own.max_new_tokens is not None
        assert list(result.token_ids) == checksum_generate(prompt, own.max_new_tokens)


def test_seeded_sampling_in_a_batch_equals_each_alone(llm: LLM) -> None:
    params = [
        SamplingParams(max_new_tokens=NEW_TOKENS, temperature=1.5, top_k=20, top_p=0.95, seed=row, ignore_eos=True)
        for row in range(8)
    ]

    together = llm.generate(PROMPTS, params)
    alone = [llm.generate(prompt, own) for prompt, own in zip(PROMPTS, params, strict=True)]

    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert any(
        list(result.token_ids) != checksum_generate(prompt, NEW_TOKENS)
        for prompt, result in zip(PROMPTS, together, strict=True)
    )


def test_choices_of_one_prompt_each_continue_it(llm: LLM) -> None:
    prompt = PROMPTS[4]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, n=5)

    result = llm.generate(prompt, params)

    assert [choice.index for choice in result.choices] == list(range(5))
    assert {choice.token_ids for choice in result.choices} == {tuple(checksum_generate(prompt, NEW_TOKENS))}
    assert result.usage.completion_tokens == 5 * NEW_TOKENS


def test_repeated_generation_starts_from_a_clean_cache(llm: LLM) -> None:
    for _ in range(3):
        assert list(llm.generate(PROMPTS[6], GREEDY).token_ids) == checksum_generate(PROMPTS[6], NEW_TOKENS)


@pytest.mark.parametrize("chunk", [1, 5, 7, 16, 64])
@pytest.mark.parametrize("style", STYLES)
def test_chunked_prefill_mixed_with_decode_gives_the_oracle_ids(
    style: str, chunk: int, checksum_package: Callable[..., Path]
) -> None:
    with LLM(checksum_package(style), threads=1, max_num_seqs=3, max_num_batched_tokens=chunk) as model:
        results = model.generate(PROMPTS, GREEDY)

    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == checksum_generate(prompt, NEW_TOKENS)


@pytest.mark.parametrize("style", ["concat", "gqa", "gqa_fp16", "packed", "attention"])
def test_long_sequences_grow_the_cache_and_stay_right(style: str, checksum_package: Callable[..., Path]) -> None:
    prompts = [[(row + column) % 97 for column in range(length)] for row, length in enumerate((250, 30, 600))]
    params = SamplingParams(max_new_tokens=300, temperature=0, ignore_eos=True)

    with LLM(checksum_package(style), threads=1) as model:
        results = model.generate(prompts, params)

    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == checksum_generate(prompt, 300)


@pytest.mark.parametrize("style", ["static", "static_plain"])
def test_static_cache_ends_at_its_capacity(style: str, checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package(style), threads=1) as model:
        result = model.generate([5] * 50, SamplingParams(temperature=0, ignore_eos=True))

        assert model.context_limit == CHECKSUM_STYLES[style].capacity
        assert len(result.token_ids) == CHECKSUM_STYLES[style].capacity - 50
        assert list(result.token_ids) == checksum_generate([5] * 50, len(result.token_ids))
        assert result.finish_reason == "length"
