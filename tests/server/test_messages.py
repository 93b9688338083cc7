"""Anthropic's form of a chat: the answer, the events of a stream, the errors, the official client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from onnx_genai.server import ModelSpec
from onnx_genai.server.schemas.messages import CountTokensRequest
from tests.server.conftest import HELLO
from tests.server.running import RunningServer
from tests.server.test_parts import TWO_CALLS, Part, PartsLLM, Say, say, server

__all__ = ["say", "server"]

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {"name": "weather", "description": "d", "input_schema": {"type": "object"}},
    {"name": "clock", "input_schema": {"type": "object"}},
]


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/messages", json={"max_tokens": 100, "messages": HI, **fields})


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


def test_answer_has_the_form_of_a_message(hello: RunningServer) -> None:
    answer = post(hello, model="hello").json()

    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "org/hello")
    assert answer["content"] == [{"type": "text", "text": HELLO}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] == 21
    assert answer["usage"]["output_tokens"] == 17


def test_the_reason_to_stop_is_told(hello: RunningServer) -> None:
    stopped = post(hello, stop_sequences=["END"]).json()
    cut = post(hello, max_tokens=1).json()

    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")
    assert cut["stop_reason"] == "max_tokens"


def test_events_come_in_order_and_join_to_the_answer(hello: RunningServer) -> None:
    events = events_of(post(hello, stream=True))

    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == HELLO
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 17


def test_thinking_text_and_calls_are_blocks(server: RunningServer, say: Say) -> None:
    say(*TWO_CALLS)

    answer = post(server, tools=TOOLS).json()

    assert answer["stop_reason"] == "tool_use"
    assert answer["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": ""},
        {"type": "text", "text": "I look "},
        {"type": "tool_use", "id": "c0", "name": "weather", "input": {"city": "Zürich"}},
        {"type": "tool_use", "id": "c1", "name": "clock", "input": {}},
    ]


def test_streamed_blocks_are_one_after_the_other(server: RunningServer, say: Say) -> None:
    say(*TWO_CALLS)

    events = events_of(post(server, tools=TOOLS, stream=True))

    open_block = None
    indices = []
    for event in events:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
            indices.append(open_block)
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
    assert indices == [0, 1, 2, 3]
    joined = [event["delta"]["partial_json"] for event in events if "partial_json" in event.get("delta", {})]
    assert [json.loads(each) for each in joined] == [{"city": "Zürich"}, {}]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_blocks_of_the_history_become_messages(server: RunningServer, say: Say) -> None:
    say(Part(content="ok"))
    use = {"type": "tool_use", "id": "c0", "name": "clock", "input": {"z": "é"}}
    result = {"type": "tool_result", "tool_use_id": "c0", "content": [{"type": "text", "text": "noon"}]}

    response = post(
        server,
        system=[{"type": "text", "text": "be kind"}],
        messages=[
            {"role": "user", "content": "time?"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "and"}]},
        ],
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "clock", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )

    assert response.status_code == 200, response.text
    messages, params, more = PartsLLM.calls
    call = {"id": "c0", "type": "function", "function": {"name": "clock", "arguments": '{"z": "é"}'}}
    assert messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c0", "content": "noon"},
        {"role": "user", "content": "and"},
    ]
    assert params.max_new_tokens == 100
    assert more["tool_choice"] == {"type": "function", "function": {"name": "clock"}}
    assert more["parallel_tool_calls"] is False
    assert more["template_kwargs"] == {"enable_thinking": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"temperature": -1},
        {"stop_sequences": [""]},
        {"tools": [{"type": "web_search", "name": "w"}]},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "nobody"}},
        {"mcp_servers": [{"url": "x"}]},
        {"system": 5},
    ],
    ids=str,
)
def test_errors_have_anthropics_form(hello: RunningServer, fields: dict[str, Any]) -> None:
    response = post(hello, **fields)

    assert response.status_code == 400, response.text
    assert set(response.json()) == {"type", "error"}
    assert response.json()["type"] == "error"
    assert set(response.json()["error"]) == {"type", "message"}
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("block", "place"),
    [
        ({"type": "thinking", "thinking": 5}, "content[0].thinking"),
        ({"type": "tool_use", "name": 5, "input": {}}, "content[0].name"),
        ({"type": "tool_use", "input": {}}, "content[0] is"),
        ({"type": "tool_use", "name": "f", "input": []}, "content[0].input"),
        ({"type": "tool_use", "name": "f", "id": 5}, "content[0].id"),
        ({"type": "tool_result", "tool_use_id": 5}, "content[0].tool_use_id"),
        ({"type": "tool_result", "content": 5}, "content[0].content"),
        ({"type": "tool_result", "content": [{"type": "text", "text": 5}]}, "content[0].content[0].text"),
        ({"type": "text"}, "content[0] has no text"),
        ({"type": 5}, "content[0].type"),
        (5, "content[0]"),
    ],
    ids=str,
)
def test_a_wrong_block_is_refused_by_name(hello: RunningServer, block: Any, place: str) -> None:
    role = "user" if isinstance(block, dict) and block["type"] == "tool_result" else "assistant"
    response = post(hello, messages=[{"role": role, "content": [block]}])

    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(f"messages[0].{place}")


def test_thoughts_and_texts_of_many_blocks_are_joined() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "ab"}] * 5_000
    request = CountTokensRequest.model_validate({"messages": [{"role": "assistant", "content": blocks}]})

    (message,) = request.template_messages()
    assert message == {"role": "assistant", "content": "ab" * 5_000, "reasoning_content": "hm" * 5_000}


def test_other_errors_have_anthropics_form_as_well(hello: RunningServer, hello_spec: ModelSpec) -> None:
    assert post(hello, model="nobody").json()["error"]["type"] == "not_found_error"
    assert hello.http.get("/v1/messages").json()["type"] == "error"
    with RunningServer([hello_spec], api_keys=("k",)) as locked:
        refused = post(locked)
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


def test_an_error_in_a_stream_is_an_event(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartsLLM, "parts", (Part(content="x"), Part(finish_reason="abort")))

    events = events_of(post(server, stream=True))

    assert events[-1]["type"] == "error"
    assert "message_stop" not in [event["type"] for event in events]


def test_tokens_are_counted_as_they_are_computed(hello: RunningServer) -> None:
    counted = hello.http.post("/v1/messages/count_tokens", json={"messages": HI})

    assert counted.json() == {"input_tokens": 21}


def test_the_official_client(hello: RunningServer, server: RunningServer, say: Say) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=hello.url, api_key="any", max_retries=0) as client:
        whole = client.messages.create(model="hello", max_tokens=100, messages=HI)
        with client.messages.stream(model="hello", max_tokens=100, messages=HI) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        counted = client.messages.count_tokens(model="hello", messages=HI)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="nobody", max_tokens=100, messages=HI)

    assert whole.content[0].text == text == HELLO
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 17
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == 21
    assert counted.input_tokens == 21

    say(*TWO_CALLS)
    with (
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=100, messages=HI, tools=TOOLS) as stream,
    ):
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert final.content[2].input == {"city": "Zürich"}
