"""An encoder-decoder behind the server: completions of a source; what needs a growing prompt is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.models.encoder_decoder import EOS, PLACES, greedy_answer, write_encoder_decoder
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_encoder_decoder(tmp_path_factory.mktemp("server"), "cross_kv")
    with RunningServer([ModelSpec(name="translator", load=lambda: AsyncLLM(folder, threads=1))]) as running:
        yield running.wait_ready()


def test_completion_is_the_answer_to_a_source(server: RunningServer) -> None:
    body = {"prompt": ["w5 w4", "w6 w3 w5"], "max_tokens": 12, "temperature": 0}

    answer = server.http.post("/v1/completions", json=body).json()

    answers = [greedy_answer("cross_kv", [*source, EOS], 12) for source in ([5, 4], [6, 3, 5])]
    texts = [" ".join(f"w{token}" for token in each if token > 2) for each in answers]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == 3 + 4
    assert answer["usage"]["completion_tokens"] == sum(map(len, answers))


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("completions", {"prompt": "w5", "echo": True, "logprobs": 1, "max_tokens": 0}, "an encoder-decoder"),
        ("chat/completions", {"messages": [{"role": "user", "content": "w5"}]}, "no chat template"),
    ],
)
def test_what_needs_a_growing_prompt_is_refused(
    path: str, body: dict[str, object], words: str, server: RunningServer
) -> None:
    response = server.http.post(f"/v1/{path}", json=body)

    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [[3] * PLACES, " ".join(["w3"] * PLACES)])
def test_source_that_is_longer_than_the_model_takes_is_refused(prompt: str | list[int], server: RunningServer) -> None:
    response = server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"the source has {PLACES + 1} tokens with its end; the limit is {PLACES} (" in error["message"]
