"""Chat answers that are not streamed: their form, and every field of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from onnx_genai.tokenizer import Tokenizer
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, answers_meanwhile


def test_answer_has_the_form_of_a_chat_completion(hello: RunningServer) -> None:
    answer = hello.chat(model="hello").json()

    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert isinstance(answer["created"], int)
    assert answer["model"] == "org/hello", "the served name, not the alias"
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": HELLO, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None


def test_usage_sums_over_choices_and_counts_the_prompt_once(hello: RunningServer) -> None:
    one = hello.chat().json()["usage"]
    three = hello.chat(n=3).json()

    assert three["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["completion_tokens"]
    assert one["total_tokens"] == one["prompt_tokens"] + one["completion_tokens"]
    assert 0 <= one["prompt_tokens_details"]["cached_tokens"] <= one["prompt_tokens"]
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in three["choices"]} == {HELLO}


def test_model_is_optional_where_there_is_a_default(hello: RunningServer) -> None:
    assert hello.chat().json()["model"] == "org/hello"
    assert hello.chat(model="").json()["model"] == "org/hello"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_bounds_the_answer(hello: RunningServer, name: str) -> None:
    answer = hello.chat(**{name: 1}).json()

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_the_newer_name_of_two_bounds_wins(hello: RunningServer) -> None:
    assert hello.chat(max_tokens=1, max_completion_tokens=2).json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("stop", "content"), [("END", "Hello the world 😀 "), (["zz", "wor"], "Hello the "), (["xx"], HELLO), ([], HELLO)]
)
def test_stop_strings_are_cut_off(hello: RunningServer, stop: object, content: str) -> None:
    choice = hello.chat(stop=stop).json()["choices"][0]

    assert choice["message"]["content"] == content
    assert choice["finish_reason"] == "stop"


def test_logprobs_have_one_entry_a_token_whose_bytes_are_the_content(hello: RunningServer) -> None:
    answer = hello.chat(logprobs=True, top_logprobs=2, stop="END").json()

    entries = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode().startswith("Hello the world 😀 ")
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]
        assert entry["logprob"] <= 0


def test_logprobs_without_alternatives_have_empty_lists(hello: RunningServer) -> None:
    entries = hello.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]

    assert entries
    assert all(entry["top_logprobs"] == [] for entry in entries)


def test_a_forbidden_token_has_a_finite_log_probability(hello: RunningServer) -> None:
    text = hello.chat(logprobs=True, top_logprobs=20, logit_bias={"75": -100}, max_tokens=2).text

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    json.loads(text, parse_constant=refuse)


def test_logit_bias_and_sampling_fields_reach_the_engine(hello: RunningServer) -> None:
    token = hello.http.post("/tokenize", json={"prompt": "Z"}).json()["tokens"][0]

    answer = hello.chat(logit_bias={str(token): 100}, max_tokens=1, temperature=0, seed=-5, top_k=-1, top_p=1.0)

    assert answer.json()["choices"][0]["message"]["content"] == "Z"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["", "END"]}, "stop[0]"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1099511627776": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xyz"}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [{"type": "search"}]}, None),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ],
    ids=str,
)
def test_a_wrong_field_is_refused_by_name(hello: RunningServer, fields: dict[str, Any], param: str | None) -> None:
    response = hello.chat(**fields)

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"stream_options": None},
        {"stop": None},
        {"max_tokens": 10**9},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "unknown_field": [1]},
        {"functions": None, "function_call": None},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"modalities": ["text"]},
        {"tool_choice": "none"},
        {"temperature": 0},
        {"temperature": 1e-8},
        {"temperature": 1e-3},
        {"temperature": 2.0, "top_k": 1},
        {"top_k": 0},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"priority": 3, "cache_salt": "me", "timeout": 30},
    ],
    ids=str,
)
def test_harmless_fields_leave_the_answer_as_it_is(hello: RunningServer, fields: dict[str, Any]) -> None:
    response = hello.chat(**{"temperature": 0, **fields})

    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == HELLO


def test_content_in_parts_gives_the_same_prompt_as_one_text(hello: RunningServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": "ab"}], [{"role": "user", "content": parts}]

    prompts = [hello.http.post("/apply-template", json={"messages": each}).json()["prompt"] for each in messages]

    assert prompts[0] == prompts[1]


def test_a_conversation_with_tool_calls_is_taken(hello: RunningServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]

    assert hello.http.post("/v1/chat/completions", json={"messages": messages}).status_code == 200


def test_the_prompt_limit_is_told_with_numbers(hello: RunningServer) -> None:
    response = hello.chat("x" * 5000)

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length" in error["message"]
    assert "4096" in error["message"]
    tokens = hello.http.post("/tokenize", json={"messages": [{"role": "user", "content": "x" * 5000}]}).json()["count"]
    assert tokens > 5000
    assert str(tokens) in error["message"]


def test_a_model_without_template_says_what_to_use(serve: Any, checksum_package: Any) -> None:
    folder = checksum_package("concat")
    server = serve(ModelSpec(name="plain", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()

    response = server.chat()

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "no_chat_template"
    assert str(folder) not in response.text


REFUSING = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}{# " + "much text " * 500 + " #}"
)


@pytest.mark.parametrize("stream", [True, False])
def test_a_template_that_refuses_is_a_bad_request_with_its_words(
    serve: Any, scripted_package: Any, stream: bool
) -> None:
    folder = scripted_package("x", chat_template=REFUSING)
    server = serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]

    response = server.http.post("/v1/chat/completions", json={"messages": messages, "stream": stream})

    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert "System role not supported" in message
    assert len(message) < 500
    assert server.chat().status_code == 200


def test_health_answers_while_a_long_text_is_tokenised(hello: RunningServer) -> None:
    response = answers_meanwhile(hello, "/tokenize", {"prompt": "a b " * 300_000})

    assert response.json()["count"] == len(response.json()["tokens"]) >= 600_000


def test_health_answers_while_many_ids_become_text(hello: RunningServer) -> None:
    ids = hello.http.post("/tokenize", json={"prompt": "a b ", "add_special_tokens": False}).json()["tokens"]
    response = answers_meanwhile(hello, "/detokenize", {"tokens": ids * 100_000})

    assert response.json()["content"] == "a b " * 100_000


def test_a_text_that_no_window_could_hold_is_refused_before_it_is_tokenised(
    hello: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> list[int]:
        raise AssertionError("tokenised")

    monkeypatch.setattr(Tokenizer, "encode", never)
    text = "a b " * 1_000_000
    chat = hello.chat(text)
    plain = hello.http.post("/v1/completions", json={"prompt": text})

    for response in (chat, plain):
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "characters, which are at least" in error["message"]


def test_tokenize_and_detokenize_have_bounds_of_their_own(hello: RunningServer) -> None:
    text = hello.http.post("/tokenize", json={"content": "é" * (2 * 2**20 + 1)})
    ids = hello.http.post("/detokenize", json={"tokens": [5] * (2**20 + 1)})

    assert (text.status_code, text.json()["error"]["param"]) == (400, "content")
    assert "4194306" in text.json()["error"]["message"]
    assert "4194304" in text.json()["error"]["message"]
    assert (ids.status_code, ids.json()["error"]["param"]) == (400, "tokens")
    assert "1048577" in ids.json()["error"]["message"]
    assert "1048576" in ids.json()["error"]["message"]
