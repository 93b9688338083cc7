"""The official client of OpenAI runs its documented flows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onnx_genai.server import Limits, ModelSpec
from tests.server.conftest import HELLO
from tests.server.running import RunningServer

openai = pytest.importorskip("openai")

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(hello: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=hello.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="org/hello", messages=HI)

    assert answer.choices[0].message.content == HELLO
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id is not None


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="org/hello", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == HELLO
    assert chunks[-1].usage is not None


def test_the_clients_own_accumulator(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="org/hello", messages=HI, logprobs=True) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()

    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == HELLO
    assert final.choices[0].finish_reason == "stop"


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="org/hello", messages=HI, logprobs=True, top_logprobs=3, stop="END")

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)


def test_plain_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="hello", prompt=["a", "b"], max_tokens=50, n=2)
    pieces = client.completions.create(model="hello", prompt="a", max_tokens=50, stream=True)

    assert [choice.text for choice in answer.choices] == [HELLO] * 4
    assert "".join(piece.choices[0].text for piece in pieces) == HELLO


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["org/hello"]
    assert client.models.retrieve("org/hello").owned_by == "onnx-genai"


def test_errors_are_of_the_right_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.chat.completions.create(model="nobody", messages=HI)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="hello", messages=HI, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="hello", messages=[{"role": "user", "content": "x" * 5000}])
    assert long.value.code == "context_length_exceeded"


def test_a_wrong_key_is_an_authentication_error(hello_spec: ModelSpec) -> None:
    with RunningServer([hello_spec], api_keys=("k",)) as server:
        with (
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        with openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["org/hello"]


def test_a_full_server_is_a_rate_limit_that_the_client_waits_out(slow_spec: ModelSpec) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with RunningServer([slow_spec], limits=Limits(max_open_requests=1)) as server:
        server.wait_ready()
        with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=4) as client:

            def ask(_: int) -> int:
                answer = client.chat.completions.create(model="slow", messages=HI, max_tokens=5)
                return answer.usage.completion_tokens if answer.usage else 0

            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(ask, range(2))) == [5, 5]


def test_an_error_in_a_stream_is_raised_by_the_client(slow: RunningServer) -> None:
    with openai.OpenAI(base_url=slow.url + "/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="slow", messages=HI, stream=True, max_tokens=1000, extra_body={"timeout": 0.3}
        )
        with pytest.raises(openai.APIError):
            list(stream)
