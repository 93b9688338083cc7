"""The official clients run their documented flows against a real model: SmolLM2 of 135 million parameters, in int4.

What a model of that size says is not judged; that every flow ends, holds together and parses is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.server.client_flows import HI, TOOL_FLOWS, official_client
from tests.server.running import RunningServer
from tests.server.test_node_client import run_flows

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

NAMES = {"weather", "clock"}
ASK = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


class Fruit(BaseModel):
    name: str = Field(max_length=12)
    colour: Literal["red", "green", "yellow"]
    weight: int = Field(ge=1, le=500)


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[RunningServer]:
    llm = AsyncLLM(smollm2, max_context=2048)  # may take longer than tests wait for a server
    with RunningServer([ModelSpec(name="smollm2", load=lambda: llm)]) as server:
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
    results = run_flows(server, "smollm2", "smollm2", "smollm2", first_choice="required")

    assert results["chat"]["text"] == results["streamedChat"]["text"] != ""
    for flow in ("tools", "streamedTools"):
        assert {name for name, _ in results[flow]["called"]} <= NAMES
        assert results[flow]["called"]
    assert set(results["form"]["object"]) == {"name", "age"}
    assert results["responses"]["text"] == results["responses"]["whole"]
    assert results["completions"]["whole"] == results["completions"]["texts"]
    assert results["errors"]["long"]["code"] == "context_length_exceeded"


def test_an_agent_makes_one_turn_with_a_tool_that_it_must_call(server: RunningServer, tmp_path: Path) -> None:
    agents, openai = pytest.importorskip("agents"), pytest.importorskip("openai")
    from tests.server.test_agents import Desk, agent_of

    desk = Desk(tmp_path)

    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=300) as client:
            agent = agent_of(
                desk, client, "smollm2", "chat", tool_choice="required", temperature=0, max_tokens=400,
                extra_body={"repetition_penalty": 1.2},
            )  # fmt: skip
            agent.tool_use_behavior = "stop_on_first_tool"
            quiet = agents.RunConfig(tracing_disabled=True)
            return await agents.Runner.run(agent, "Read the file notes.txt.", run_config=quiet)

    result = asyncio.run(run())

    (item,) = [each for each in result.new_items if each.type == "tool_call_item"][:1]
    assert item.raw_item.name in ("read_file", "write_file")
    assert isinstance(json.loads(item.raw_item.arguments)["name"], str)
    assert desk.calls
