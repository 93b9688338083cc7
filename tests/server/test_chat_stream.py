"""Streamed chat answers: order and form of the chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.server import ModelSpec
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, SlowLLM, chunks_of


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def test_headers_are_those_of_an_event_stream(hello: RunningServer) -> None:
    response = hello.chat(stream=True)

    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    assert "content-encoding" not in response.headers


def test_all_chunks_share_id_time_and_model(hello: RunningServer) -> None:
    chunks = hello.chat_chunks()

    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


def test_the_role_comes_first_and_once_and_the_end_last_and_once(hello: RunningServer) -> None:
    choices = [chunk["choices"][0] for chunk in hello.chat_chunks()]

    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in choice["delta"] for choice in choices[1:])
    assert choices[-1]["delta"] == {}
    assert choices[-1]["finish_reason"] == "stop"
    assert all(choice["finish_reason"] is None for choice in choices[:-1])


def test_pieces_join_to_the_text_without_broken_characters(hello: RunningServer) -> None:
    chunks = hello.chat_chunks()

    assert text_of(chunks) == HELLO
    assert all("\ufffd" not in (chunk["choices"][0]["delta"].get("content") or "") for chunk in chunks)


@pytest.mark.parametrize("stop", ["END", "world", "d ", "Hello"])
def test_nothing_of_a_stop_string_is_shown(hello: RunningServer, stop: str) -> None:
    chunks = hello.chat_chunks(stop=stop)

    assert text_of(chunks) == HELLO[: HELLO.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(hello: RunningServer) -> None:
    assert text_of(hello.chat_chunks(stop="ENDLESS")) == HELLO


def test_choices_are_told_apart_up_to_their_ends(hello: RunningServer) -> None:
    chunks = hello.chat_chunks(n=3)

    assert [text_of(chunks, index) for index in range(3)] == [HELLO] * 3
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(hello: RunningServer) -> None:
    chunks = hello.chat_chunks(stream_options={"include_usage": True})

    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == hello.chat().json()["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
def test_usage_is_absent_when_not_asked_for(hello: RunningServer, options: dict[str, Any]) -> None:
    assert not any("usage" in chunk for chunk in hello.chat_chunks(**options))


def test_logprobs_of_the_chunks_join_to_those_of_the_whole_answer(hello: RunningServer) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "stop": "ENDLESS"}
    whole = hello.chat(**fields).json()["choices"][0]["logprobs"]["content"]

    pieces = [
        entry
        for chunk in hello.chat_chunks(**fields)
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]

    assert pieces == whole
    assert len(pieces) == hello.chat(**fields).json()["usage"]["completion_tokens"]


def test_a_request_that_fails_at_once_has_the_status_of_its_error(hello: RunningServer) -> None:
    assert hello.chat(stream=True, model="nobody").status_code == 404
    assert hello.chat("x" * 5000, stream=True).status_code == 400
    assert hello.chat(stream=True, logit_bias={"100000": 1}).status_code == 400
    hello.wait_idle()


class _VerySlow(SlowLLM):
    step_seconds = 0.4


@pytest.fixture
def very_slow(scripted_package: Callable[..., Path]) -> ModelSpec:
    folder = scripted_package(HELLO)
    return ModelSpec(name="slow", load=lambda: _VerySlow(folder, threads=1))


def test_silence_is_filled_with_comments_before_the_first_token_and_after(
    serve: Callable[..., RunningServer], very_slow: ModelSpec
) -> None:
    server = serve(very_slow, heartbeat=0.1).wait_ready()

    text = server.chat(stream=True, max_tokens=3).text

    assert text.startswith(": keep-alive\n\n")
    assert ": keep-alive\n\n" in text[text.index("data: ") :]
    assert text_of(chunks_of(text)) == "Hello"


def test_comments_can_be_turned_off(serve: Callable[..., RunningServer], very_slow: ModelSpec) -> None:
    server = serve(very_slow, heartbeat=0).wait_ready()

    assert ":" not in {line[:1] for line in server.chat(stream=True, max_tokens=2).text.splitlines()}


def test_the_official_clients_pass_over_comments(serve: Callable[..., RunningServer], very_slow: ModelSpec) -> None:
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    server = serve(very_slow, heartbeat=0.1).wait_ready()
    messages = [{"role": "user", "content": "Hi"}]

    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(model="slow", messages=messages, stream=True, max_tokens=2)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hell"
    with (
        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client,
        client.messages.stream(model="slow", messages=messages, max_tokens=2) as stream,
    ):
        assert "".join(stream.text_stream) == "Hell"
