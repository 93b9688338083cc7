"""Plain completions: every form of prompt, the old form of log-probabilities, scoring, streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import Limits, ModelSpec
from tests.models.checksum import checksum_next
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, chunks_of


def complete(server: RunningServer, prompt: object = "x", **fields: Any) -> dict[str, Any]:
    response = server.http.post("/v1/completions", json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = server.http.post("/v1/completions", json={"prompt": "x", **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.fixture(scope="module")
def checksum(checksum_package: Callable[..., Path]) -> Iterator[RunningServer]:
    folder = checksum_package("concat")
    with RunningServer([ModelSpec(name="checksum", load=lambda: AsyncLLM(folder, threads=1))]) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def table(table_package: Callable[..., Path]) -> Iterator[RunningServer]:
    folder = table_package(TABLE)
    with RunningServer([ModelSpec(name="table", load=lambda: AsyncLLM(folder, threads=1))]) as server:
        yield server.wait_ready()


TABLE = np.random.default_rng(3).normal(size=(12, 12)).astype(np.float32) * 2


def table_logprob(last: int, token: int) -> float:
    """By hand: log-softmax of the row of the last id."""
    row = TABLE[last].astype(np.float64)
    return float(row[token] - math.log(np.exp(row).sum()))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_prompt_that_is_too_long_is_not_repeated(
    hello: RunningServer, stream: bool, max_tokens: int, as_text: bool
) -> None:
    prompt: Any = "a b " * 10**6 if as_text else [100] * 10**6
    body = {"prompt": prompt, "echo": True, "stream": stream, "max_tokens": max_tokens}
    response = hello.http.post("/v1/completions", json=body, timeout=120)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_answers_of_a_request_are_bounded_as_prompts_times_n(hello: RunningServer) -> None:
    def ask(prompts: int, **fields: int) -> httpx.Response:
        body = {"prompt": ["Hi"] * prompts, "max_tokens": 1, **fields}
        return hello.http.post("/v1/completions", json=body, timeout=120)

    for fields, param in (({"n": 32}, "n"), ({"best_of": 32}, "best_of"), ({"n": 2, "best_of": 32}, "best_of")):
        response = ask(9, **fields)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, "invalid_value")
        assert f"{param} is 32 and prompt has 9 entries, which are 288 answers" in error["message"]
        assert "256" in error["message"]
    assert ask(9, n=32, stream=True).status_code == 400
    assert len(ask(8, n=32).json()["choices"]) == 256


def test_answer_has_the_form_of_a_text_completion(hello: RunningServer) -> None:
    answer = complete(hello, max_tokens=100)

    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "org/hello"
    assert answer["choices"] == [{"text": HELLO, "index": 0, "logprobs": None, "finish_reason": "stop"}]


def test_sixteen_tokens_are_made_when_nothing_is_said(hello: RunningServer) -> None:
    answer = complete(hello)

    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "count"), [("ab", 1), (["ab", "cd", "e"], 3), ([100, 101], 1), ([[100], [101, 102]], 2)]
)
def test_each_form_of_prompt_is_taken(hello: RunningServer, prompt: object, count: int) -> None:
    answer = complete(hello, prompt, n=2, max_tokens=100)

    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
    assert {choice["text"] for choice in answer["choices"]} == {HELLO}


def test_each_prompt_has_its_own_answer(checksum: RunningServer) -> None:
    prompts = [[5, 6, 7], [9], [11, 12, 13, 14]]

    answer = complete(checksum, prompts, max_tokens=5, temperature=0, logprobs=0, ignore_eos=True)

    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        history = list(prompt)
        for _ in range(5):
            history.append(checksum_next(history))
        made = checksum.http.post("/detokenize", json={"tokens": history[len(prompt) :]}).json()["prompt"]
        assert choice["text"].split() == [word for word in made.split() if not word.startswith("<")]
    assert answer["usage"]["prompt_tokens"] == 8
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    twice = complete(checksum, prompts, n=2, max_tokens=5, temperature=0, ignore_eos=True)["choices"]
    assert [choice["index"] for choice in twice] == list(range(6))
    assert [choice["text"] for choice in twice] == [each["text"] for each in answer["choices"] for _ in range(2)]


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], None, 5, {"a": 1}, [1.5], [True], ["a", 1], [[1], "a"]])
def test_an_empty_or_wrong_prompt_is_refused(hello: RunningServer, prompt: object) -> None:
    assert refused(hello, prompt=prompt)["param"].startswith("prompt")


@pytest.mark.parametrize("prompt", [[100_000], [-1], [2**40]])
def test_ids_that_the_model_has_not_are_refused(hello: RunningServer, prompt: object) -> None:
    assert refused(hello, prompt=prompt)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"suffix": "end", "stream": True}, "suffix"),
        ({"suffix": "end", "prompt": [5]}, "suffix"),
        ({"suffix": "end", "echo": True}, "echo"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 1000}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"stream": True, "echo": True, "logprobs": 1}, "stream"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": ["x"] * 300}, "prompt"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(
    hello: RunningServer, fields: dict[str, Any], param: str
) -> None:
    assert refused(hello, **fields)["param"] == param


def test_old_log_probabilities_are_four_lists_of_one_length(hello: RunningServer) -> None:
    choice = complete(hello, max_tokens=100, logprobs=2)["choices"][0]

    lists = choice["logprobs"]
    # The end token is one of them, and no text.
    assert len({len(lists[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    assert lists["tokens"][:5] == ["H", "ell", "o", " the", " "]
    assert lists["text_offset"][:5] == [0, 1, 4, 5, 9]
    assert lists["text_offset"][-1] == len(HELLO)
    assert all(len(top) == 2 for top in lists["top_logprobs"])
    for token, value, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert value <= 0
        assert top[token] == value == max(top.values()), "the answer is greedy"


def test_a_token_that_is_no_whole_character_shows_its_bytes(hello: RunningServer) -> None:
    tokens = complete(hello, max_tokens=100, logprobs=0)["choices"][0]["logprobs"]["tokens"]

    assert "bytes:\\xf0\\x9f" in tokens
    assert not any("\ufffd" in token for token in tokens)


def test_echo_puts_the_prompt_first(hello: RunningServer) -> None:
    assert complete(hello, "ab", echo=True, max_tokens=1)["choices"][0]["text"] == "abH"
    assert complete(hello, [100, 101], echo=True, max_tokens=1)["choices"][0]["text"] == "abH"


def test_scoring_a_prompt_gives_the_models_own_log_probabilities(table: RunningServer) -> None:
    ids = [3, 7, 4, 11, 5, 0, 9]

    answer = complete(table, ids, echo=True, max_tokens=0, logprobs=1)

    lists = answer["choices"][0]["logprobs"]
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    expected = [table_logprob(last, token) for last, token in itertools.pairwise(ids)]
    # float32 logits and log-softmax over 12 entries: a few units in the last place of numbers below 16.
    assert lists["token_logprobs"][1:] == pytest.approx(expected, abs=16 * 2**-20)
    for last, top in zip(ids, lists["top_logprobs"][1:], strict=False):
        assert max(top.values()) == pytest.approx(max(table_logprob(last, token) for token in range(12)), abs=2**-16)
    assert answer["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": 0,
        "total_tokens": len(ids),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["choices"][0]["finish_reason"] == "length"


def test_scoring_goes_on_into_the_answer(table: RunningServer) -> None:
    ids = [3, 7, 4]

    answer = complete(table, ids, echo=True, max_tokens=1, logprobs=0, temperature=0, ignore_eos=True)

    best = int(TABLE[4].argmax())
    lists = answer["choices"][0]["logprobs"]
    assert lists["token_logprobs"][-1] == pytest.approx(table_logprob(4, best), abs=2**-16)
    assert len(lists["tokens"]) == 4


def test_the_same_scores_come_twice(table: RunningServer) -> None:
    fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": 3}

    prompt = [3, 4, 5] * 20

    assert complete(table, prompt, **fields)["choices"] == complete(table, prompt, **fields)["choices"]
    complete(table, prompt, max_tokens=1)  # now its KV can be found again
    again = complete(table, prompt, **fields)
    assert again["choices"] == complete(table, prompt, **fields)["choices"]
    assert len(again["choices"][0]["logprobs"]["token_logprobs"]) == 60


def test_a_prompt_too_long_to_score_is_refused(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_scored_tokens=4)).wait_ready()

    assert refused(server, prompt="abcdefgh", echo=True, logprobs=1)["param"] == "prompt"


def test_best_of_returns_the_likeliest(table: RunningServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 3, "seed": 5, "ignore_eos": True, "logprobs": 0}
    many = complete(table, [3], n=8, **fields)["choices"]

    best = complete(table, [3], best_of=8, n=2, **fields)

    means = sorted((sum(each["logprobs"]["token_logprobs"]) for each in many), reverse=True)
    got = [sum(each["logprobs"]["token_logprobs"]) for each in best["choices"]]
    assert got == pytest.approx(means[:2])
    assert [each["index"] for each in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 24


def test_a_seed_repeats_an_answer_and_none_does_not(table: RunningServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.5}
    seeded = {complete(table, [3], seed=7, **fields)["choices"][0]["text"] for _ in range(3)}
    free = {complete(table, [3], **fields)["choices"][0]["text"] for _ in range(6)}

    assert len(seeded) == 1
    assert len(free) > 1


def test_choices_of_one_seed_differ(table: RunningServer) -> None:
    fields: dict[str, Any] = {"seed": 7, "max_tokens": 12, "ignore_eos": True, "temperature": 1.5}
    texts = [choice["text"] for choice in complete(table, [3], n=8, **fields)["choices"]]
    streamed = [""] * 8
    for chunk in stream(table, [3], n=8, **fields):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]

    assert len(set(texts)) > 4
    assert streamed == texts
    assert complete(table, [3], n=1, **fields)["choices"][0]["text"] == texts[0]


def stream(server: RunningServer, prompt: object = "x", **fields: Any) -> list[dict[str, Any]]:
    response = server.http.post("/v1/completions", json={"prompt": prompt, "stream": True, **fields})
    assert response.status_code == 200, response.text
    return chunks_of(response.text)


def test_a_stream_joins_to_the_answer_of_each_prompt_and_choice(checksum: RunningServer) -> None:
    fields: dict[str, Any] = {"prompt": [[5, 6], [9], [3, 4, 5]], "n": 2, "max_tokens": 6, "temperature": 0}
    whole = complete(checksum, **fields)

    chunks = stream(checksum, **fields, stream_options={"include_usage": True})

    texts = [""] * 6
    for chunk in chunks[:-1]:
        assert chunk["object"] == "text_completion"
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    ends = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["finish_reason"]]
    assert sorted(end["index"] for end in ends) == list(range(6))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_streamed_log_probabilities_join_to_those_of_the_whole_answer(hello: RunningServer) -> None:
    whole = complete(hello, max_tokens=100, logprobs=1)["choices"][0]["logprobs"]

    pieces = [chunk["choices"][0]["logprobs"] for chunk in stream(hello, max_tokens=100, logprobs=1)]

    for name in ("tokens", "text_offset", "token_logprobs"):
        assert [each for piece in pieces if piece for each in piece[name]] == pytest.approx(whole[name])


def test_a_streamed_echo_comes_first(hello: RunningServer) -> None:
    chunks = stream(hello, ["ab", "c"], echo=True, max_tokens=1)

    assert [chunk["choices"][0]["text"] for chunk in chunks[:2]] == ["ab", "c"]
    only = stream(hello, "ab", echo=True, max_tokens=0, stream_options={"include_usage": True})
    assert [chunk["choices"][0]["text"] for chunk in only[:-1]] == ["ab"]
    assert only[0]["choices"][0]["finish_reason"] == "length"
    assert only[-1]["usage"]["total_tokens"] == 2


def test_one_bad_prompt_of_several_ends_all(checksum: RunningServer) -> None:
    response = checksum.http.post(
        "/v1/completions", json={"prompt": [[5], [100_000]], "max_tokens": 500, "ignore_eos": True}
    )

    assert response.status_code == 400
    checksum.wait_idle()
