"""Steady decode steps with and without ``ONNX_GENAI_DECODE_MEMO``: the same tokens and the same log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, SamplingParams
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

VARIABLE = "ONNX_GENAI_DECODE_MEMO"
SMALL = {"vram_limit": "128KiB", "host_ram_limit": "256KiB"}


@pytest.mark.parametrize("memo", ["0", "1"])
@pytest.mark.parametrize("options", [{}, SMALL], ids=["plain", "swapping"])
def test_batch_that_joins_leaves_and_grows_follows_the_oracle(
    memo: str, options: dict[str, Any], checksum_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, memo)
    prompts = [[(7 * i + j) % 97 for j in range(3 + 5 * i)] for i in range(12)]
    counts = [20 + 9 * i for i in range(12)]

    with LLM(checksum_package("gqa", context_length=400), threads=1, decoder="paged", **options) as llm:
        params = [SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True) for count in counts]
        results = llm.generate(prompts, params)

    for prompt, count, result in zip(prompts, counts, results, strict=True):
        assert list(result.token_ids) == checksum_generate(prompt, count)


def test_log_probabilities_given_memo_or_none_are_the_same_bits(
    noise_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> list[Any]:
        found: list[Any] = []
        with LLM(noise_package(11), threads=1) as llm:
            for seed in range(4):
                params = SamplingParams(max_new_tokens=40, temperature=1.0, seed=seed, logprobs=True, ignore_eos=True)
                result = llm.generate([5, 6, 7 + seed], params)
                assert result.logprobs is not None
                found.append((result.token_ids, [entry.logprob for entry in result.logprobs]))
        return found

    monkeypatch.delenv(VARIABLE, raising=False)
    replayed = answers()
    monkeypatch.setenv(VARIABLE, "0")
    anew = answers()

    assert replayed == anew
    assert len({ids for ids, _ in replayed}) == 4
