"""Grammars through the engine: a model that writes at random writes what the grammar says, whatever else happens."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from jsonschema import Draft202012Validator

from onnx_genai import LLM, Result, SamplingParams, errors, grammar
from onnx_genai.engine import RequestOptions
from tests.engine.processors import settled
from tests.grammar.test_spec import SCHEMAS
from tests.grammar.walk import object_schema
from tests.models.checksum import checksum_logits

pytestmark = [pytest.mark.boundary, pytest.mark.usefixtures("interface")]

PROMPT = "Say something."
RECORD = object_schema(
    name={"type": "string", "maxLength": 6}, kind={"enum": ["alpha", "beta"]}, ok={"type": "boolean"}
)


@pytest.fixture(scope="module")
def llm(noise_package: Callable[..., Path], interface: str) -> Iterator[LLM]:
    with LLM(noise_package(1), threads=1) as model:
        yield model
        assert model.info()["llguidance"] == interface


@pytest.fixture(scope="module")
def unforced(noise_package: Callable[..., Path], interface: str) -> Iterator[LLM]:
    """The same model, which writes nothing ahead."""
    with LLM(noise_package(1), threads=1) as model:
        model.engine._tokenize = None
        yield model


def sampled(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 200, "temperature": 1.0, "seed": seed, **more})


def greedy(count: int = 200, **more: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, **more)


def finished_texts(results: Sequence[Result]) -> list[str]:
    texts = [choice.text for result in results for choice in result.choices if choice.finish_reason == "stop"]
    assert all(choice.finish_reason in ("stop", "length") for result in results for choice in result.choices)
    return texts


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_every_finished_answer_validates(llm: LLM, schema: dict[str, Any]) -> None:
    spec = grammar.json_schema(schema)

    results = llm.generate([PROMPT] * 24, [sampled(seed) for seed in range(24)], grammar=spec)

    texts = finished_texts(results)
    assert len(texts) >= 12
    for text in texts:
        Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 5, 8, 13])
def test_answer_that_is_cut_ends_with_length(llm: LLM, max_new_tokens: int) -> None:
    spec = grammar.regex(r"\[(true|false)(,(true|false)){3,6}\]")

    results = llm.generate([PROMPT] * 8, [sampled(s, max_new_tokens=max_new_tokens) for s in range(8)], grammar=spec)

    for result in results:
        assert result.finish_reason == "length"
        assert len(result.token_ids) == max_new_tokens


def test_answer_that_is_complete_with_its_last_token_ends_with_stop(llm: LLM) -> None:
    whole = llm.generate(PROMPT, greedy(), grammar=grammar.choice(["alpha", "beta"]))

    exact = llm.generate(PROMPT, greedy(len(whole.token_ids)), grammar=grammar.choice(["alpha", "beta"]))
    short = llm.generate(PROMPT, greedy(len(whole.token_ids) - 1), grammar=grammar.choice(["alpha", "beta"]))

    assert whole.text in ("alpha", "beta")
    assert (exact.text, exact.finish_reason) == (whole.text, "stop")
    assert (short.text, short.finish_reason) == (whole.text[:-1], "length")


def test_many_choices_of_one_request(llm: LLM) -> None:
    result = llm.generate(PROMPT, sampled(3, n=16), grammar=grammar.json_schema(RECORD))

    texts = finished_texts([result])
    assert len(texts) == 16
    assert len(set(texts)) > 8
    for text in texts:
        Draft202012Validator(RECORD).validate(json.loads(text))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_written_ahead_change_nothing(llm: LLM, unforced: LLM, temperature: float) -> None:
    steps = []
    answers = []
    for model in (llm, unforced):
        before = model.metrics()["num_steps"]
        for seed in range(20):
            params = sampled(seed, temperature=temperature, repetition_penalty=1.1)
            result = model.generate(PROMPT, params, grammar=grammar.json_schema(RECORD))
            answers.append((model is llm, seed, json.loads(result.text), result.finish_reason))
        steps.append(model.metrics()["num_steps"] - before)
    assert steps[0] < steps[1]
    if temperature == 0:
        assert [a[2:] for a in answers[:20]] == [a[2:] for a in answers[20:]]


def test_stop_string_ends_inside_the_grammar(llm: LLM) -> None:
    result = llm.generate(PROMPT, greedy(stop=['"kind"']), grammar=grammar.json_schema(RECORD))

    assert result.finish_reason == "stop"
    assert result.choices[0].stop_reason == '"kind"'
    assert '"kind"' not in result.text
    assert result.text.startswith("{")


def test_logprobs_of_each_token_are_those_of_the_model(llm: LLM) -> None:
    result = llm.generate(PROMPT, greedy(logprobs=True, top_logprobs=2), grammar=grammar.json_schema(RECORD))

    assert result.logprobs is not None
    assert [each.token_id for each in result.logprobs] == list(result.token_ids)
    assert any(each.logprob < each.top[0].logprob for each in result.logprobs)  # the grammar chose, not the model
    json.loads(result.text)


def test_min_new_tokens_forbids_to_end_where_there_is_a_choice(llm: LLM) -> None:
    free = llm.generate([PROMPT] * 20, [sampled(s) for s in range(20)], grammar=grammar.regex("[a-z]+"))
    held = llm.generate(
        [PROMPT] * 20, [sampled(s, min_new_tokens=12) for s in range(20)], grammar=grammar.regex("[a-z]+")
    )
    ended = llm.generate(PROMPT, greedy(min_new_tokens=12), grammar=grammar.choice(["yes"]))

    assert min(len(each.token_ids) for each in free) < 12
    assert min(len(each.token_ids) for each in held) >= 12
    assert ended.text == "yes"


@pytest.mark.parametrize("skip", [True, False])
def test_ignore_eos_does_not_write_behind_the_end(llm: LLM, skip: bool) -> None:
    params = [sampled(s, ignore_eos=True, skip_special_tokens=skip) for s in range(20)]

    results = llm.generate([PROMPT] * 20, params, grammar=grammar.regex("[0-9]+"))

    for result in results:
        assert result.text.isdigit()
        assert result.finish_reason == "stop"


def test_requests_without_a_grammar_are_not_touched(llm: LLM) -> None:
    params = [greedy(20, ignore_eos=True), *(sampled(s, max_new_tokens=30) for s in range(10))]
    alone = [llm.generate(PROMPT, each).token_ids for each in params]

    streams = [llm.stream(PROMPT, sampled(s, max_new_tokens=60), grammar=grammar.json_schema(RECORD)) for s in range(6)]
    together = llm.generate([PROMPT] * len(params), params)

    assert [each.token_ids for each in together] == alone
    for stream in streams:
        text = "".join(chunk.text for chunk in stream)
        assert text.startswith("{")


def test_logits_wider_than_the_tokenizer(noise_package: Callable[..., Path]) -> None:
    with LLM(noise_package(2, padding=37), threads=1) as model:
        results = model.generate([PROMPT] * 16, [sampled(s) for s in range(16)], grammar=grammar.json_schema(RECORD))

        for text in finished_texts(results):
            Draft202012Validator(RECORD).validate(json.loads(text))


def test_each_of_several_eos_ids_ends_an_answer(noise_package: Callable[..., Path]) -> None:
    with LLM(noise_package(3, eos=(0, 2)), threads=1) as model:
        results = model.generate([PROMPT] * 60, [sampled(s) for s in range(60)], grammar=grammar.regex("[a-z]+"))

        assert {result.token_ids[-1] for result in results} == {0, 2}
        assert all(result.text.isalpha() and result.text.isascii() for result in results)


def test_grammar_that_becomes_too_complex_ends_its_request_alone(llm: LLM) -> None:
    hard = grammar.lark('start: a "!"\na: "x" | a a | a b\nb: a a | b b\n')
    never = sampled(1, max_new_tokens=3000, logit_bias={llm.tokenizer.encode("!")[0]: -100})
    stream = llm.stream(PROMPT, never, grammar=hard)
    texts = finished_texts(
        llm.generate([PROMPT] * 8, [sampled(s) for s in range(8)], grammar=grammar.json_schema(RECORD))
    )

    assert len(texts) == 8
    for text in texts:
        Draft202012Validator(RECORD).validate(json.loads(text))
    with pytest.raises(errors.InvalidArgumentError, match=r"the grammar cannot go on: .*items"):
        list(stream)
    assert settled(llm, lambda metrics: metrics["num_running"] == 0)


def test_grammar_goes_on_behind_what_the_prompt_ends_with(llm: LLM) -> None:
    spec = grammar.regex("[0-9]{2}[a-f]{2}")
    written = llm.tokenizer.encode("7")
    options = RequestOptions(grammar=spec, grammar_prefix=tuple(written))
    prompt = [*llm.tokenizer.encode(PROMPT), *written]

    for seed in range(4):
        result = llm.engine.submit(prompt, sampled(seed, n=2), options).result()
        for choice in result.choices:
            assert re.fullmatch("[0-9][a-f]{2}", choice.text)
    with pytest.raises(errors.InvalidArgumentError, match="does not allow the tokens"):
        llm.engine.submit(prompt, sampled(1), dataclasses.replace(options, grammar_prefix=(written[0],) * 3))
    with pytest.raises(errors.InvalidArgumentError, match="needs a grammar"):
        RequestOptions(grammar_prefix=(1,))


@pytest.mark.parametrize("count", [100, 300])
def test_grammar_with_too_many_ways_to_go_on_is_the_callers_mistake(llm: LLM, count: int) -> None:
    names = [f"p{number:03}" for number in range(count)]
    wide = grammar.json_schema({"type": "object", "properties": {name: {"type": "integer"} for name in names}})
    if count == 100:
        llm.generate(PROMPT, sampled(1, max_new_tokens=20), grammar=wide)
        return
    with pytest.raises(errors.InvalidArgumentError, match="fewer optional properties"):
        llm.generate(PROMPT, sampled(1), grammar=wide)
    assert settled(llm, lambda metrics: metrics["num_running"] == 0)


def test_vocabulary_that_cannot_write_the_grammar_is_told(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1) as model, pytest.raises(errors.InvalidArgumentError, match="no token"):
        model.generate([5, 6], greedy(), grammar=grammar.json_object())


def test_beams_are_refused(llm: LLM) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"grammar.*num_beams"):
        llm.generate(PROMPT, greedy(8, num_beams=2), grammar=grammar.json_object())


class Wild:
    """Gives every token a chance again, and most to the one that is least allowed."""

    def process(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> None:
        logits[:] = np.where(np.isneginf(logits), 5.0, logits)


class Stubborn:
    def sample(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> Sequence[int]:
        return [200] * len(logits)


class Best:
    def sample(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> Sequence[int]:
        return [int(each) for each in logits.argmax(axis=1)]


def test_processor_cannot_allow_what_the_grammar_forbids(llm: LLM) -> None:
    params = [sampled(s, logits_processors=[Wild()]) for s in range(8)]

    for text in finished_texts(llm.generate([PROMPT] * 8, params, grammar=grammar.json_schema(RECORD))):
        Draft202012Validator(RECORD).validate(json.loads(text))


def test_sampler_must_keep_to_the_grammar(llm: LLM) -> None:
    right = llm.generate(
        PROMPT, SamplingParams(max_new_tokens=200, sampler=Best()), grammar=grammar.json_schema(RECORD)
    )
    assert right.text == llm.generate(PROMPT, greedy(logprobs=True), grammar=grammar.json_schema(RECORD)).text

    with pytest.raises(errors.InvalidArgumentError, match=r"token 200 .*does not allow"):
        llm.generate(PROMPT, SamplingParams(max_new_tokens=200, sampler=Stubborn()), grammar=grammar.json_object())


def test_forced_tokens_that_the_grammar_forbids_are_an_error(llm: LLM) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="does not allow"):
        llm.generate(PROMPT, greedy(forced_tokens={1: 200}), grammar=grammar.json_object())


def test_many_threads_with_grammars_of_their_own(llm: LLM) -> None:
    """Each new literal is tokenized by Python, which the engine's thread asks for while others wait for it."""

    def run(seed: int) -> list[bool]:
        right = []
        for turn in range(6):
            options = [f"first {seed} of {turn}", f"second {turn} of {seed}"]
            result = llm.generate(PROMPT, sampled(seed), grammar=grammar.choice(options))
            right.append(result.text in options)
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(all(right) for right in pool.map(run, range(16)))


def test_random_preemption_and_aborts_leave_right_answers_and_nothing_else(llm: LLM) -> None:
    draw = random.Random(5)
    spec = grammar.json_schema(RECORD)
    expected = llm.generate([PROMPT] * 10, [sampled(s) for s in range(10)], grammar=spec)

    for _ in range(5):
        ids, options = llm.tokenizer.encode(PROMPT), RequestOptions(grammar=spec)
        generations = [llm.engine.submit(ids, sampled(s), options) for s in range(10)]
        streams = [iter(each) for each in generations]
        dropped = set(draw.sample(range(10), 3))
        texts = dict.fromkeys(range(10), "")
        open_ = list(range(10))
        while open_:
            s = draw.choice(open_)
            if s in dropped and draw.random() < 0.3:
                generations[s].close()
                open_.remove(s)
                continue
            llm.engine.preempt(generations[s])
            chunk = next(streams[s], None)
            if chunk is None:
                open_.remove(s)
                assert texts[s] == expected[s].text
            else:
                texts[s] += chunk.text
    assert settled(llm, lambda metrics: metrics["num_running"] == metrics["num_waiting"] == 0)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("limit", ["auto", "64KiB"])
def test_paged_memory_and_prefix_cache_change_nothing(
    checksum_package: Callable[..., Path], prefix_cache: bool, limit: str
) -> None:
    """The checksum model's tokens depend on the whole history, so that lost KV shows."""
    ids = [5, 6, 7] * 9
    expected = list(ids)
    for _ in range(40):
        expected.append(3 + int(np.argmax(checksum_logits(expected)[3:])))  # ids 0, 1 and 2 are no text
    with LLM(checksum_package("gqa"), threads=1, prefix_cache=prefix_cache, vram_limit=limit) as model:
        assert model.info()["decoder"] == "paged"

        results = model.generate([ids] * 12, greedy(40, ignore_eos=True), grammar=grammar.regex("( w[0-9]+){60}"))

        for result in results:
            assert list(result.token_ids) == expected[len(ids) :]


def test_engine_without_a_tokenizer_says_so(noise_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "none"
    shutil.copytree(noise_package(1), folder)
    (folder / "tokenizer.json").unlink()
    with LLM(folder, threads=1) as model, pytest.raises(errors.PackageError, match="tokenizer"):
        model.engine.submit([3, 4], greedy(), RequestOptions(grammar=grammar.json_object()))
