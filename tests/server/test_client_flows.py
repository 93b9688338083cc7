"""The official clients run what their documents show: tools, forms, conversations, errors, retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from onnx_genai.server import Limits, ModelSpec
from tests.server.client_flows import HI, SAID, TOOL_FLOWS, flow_server, official_client
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, raw_request, wait_until


class Person(BaseModel):
    name: str
    age: int


ADA = Person(name="Ada", age=36)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with flow_server(tmp_path_factory.mktemp("flows")) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "flow"), TOOL_FLOWS, ids=lambda value: getattr(value, "__name__", value))
def test_two_tools_are_called_at_once_and_their_results_answered(
    server: RunningServer, kind: str, flow: Callable[..., Any], stream: bool
) -> None:
    with official_client(kind, server) as client:
        called, text = flow(client, "agent", stream=stream)

    assert called == [("weather", {"city": "Zürich"}), ("clock", {})]
    assert text == SAID


def test_objects_are_parsed_from_chats_and_responses(server: RunningServer) -> None:
    with official_client("openai", server) as client:
        chat = client.chat.completions.parse(model="person", messages=HI, response_format=Person, temperature=0)
        with client.chat.completions.stream(model="person", messages=HI, response_format=Person) as stream:
            streamed = stream.get_final_completion()
        response = client.responses.parse(model="person", input="Hi", text_format=Person)

    assert chat.choices[0].message.parsed == streamed.choices[0].message.parsed == response.output_parsed == ADA


def test_an_object_that_is_cut_is_told_and_not_parsed(server: RunningServer) -> None:
    openai = pytest.importorskip("openai")
    with official_client("openai", server) as client:
        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(model="person", messages=HI, response_format=Person, max_tokens=3)
        response = client.responses.create(model="person", input="Hi", max_output_tokens=3)

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_conversation_goes_on_by_its_response_id_or_by_its_messages(server: RunningServer) -> None:
    with official_client("openai", server) as client:
        first = client.responses.create(model="two", input="a")
        second = client.responses.create(model="two", input="b", previous_response_id=first.id)
        items = [{"role": "user", "content": "a"}, *first.output, {"role": "user", "content": "b"}]
        by_items = client.responses.create(model="two", input=items, store=False)
        forgotten = client.responses.create(model="two", input="a", store=False)
        openai = pytest.importorskip("openai")
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="two", input="b", previous_response_id=forgotten.id)

    assert (first.output_text, second.output_text, by_items.output_text) == ("Hello.", "Again.", "Again.")
    assert refused.value.code == "previous_response_not_found"


def test_all_kinds_of_responses_events_are_understood(server: RunningServer) -> None:
    with official_client("openai", server) as client:
        kinds = [event.type for event in client.responses.create(model="agent", input="Hi", stream=True)]

    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_log_probabilities_come_by_both_interfaces(hello: RunningServer) -> None:
    with official_client("openai", hello) as client:
        chat = client.chat.completions.create(model="hello", messages=HI, logprobs=True, top_logprobs=2)
        include = ["message.output_text.logprobs"]
        response = client.responses.create(model="hello", input="Hi", include=include, top_logprobs=2)
        plain = client.completions.create(model="hello", prompt="x", logprobs=2, max_tokens=100)

    entries = chat.choices[0].logprobs.content
    theirs = response.output[0].content[0].logprobs
    assert [entry.token for entry in entries] == [entry.token for entry in theirs]
    assert [entry.logprob for entry in entries] == pytest.approx(plain.choices[0].logprobs.token_logprobs)
    joined = b"".join(bytes(entry.bytes) for entry in entries)
    assert joined.decode().startswith(HELLO)


def test_each_status_is_the_clients_own_error(hello: RunningServer, hello_spec: ModelSpec) -> None:
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    for kind, package in (("openai", openai), ("anthropic", anthropic)):
        with official_client(kind, hello) as client:

            def ask(client: Any = client, kind: str = kind, **fields: Any) -> Any:
                own = {"model": "hello", "messages": HI, "max_tokens": 5, **fields}
                return (client.chat.completions if kind == "openai" else client.messages).create(**own)

            with pytest.raises(package.BadRequestError):
                ask(extra_body={"temperature": -1})
            with pytest.raises(package.NotFoundError):
                ask(model="nobody")
            with pytest.raises(package.APIStatusError) as late:
                ask(extra_body={"max_tokens": "5"})
            assert late.value.status_code == 400
            assert late.value.response.headers["x-request-id"]
    with RunningServer([hello_spec], api_keys=("k",), limits=Limits(max_body_bytes=200)) as server:
        server.wait_ready()
        for kind, package in (("openai", openai), ("anthropic", anthropic)):
            fields = {"model": "hello", "messages": [{"role": "user", "content": "x" * 500}], "max_tokens": 5}
            with official_client(kind, server, api_key="k") as client:
                post = client.chat.completions.create if kind == "openai" else client.messages.create
                with pytest.raises(package.APIStatusError) as large:
                    post(**fields)
                assert large.value.status_code == 413
            with official_client(kind, server, api_key="wrong") as client:
                post = client.chat.completions.create if kind == "openai" else client.messages.create
                with pytest.raises(package.AuthenticationError):
                    post(**{**fields, "messages": HI})


def answered(server: RunningServer, path: str) -> dict[int, int]:
    """How often each status was answered on a route."""
    found: dict[int, int] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "onnx_genai:http_requests_total" and sample.labels["route"] == path:
                found[int(sample.labels["status"])] = int(sample.value)
    return found


@pytest.mark.parametrize(
    ("kind", "path"), [("openai", "/v1/chat/completions"), ("anthropic", "/v1/messages")], ids=["openai", "anthropic"]
)
def test_a_client_comes_again_when_the_server_says_so(slow_spec: ModelSpec, kind: str, path: str) -> None:
    """There is one place, which another request holds until the client was refused once."""
    fields = {"model": "slow", "messages": HI, "max_tokens": 3}
    with (
        RunningServer([slow_spec], limits=Limits(max_open_requests=1)) as server,
        official_client(kind, server, max_retries=9) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        server.wait_ready()
        post = (client.chat.completions if kind == "openai" else client.messages).create
        with raw_request(server, "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1000}).encode()):
            wait_until(lambda: len(server.server.state.live.open) == 1, "the first request")
            answer = pool.submit(post, **fields)
            wait_until(lambda: 429 in answered(server, path), "the refusal")
        assert answer.result(60)

        assert set(answered(server, path)) == {429, 200}


def test_a_bad_request_is_sent_once(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> None:
    openai = pytest.importorskip("openai")
    server = serve(hello_spec).wait_ready()
    with official_client("openai", server, max_retries=3) as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="org/hello", messages=[])
        with pytest.raises(openai.APIStatusError):
            client.images.generate(model="org/hello", prompt="x")

    assert answered(server, "/v1/chat/completions") == {400: 1}
    assert answered(server, "/v1/images/generations") == {501: 1}


def test_many_at_once_with_the_client_for_asyncio(server: RunningServer) -> None:
    openai = pytest.importorskip("openai")

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:

            async def one(number: int) -> str:
                fields = {"model": "two", "messages": [{"role": "user", "content": str(number)}]}
                if number % 2:
                    return (await client.chat.completions.create(**fields)).choices[0].message.content or ""
                stream = await client.chat.completions.create(**fields, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(16)))

    assert asyncio.run(run()) == ["Hello."] * 16


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_stream_that_is_left_frees_its_place(slow: RunningServer, kind: str) -> None:
    fields = {"model": "slow", "messages": HI, "max_tokens": 1000, "stream": True}
    with official_client(kind, slow) as client:
        stream = (client.chat.completions if kind == "openai" else client.messages).create(**fields)
        next(iter(stream))
        stream.close()

        slow.wait_idle()


def test_raw_answers_carry_the_request_id_of_the_caller(hello: RunningServer) -> None:
    with official_client("openai", hello) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="hello", messages=HI, extra_headers={"x-request-id": "mine-1"}
        )

    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse().choices[0].message.content == HELLO


def test_anthropics_client_counts_thinks_and_stops(hello: RunningServer) -> None:
    with official_client("anthropic", hello) as client:
        system = [{"type": "text", "text": "be kind"}]
        counted = client.messages.count_tokens(model="hello", messages=HI, system=system)
        message = client.messages.create(
            model="hello", max_tokens=50, messages=HI, system=system, stop_sequences=["END"]
        )

    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted.input_tokens
