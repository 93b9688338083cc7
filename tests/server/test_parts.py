"""Tool calls, reasoning and forced forms on the wire, with a model whose answer the test writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from onnx_genai.types import Usage
from tests.server.running import RunningServer

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=2)


@dataclass(frozen=True)
class Call:
    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Part:
    index: int = 0
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    token_ids: tuple[int, ...] = (1,)
    logprobs: None = None
    usage: Usage | None = None

    @property
    def text(self) -> str:
        return self.content


@dataclass(frozen=True)
class Answer:
    choices: tuple[Part, ...]
    usage: Usage = USAGE


class PartsLLM(AsyncLLM):
    """Says the parts that the test has put into it, and keeps the arguments of the call."""

    parts: tuple[Part, ...] = ()
    calls: tuple[Any, ...] = ()

    async def chat(self, messages: Any, params: Any = None, **more: Any) -> Any:
        type(self).calls = (messages, params, more)
        return Answer(
            (
                Part(
                    content="".join(part.content for part in self.parts),
                    reasoning="".join(part.reasoning or "" for part in self.parts) or None,
                    tool_calls=tuple(call for part in self.parts for call in part.tool_calls),
                    finish_reason=self.parts[-1].finish_reason,
                ),
            )
        )

    async def chat_stream(self, messages: Any, params: Any = None, **more: Any) -> AsyncIterator[Part]:
        type(self).calls = (messages, params, more)
        for part in self.parts:
            await asyncio.sleep(0)
            yield part


Say = Callable[..., None]


@pytest.fixture(scope="module")
def server(scripted_package: Callable[..., Path]) -> Iterator[RunningServer]:
    folder = scripted_package("x")
    with RunningServer([ModelSpec(name="m", load=lambda: PartsLLM(folder, threads=1))]) as server:
        yield server.wait_ready()


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    def put(*parts: Part, finish: str = "stop") -> None:
        monkeypatch.setattr(PartsLLM, "parts", (*parts, Part(finish_reason=finish, usage=USAGE)))

    return put


TWO_CALLS = (
    Part(reasoning="let me "),
    Part(reasoning="see"),
    Part(content="I look "),
    Part(tool_calls=(Call(0, "c0", "weather", '{"city": "Zürich"}'),)),
    Part(tool_calls=(Call(1, "c1", "clock", ""),)),
)


def test_calls_and_reasoning_of_a_whole_answer(server: RunningServer, say: Say) -> None:
    say(*TWO_CALLS)

    answer = server.chat(tools=[WEATHER, CLOCK]).json()

    (choice,) = answer["choices"]
    assert 0 < answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= USAGE.completion_tokens
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "I look ",
        "reasoning_content": "let me see",
        "refusal": None,
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}},
            {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
        ],
    }


def test_calls_alone_have_no_content(server: RunningServer, say: Say) -> None:
    say(Part(tool_calls=(Call(0, "c0", "clock", "{}"),)))

    message = server.chat(tools=[CLOCK]).json()["choices"][0]["message"]

    assert message["content"] is None


def test_a_call_cut_by_the_limit_ends_with_length(server: RunningServer, say: Say) -> None:
    say(Part(reasoning="still thinking"), finish="length")

    choice = server.chat(tools=[CLOCK]).json()["choices"][0]

    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "still thinking"
    assert "tool_calls" not in choice["message"]


def test_streamed_calls_give_name_and_id_once_and_arguments_after(server: RunningServer, say: Say) -> None:
    say(*TWO_CALLS)

    choices = [chunk["choices"][0] for chunk in server.chat_chunks(tools=[WEATHER, CLOCK])]

    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert deltas == [
        {"index": 0, "id": "c0", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"city": "Zürich"}'}},
        {"index": 1, "id": "c1", "type": "function", "function": {"name": "clock", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_streamed_reasoning_has_a_field_of_its_own(server: RunningServer, say: Say) -> None:
    say(*TWO_CALLS)

    deltas = [chunk["choices"][0]["delta"] for chunk in server.chat_chunks(tools=[WEATHER, CLOCK])]

    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["let me ", "see"]
    assert all(len(delta) <= 1 or "role" in delta for delta in deltas)


def test_the_official_client_collects_two_calls(server: RunningServer, say: Say) -> None:
    openai = pytest.importorskip("openai")
    say(*TWO_CALLS)

    with (
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client,
        client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "x"}], tools=[WEATHER, CLOCK]
        ) as stream,
    ):
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message

    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()] == [
        ("c0", "weather", '{"city": "Zürich"}'),
        ("c1", "clock", "{}"),
    ]


def test_what_was_asked_reaches_the_model(server: RunningServer, say: Say) -> None:
    say(Part(content="{}"))
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}

    server.chat(
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        response_format=schema,
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="high",
        priority=2,
        cache_salt="s",
        timeout=5,
    )

    messages, params, more = PartsLLM.calls
    assert messages == [{"role": "user", "content": "Hi"}]
    assert params.max_new_tokens is None
    assert 0 < more["timeout"] <= 5  # what is left of it
    assert more == {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": schema,
        "template_kwargs": {"enable_thinking": False, "reasoning_effort": "high"},
        "priority": 2,
        "cache_salt": "s",
        "timeout": more["timeout"],
        "adapter": None,
    }


def test_a_session_keeps_calls_and_takes_their_results(server: RunningServer, say: Say) -> None:
    session = server.http.post("/v1/sessions", json={}).json()["id"]
    headers = {"x-session-id": session}
    say(Part(tool_calls=(Call(0, "c0", "clock", "{}"),)))
    first = {"messages": [{"role": "user", "content": "time?"}], "tools": [CLOCK], "stream": True}
    assert server.http.post("/v1/chat/completions", json=first, headers=headers).status_code == 200
    say(Part(content="noon"))

    second = {"messages": [{"role": "tool", "tool_call_id": "c0", "content": "12:00"}], "tools": [CLOCK]}
    assert server.http.post("/v1/chat/completions", json=second, headers=headers).status_code == 200

    messages = PartsLLM.calls[0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "clock"


@pytest.mark.parametrize(
    "tools", [[WEATHER] * 200, [{"type": "function", "function": {"name": "f", "description": "x" * 300_000}}]]
)
def test_too_many_or_too_large_tools_are_refused(server: RunningServer, tools: list[Any]) -> None:
    response = server.chat(tools=tools)

    assert response.status_code == 400
    assert json.loads(response.text)["error"]["param"] == "tools"
