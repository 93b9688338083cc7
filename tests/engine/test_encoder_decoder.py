"""Encoder-decoders of text: every form of graph against NumPy, beams against all continuations, many at once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_genai import LLM, AsyncLLM, SamplingParams, errors
from tests.models.encoder_decoder import (
    EOS,
    PLACES,
    START,
    STYLES,
    VOCAB,
    Style,
    decoder_logits,
    greedy_answer,
    write_encoder_decoder,
)

pytestmark = pytest.mark.boundary

SOURCES = [[3], [5, 4], [6, 3, 5], [4, 4, 6, 2], [2, 6], [3, 5]]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0)


@pytest.fixture(scope="module", params=STYLES)
def style(request: pytest.FixtureRequest) -> Style:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(style: Style, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder_decoder(tmp_path_factory.mktemp("seq2seq") / style, style)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, threads=1) as model:
        yield model


def ended(style: Style, source: list[int]) -> list[int]:
    """Ids that the encoder has to see: packages of genai leave the end to the runtime, tokenizers of optimum do not."""
    return [*source, EOS]


def given(style: Style, source: list[int]) -> list[int]:
    """Ids to pass in, so that the encoder sees the end."""
    return source if style.startswith("state") or style == "cross_kv" else [*source, EOS]


def test_answers_are_those_of_numpy(style: Style, llm: LLM) -> None:
    for source in SOURCES:
        result = llm.generate(given(style, source), GREEDY)

        assert list(result.token_ids) == greedy_answer(style, ended(style, source), 12)
        assert result.usage.prompt_tokens == len(source) + 1


def test_requests_side_by_side_answer_as_alone(style: Style, llm: LLM) -> None:
    expected = [greedy_answer(style, ended(style, source), 12) for source in SOURCES * 3]
    results = llm.generate([given(style, source) for source in SOURCES * 3], GREEDY)
    assert [list(result.token_ids) for result in results] == expected

    # All handed over at once: how many share a step does not depend on how fast they are handed in.
    before = llm.metrics()["num_steps"]
    generations = llm._engine.submit_all([(given(style, source), GREEDY, None) for source in SOURCES * 3])
    assert [list(generation.result().token_ids) for generation in generations] == expected
    assert llm.metrics()["num_steps"] - before == max(len(answer) for answer in expected)


def logprobs(style: Style, source: list[int], tokens: tuple[int, ...]) -> np.ndarray:
    row = decoder_logits(style, source, [START, *tokens]).astype(np.float64)
    return row - np.log(np.exp(row - row.max()).sum()) - row.max()


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beams_as_wide_as_the_tree_find_the_best_of_all_sequences(
    style: Style, llm: LLM, length_penalty: float
) -> None:
    source, length = [6, 3, 5], 3
    rows = {
        before: logprobs(style, ended(style, source), before)
        for size in range(length)
        for before in itertools.product(range(VOCAB), repeat=size)
    }
    found: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(VOCAB), repeat=length):
        ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
        found[ids] = sum(rows[ids[:place]][token] for place, token in enumerate(ids)) / len(ids) ** length_penalty
    expected = sorted(found.items(), key=lambda item: -item[1])[:5]

    params = SamplingParams(
        max_new_tokens=length,
        num_beams=VOCAB**2,
        n=5,
        length_penalty=length_penalty,
        early_stopping="never",
        temperature=0,
    )
    result = llm.generate(given(style, source), params)

    assert [choice.token_ids for choice in result.choices] == [ids for ids, _ in expected]
    assert [choice.score for choice in result.choices] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_choices_of_one_request_share_its_source(style: Style, llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=8, temperature=2.0, n=4, seed=3, ignore_eos=True, logprobs=True)
    source = [5, 4]

    result = llm.generate(given(style, source), params)

    assert len({choice.token_ids for choice in result.choices}) > 1
    for choice in result.choices:
        assert choice.logprobs is not None
        for place, entry in enumerate(choice.logprobs):
            row = logprobs(style, ended(style, source), choice.token_ids[:place])
            assert entry.logprob == pytest.approx(row[choice.token_ids[place]], abs=1e-4)


def test_answer_that_lost_its_memory_goes_on(style: Style, llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True)
    source = [4, 4, 6, 2]
    tokens = [START]
    while len(tokens) < 21:
        tokens.append(int(decoder_logits(style, ended(style, source), tokens).argmax()))

    generation = llm.engine.submit(given(style, source), params)
    found: list[int] = []
    for chunk in generation:
        found.extend(chunk.token_ids)
        llm.engine.preempt(generation)

    assert found == tokens[1:]


def test_async_requests_run_side_by_side(style: Style, folder: Path) -> None:
    async def run() -> list[list[int]]:
        async with AsyncLLM(folder, threads=1) as model:
            results = await asyncio.gather(*(model.generate(given(style, source), GREEDY) for source in SOURCES))
            return [list(result.token_ids) for result in results]

    assert asyncio.run(run()) == [greedy_answer(style, ended(style, source), 12) for source in SOURCES]


def test_text_is_a_source(style: Style, llm: LLM) -> None:
    result = llm.generate("w5 w4", GREEDY)

    assert list(result.token_ids) == greedy_answer(style, [5, 4, EOS], 12)


def test_description_names_both_graphs(style: Style, llm: LLM, folder: Path) -> None:
    described: Any = llm.description

    assert described["decoder"].startswith("cross")
    assert Path(described["encoder"]["model"]).parent == folder
    assert llm.info()["decoder"] == "cross"
    assert llm.info()["has_encoder"] is True


def test_what_needs_a_growing_prompt_is_refused(style: Style, llm: LLM) -> None:
    for call in (lambda: llm.chat([{"role": "user", "content": "w3"}]), llm.session):
        with pytest.raises(errors.UnsupportedError, match="an encoder-decoder, which reads a whole source"):
            call()


def test_wrong_sources_are_refused(style: Style, llm: LLM) -> None:
    for source, words in (([], "empty"), ([3, VOCAB], f"token 1 has id {VOCAB}; allowed: 0..{VOCAB - 1}")):
        with pytest.raises(errors.InvalidArgumentError, match=words):
            llm.generate(np.asarray(source, dtype=np.int64), GREEDY)
    if style == "state_fixed":
        with pytest.raises(errors.ContextOverflowError, match=r"6 tokens with its end; encoder\.onnx takes 5"):
            llm.generate([3] * 5, GREEDY)


def test_source_is_no_longer_than_the_context(folder: Path, style: Style, llm: LLM) -> None:
    longest = 5 if style == "state_fixed" else PLACES
    source = given(style, [3] * (longest - 1))
    assert llm.generate(source, GREEDY).usage.prompt_tokens == longest
    before = llm.metrics()["num_steps"]

    with pytest.raises(errors.ContextOverflowError, match=rf"{longest + 1} tokens.*{longest}"):
        llm.generate([3, *source], GREEDY)
    with LLM(folder, threads=1, max_context=4) as short:
        assert short.generate(given(style, [3] * 3), SamplingParams(max_new_tokens=2)).usage.prompt_tokens == 4
        with pytest.raises(errors.ContextOverflowError, match=r"5 tokens.* 4 \(max_context\)"):
            short.generate(given(style, [3] * 4), GREEDY)

    assert llm.metrics()["num_steps"] == before


def test_source_of_a_model_without_a_limit_has_a_default_one(tmp_path: Path) -> None:
    folder = write_encoder_decoder(tmp_path, "merged")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    with LLM(folder, threads=1) as llm:
        assert llm.context_limit is None
        with pytest.raises(errors.ContextOverflowError, match=r"8193 tokens with its end; the limit is 8192 \(.*max_c"):
            llm.generate([3] * 8193, GREEDY)
        assert llm.metrics()["num_steps"] == 0
    with LLM(folder, threads=1, max_context=8193) as llm, pytest.raises(errors.BackendError):
        llm.generate([3] * 8193, GREEDY)  # has 32 places: what was allowed reaches the graph


@pytest.mark.parametrize("option", [{"decoder": "paged"}, {"kv_dtype": "float16"}, {"backend": "native"}])
def test_options_of_other_decoders_are_refused(option: dict[str, Any], style: Style, folder: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match="encoder-decoder runs"):
        LLM(folder, threads=1, **option)
