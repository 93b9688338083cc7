"""The official clients run their documented flows against a real model: SmolLM2 of 135 million parameters, in int4.

What a model of that size says is not judged; that every flow ends, holds together and parses is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import BaseModel, Field

from onnx_genai import AsyncEmbedder, AsyncLLM
from onnx_genai.server import ModelSpec
from tests.server.client_flows import CHAT_TOOLS, HI, TOOL_FLOWS, official_client
from tests.server.hesitant import Hesitant, hesitant
from tests.server.running import RunningServer
from tests.server.test_node_client import run_flows

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

NAMES = {"weather", "clock"}
GOLDEN = Path(__file__).parents[1] / "golden" / "encoders.npz"
VECTOR_TOLERANCE = 1e-5
ASK = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


def golden_vectors() -> tuple[list[str], npt.NDArray[np.float32]]:
    """Texts, and their vectors by transformers; float32[texts, 384]. None is empty: OpenAI's route takes no such."""
    golden = np.load(GOLDEN)
    texts = [str(text) for text in golden["minilm_texts"]]
    places = [place for place, text in enumerate(texts) if text]
    return [texts[place] for place in places], golden["minilm_vectors"][places]


class Fruit(BaseModel):
    name: str = Field(max_length=12)
    colour: Literal["red", "green", "yellow"]
    weight: int = Field(ge=1, le=500)


@pytest.fixture(scope="module")
def server(smollm2: Path, minilm: Path) -> Iterator[RunningServer]:
    llm = AsyncLLM(smollm2, max_context=2048)  # may take longer than tests wait for a server
    embedder = AsyncEmbedder(minilm)
    specs = [
        ModelSpec(name="smollm2", load=lambda: llm),
        ModelSpec(name="minilm", load=lambda: embedder, kind="embedding"),
    ]
    with RunningServer(specs) as server:
        server.http.timeout = 300.0
        yield server.wait_ready()


def test_chats_streamed_or_not_say_the_same(server: RunningServer) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "messages": ASK, "temperature": 0, "max_tokens": 12}
    with official_client("openai", server) as client:
        whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=3)
        with client.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion()

    choice = whole.choices[0]
    assert "Paris" in choice.message.content
    assert streamed.choices[0].message.content == choice.message.content
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(choice.message.content)
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries), "greedy takes the likeliest"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "flow"), TOOL_FLOWS, ids=lambda value: getattr(value, "__name__", value))
def test_a_tool_that_must_be_called_is_called_and_its_result_goes_round(
    server: RunningServer, kind: str, flow: Callable[..., Any], stream: bool
) -> None:
    first = "required" if kind == "openai" else "any"
    more = {} if kind == "anthropic" else {"temperature": 0}
    with official_client(kind, server) as client:
        called, _ = flow(client, "smollm2", stream=stream, first_choice=first, **more)

    assert called, "the first turn must call"
    assert {name for name, _ in called} <= NAMES
    assert all(arguments["city"] in ("Zürich", "Oslo") for name, arguments in called if name == "weather")


def test_two_calls_come_at_once_where_one_is_too_short(server: RunningServer) -> None:
    """A call has fewer tokens than the answer must have, and after a call only the end or another call fits."""
    with official_client("openai", server) as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "What time is it in Oslo, and how warm?"}],
            tools=CHAT_TOOLS,
            tool_choice="required",
            temperature=0,
            max_tokens=200,
            extra_body={"min_tokens": 40},
        )

    calls = answer.choices[0].message.tool_calls
    assert len(calls) >= 2
    assert len({call.id for call in calls}) == len(calls)
    assert {call.function.name for call in calls} <= NAMES


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_each_fault_is_the_clients_own_error(server: RunningServer, kind: str) -> None:
    package = pytest.importorskip(kind)
    with official_client(kind, server) as client:
        post = (client.chat.completions if kind == "openai" else client.messages).create
        fields: dict[str, Any] = {"model": "smollm2", "messages": HI, "max_tokens": 4}
        with pytest.raises(package.NotFoundError, match="nobody"):
            post(**{**fields, "model": "nobody"})
        with pytest.raises(package.BadRequestError, match="temperature"):
            post(**fields, extra_body={"temperature": -1})
        with pytest.raises(package.BadRequestError, match="2048"):
            post(**{**fields, "messages": [{"role": "user", "content": "x " * 4000}]})
        assert post(**fields)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_refused_client_gives_up_or_comes_again(server: RunningServer, kind: str) -> None:
    package = pytest.importorskip(kind)
    fields: dict[str, Any] = {"model": "smollm2", "messages": ASK, "max_tokens": 8, "extra_body": {"temperature": 0}}
    with hesitant(server, 429, 429, 503) as proxy:

        def ask(target: RunningServer | Hesitant, retries: int) -> str | None:
            with official_client(kind, target, max_retries=retries) as client:
                if kind == "openai":
                    return client.chat.completions.create(**fields).choices[0].message.content
                return client.messages.create(**fields).content[0].text

        with pytest.raises(package.RateLimitError):
            ask(proxy, 0)
        text = ask(proxy, 2)

    assert proxy.statuses == [429, 429, 503, 200]
    assert text == ask(server, 0) != ""


def test_prompts_are_continued_streamed_or_not(server: RunningServer) -> None:
    fields: dict[str, Any] = {
        "model": "smollm2", "prompt": ["The capital of France is", "1, 2, 3, 4,"], "temperature": 0, "max_tokens": 8,
    }  # fmt: skip
    with official_client("openai", server) as client:
        whole = client.completions.create(**fields, echo=True, logprobs=2)
        texts = ["", ""]
        for chunk in client.completions.create(**fields, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text

    assert [each.text for each in whole.choices] == [a + b for a, b in zip(fields["prompt"], texts, strict=True)]
    assert "Paris" in texts[0]
    assert "5, 6" in texts[1]
    for each in whole.choices:
        assert "".join(each.logprobs.tokens) == each.text


def test_vectors_of_a_real_encoder_equal_those_of_transformers(server: RunningServer) -> None:
    texts, expected = golden_vectors()
    with official_client("openai", server) as client:
        coded = client.embeddings.create(model="minilm", input=texts)
        plain = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
        cut = client.embeddings.create(model="minilm", input=texts[0], dimensions=64)

    for answer in (coded, plain):
        vectors = [each.embedding for each in answer.data]
        np.testing.assert_allclose(vectors, expected, atol=VECTOR_TOLERANCE)
    short = expected[0, :64]
    np.testing.assert_allclose(cut.data[0].embedding, short / np.linalg.norm(short), atol=3 * VECTOR_TOLERANCE)


def test_models_are_listed(server: RunningServer) -> None:
    with official_client("openai", server) as client:
        assert sorted(model.id for model in client.models.list()) == ["minilm", "smollm2"]
        assert client.models.retrieve("smollm2").id == "smollm2"


def test_an_object_is_parsed(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Describe an apple as JSON."}]
    with official_client("openai", server) as client:
        answer = client.chat.completions.parse(
            model="smollm2", messages=messages, response_format=Fruit, temperature=0, max_tokens=200
        )

    assert isinstance(answer.choices[0].message.parsed, Fruit)


def test_responses_go_on_from_each_other(server: RunningServer) -> None:
    with official_client("openai", server) as client:
        first = client.responses.create(
            model="smollm2", input="My name is Ada. Say hello.", temperature=0, max_output_tokens=24
        )
        with client.responses.stream(
            model="smollm2", input="And again.", previous_response_id=first.id, temperature=0, max_output_tokens=24
        ) as stream:
            # One that is cut has no "completed" event, for which the client's own get_final_response() waits.
            second = list(stream)[-1].response

    assert first.output_text
    assert second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0, "the first turn is not computed again"


def test_messages_streamed_or_not_say_the_same(server: RunningServer) -> None:
    fields: dict[str, Any] = {
        "model": "smollm2", "max_tokens": 16, "messages": HI, "system": "Be brief.", "extra_body": {"temperature": 0},
    }  # fmt: skip
    with official_client("anthropic", server) as client:
        whole = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            text = "".join(stream.text_stream)

    assert whole.content[0].text == text != ""


def test_the_client_for_javascript_runs_its_flows(server: RunningServer) -> None:
    texts, expected = golden_vectors()

    results = run_flows(server, "smollm2", "smollm2", "smollm2", "minilm", texts=texts, first_choice="required")

    assert results["chat"]["text"] == results["streamedChat"]["text"] != ""
    for flow in ("tools", "streamedTools"):
        assert {name for name, _ in results[flow]["called"]} <= NAMES
        assert results[flow]["called"]
    assert set(results["form"]["object"]) == {"name", "age"}
    assert results["responses"]["text"] == results["responses"]["whole"]
    assert results["completions"]["whole"] == results["completions"]["texts"]
    assert results["errors"]["long"]["code"] == "context_length_exceeded"
    assert results["errors"]["unknown"]["kind"] == "NotFoundError"
    assert results["retries"]["refused"]["kind"] == "RateLimitError"
    assert results["retries"]["text"] == results["chat"]["text"]
    for encoding in ("coded", "plain"):
        np.testing.assert_allclose(results["embeddings"][encoding], expected, atol=VECTOR_TOLERANCE)


def test_an_agent_makes_one_turn_with_a_tool_that_it_must_call(server: RunningServer, tmp_path: Path) -> None:
    agents, openai = pytest.importorskip("agents"), pytest.importorskip("openai")
    from tests.server.test_agents import Desk, agent_of

    desk = Desk(tmp_path)

    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=300) as client:
            agent = agent_of(desk, client, "smollm2", "chat", tool_choice="required", temperature=0, max_tokens=400)
            agent.tool_use_behavior = "stop_on_first_tool"
            quiet = agents.RunConfig(tracing_disabled=True)
            return await agents.Runner.run(agent, "Read the file notes.txt.", run_config=quiet)

    result = asyncio.run(run())

    (item,) = [each for each in result.new_items if each.type == "tool_call_item"][:1]
    assert item.raw_item.name in ("read_file", "write_file")
    assert isinstance(json.loads(item.raw_item.arguments)["name"], str)
    assert desk.calls


def test_a_forced_call_in_too_small_a_budget_shows_no_mark(server: RunningServer) -> None:
    function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": "required", "temperature": 0}
    for count in (1, 2, 4, 8, 12):
        (choice,) = server.chat("What is the weather in Oslo?", max_tokens=count, **fields).json()["choices"]
        chunks = server.chat_chunks("What is the weather in Oslo?", max_tokens=count, **fields)

        assert choice["message"]["content"] in (None, ""), count
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ""
        pieces = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        streamed = "".join(piece["function"]["arguments"] for piece in pieces)
        assert streamed == "".join(call["function"]["arguments"] for call in choice["message"].get("tool_calls", ()))
