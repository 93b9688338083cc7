"""Models and requests that go wrong inside: one request is hit, and the others are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.models.checksum import CHECKSUM_STYLES, VOCAB_SIZE
from tests.server.conftest import HELLO
from tests.server.running import RunningServer

Serve = Callable[..., RunningServer]

BROKEN_BYTES = (0xC3, 0x28, 0xED, 0xA0, 0x80, 0xC0, 0x80, 0xF0, 0x9F, 0x41, 0xFF)


def test_bytes_that_are_no_text_are_replaced_and_alike_streamed_or_not(
    serve: Serve, scripted_package: Callable[..., Path]
) -> None:
    # The tokenizer has byte b as token 3 + b.
    folder = scripted_package([3 + byte for byte in BROKEN_BYTES])
    server = serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()

    whole = server.chat(logprobs=True).json()["choices"][0]
    chunks = server.chat_chunks()

    text = whole["message"]["content"]
    assert "\ufffd" in text
    assert text == "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    made = b"".join(bytes(entry["bytes"]) for entry in whole["logprobs"]["content"])
    assert made.startswith(bytes(BROKEN_BYTES))


def test_the_text_of_a_special_token_stops(hello: RunningServer) -> None:
    choice = hello.chat(stop=["<|im_end|>"]).json()["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == (HELLO, "stop")


@pytest.mark.parametrize(
    "fields", [{"stop_token_ids": [10**6]}, {"stop_token_ids": [-1]}, {"logit_bias": {"99999": 1}}, {"min_tokens": -1}]
)
def test_ids_beyond_the_vocabulary_are_refused(hello: RunningServer, fields: dict[str, Any]) -> None:
    assert hello.chat(**fields).status_code == 400


def test_the_first_id_beyond_the_vocabulary_is_refused_and_harms_no_neighbour(
    serve: Serve, checksum_package: Callable[..., Path]
) -> None:
    folder = checksum_package("gqa")
    server = serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()
    body = {"prompt": [5, 6, 7], "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    alone = server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]

    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(server.http.post, "/v1/completions", json=body)
        for beyond, status in ((VOCAB_SIZE, 400), (VOCAB_SIZE - 1, 200)):
            for fields in ({"stop_token_ids": [beyond]}, {"logit_bias": {str(beyond): -100}}):
                assert (
                    server.http.post("/v1/completions", json={**body, "max_tokens": 2, **fields}).status_code == status
                )
        assert neighbour.result().json()["choices"][0]["text"] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_computes_nonsense_fails_that_request_only(
    serve: Serve, checksum_package: Callable[..., Path], stream: bool
) -> None:
    folder = checksum_package(replace(CHECKSUM_STYLES["concat"], bad_from=4))
    server = serve(ModelSpec(name="bad", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()
    body = {"prompt": [5, 6], "temperature": 0, "ignore_eos": True}

    with ThreadPoolExecutor(2) as pool:
        short = pool.submit(server.http.post, "/v1/completions", json={**body, "max_tokens": 1})
        response = server.http.post("/v1/completions", json={**body, "max_tokens": 9, "stream": stream})
        assert short.result().status_code == 200

    assert response.status_code == (200 if stream else 500), response.text
    last = response.text.strip().split("\n\n")[-1].removeprefix("data: ")
    error = json.loads(last)["error"]
    assert error["type"] == "server_error"
    assert "[DONE]" not in response.text
    assert server.http.post("/v1/completions", json={**body, "max_tokens": 1}).status_code == 200
    assert server.http.get("/health").status_code == 200


def test_cached_tokens_are_told_streamed_and_not(serve: Serve, checksum_package: Callable[..., Path]) -> None:
    folder = checksum_package("gqa")
    server = serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()
    body = {"prompt": [3 + index % 90 for index in range(100)], "max_tokens": 4, "temperature": 0}

    first, second = (server.http.post("/v1/completions", json=body).json() for _ in range(2))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = server.http.post("/v1/completions", json={**body, **options}).text

    usage = json.loads(streamed.split("\n\n")[-3].removeprefix("data: "))["usage"]
    for each in (first["usage"], second["usage"], usage):
        assert 0 <= each["prompt_tokens_details"]["cached_tokens"] <= each["prompt_tokens"] == 100
    assert usage == second["usage"]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, second)]
    assert cached == [0, 96], "whole blocks of 16, and never the last token"
    assert first["choices"] == second["choices"]


def test_an_empty_prompt_beside_a_live_stream_is_refused_and_the_stream_goes_on(slow: RunningServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(slow.chat, stream=True, max_tokens=20)
        for prompt in ("", [], [[]]):
            assert slow.http.post("/v1/completions", json={"prompt": prompt}).status_code == 400
        assert stream.result(20).text.endswith("data: [DONE]\n\n")
