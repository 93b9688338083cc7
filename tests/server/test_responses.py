"""The newer form of a chat: items, events in order, memory of earlier answers, the official client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from onnx_genai.server import Limits, ModelSpec
from onnx_genai.server.schemas.responses import ResponseRequest
from tests.server.conftest import HELLO
from tests.server.running import RunningServer
from tests.server.test_parts import TWO_CALLS, Part, PartsLLM, Say, say, server

__all__ = ["say", "server"]

TOOLS = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True},
    {"type": "function", "name": "clock"},
]


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/responses", json={"input": "Hi", **fields})


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


def test_answer_has_the_form_of_a_response(hello: RunningServer) -> None:
    answer = post(hello, metadata={"a": "b"}).json()

    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", "org/hello")
    (item,) = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": HELLO, "annotations": [], "logprobs": []}]
    assert answer["usage"]["input_tokens"] == 21
    assert answer["usage"]["output_tokens"] == 17
    assert answer["metadata"] == {"a": "b"}


def test_an_answer_that_was_cut_is_incomplete(hello: RunningServer) -> None:
    answer = post(hello, max_output_tokens=1).json()

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_events_come_in_order_and_are_numbered(hello: RunningServer) -> None:
    events = events_of(post(hello, stream=True))

    kinds = [event["type"] for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events[4:-4]) == HELLO
    for event in events[3:-2]:
        assert event["item_id"] == events[2]["item"]["id"]
        assert (event["output_index"], event["content_index"]) == (0, 0)
    assert events[0]["response"]["status"] == "in_progress"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == HELLO


def test_an_empty_answer_has_its_frame_nevertheless(server: RunningServer, say: Say) -> None:
    say()

    kinds = [event["type"] for event in events_of(post(server, stream=True))]

    assert "response.output_item.added" in kinds
    assert "response.content_part.done" in kinds
    assert kinds[-1] == "response.completed"


def test_reasoning_text_and_calls_are_items(server: RunningServer, say: Say) -> None:
    say(*TWO_CALLS)

    whole = post(server, tools=TOOLS).json()
    events = events_of(post(server, tools=TOOLS, stream=True))

    def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in item.items() if name != "id"} for item in items]

    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])
    call = whole["output"][2]
    assert (call["call_id"], call["name"], call["arguments"]) == ("c0", "weather", '{"city": "Zürich"}')
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2, 3]
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [event["arguments"] for event in done] == ['{"city": "Zürich"}', "{}"]


def test_a_response_goes_on_from_an_earlier_one(server: RunningServer, say: Say) -> None:
    say(Part(tool_calls=(_call(),)))
    first = post(server, input="time?", tools=TOOLS, instructions="be exact", stream=True)
    first_id = events_of(first)[-1]["response"]["id"]
    say(Part(content="noon"))

    output = {"type": "function_call_output", "call_id": "c1", "output": "12:00"}
    second = post(server, input=[output], previous_response_id=first_id, tools=TOOLS).json()

    messages = PartsLLM.calls[0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"], "instructions are not kept"
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "c1"
    assert second["previous_response_id"] == first_id
    assert server.http.get(f"/v1/responses/{second['id']}").json() == second
    assert server.http.delete(f"/v1/responses/{second['id']}").json()["deleted"]
    assert server.http.get(f"/v1/responses/{second['id']}").status_code == 404


def test_items_of_the_input_become_messages(server: RunningServer, say: Say) -> None:
    say(Part(content="ok"))
    items = [
        {"role": "developer", "content": "be kind"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "noon"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    ]

    assert post(server, input=items, instructions="first").status_code == 200

    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    assert PartsLLM.calls[0] == [
        {"role": "system", "content": "first"},
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "assistant", "content": "b"},
    ]


def test_reasoning_at_the_end_and_texts_behind_it_are_messages_without_marks(server: RunningServer, say: Say) -> None:
    say(Part(content="ok"), Part(content="ok"))
    think = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    user = {"role": "user", "content": "a"}
    said = {"type": "message", "role": "assistant", "content": "b"}
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}

    spoken = {"role": "assistant", "content": "b"}

    post(server, input=[user, think, {"type": "reasoning", "content": None}, said, said, user])
    assert PartsLLM.calls[0] == [user, {**thought, "content": "b"}, spoken, user]
    post(server, input=[user, think, user, said, think])
    assert PartsLLM.calls[0] == [user, thought, user, spoken, thought]


def test_many_items_become_as_many_messages() -> None:
    pair = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": ""},
    ]
    messages = ResponseRequest.model_validate({"input": pair * 5000}).new_messages()

    assert len(messages) == 10_000
    assert messages[-1] == {"role": "tool", "tool_call_id": "c", "content": ""}
    with pytest.raises(ValidationError, match="there are 10001 entries; allowed: 10000"):
        ResponseRequest.model_validate({"input": [*pair * 5000, pair[0]]})


def test_what_was_asked_reaches_the_model(server: RunningServer, say: Say) -> None:
    say(Part(content="{}"))
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}

    response = post(
        server,
        text={"format": form},
        tools=TOOLS,
        tool_choice={"type": "function", "name": "clock"},
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
    )

    more = PartsLLM.calls[2]
    assert more["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert more["tool_choice"] == {"type": "function", "function": {"name": "clock"}}
    assert more["parallel_tool_calls"] is False
    assert more["template_kwargs"] == {"reasoning_effort": "low"}
    assert response.json()["text"] == {"format": form}
    assert response.json()["tools"] == TOOLS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary"),
        ({"input": [{"type": "reasoning", "summary": [5]}]}, "input[0].summary[0]"),
        ({"input": [{"type": "reasoning", "summary": [{"text": 5}]}]}, "input[0].summary[0].text"),
        ({"input": [{"type": "function_call_output", "output": 5}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "output": None}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "call_id": 5, "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0]"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "xyz"}}}, "text.format.type"),
    ],
    ids=str,
)
def test_a_wrong_field_is_refused_by_name(hello: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = post(hello, **fields)

    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_what_is_not_to_be_stored_is_not(hello: RunningServer) -> None:
    identifier = post(hello, store=False).json()["id"]

    assert hello.http.get(f"/v1/responses/{identifier}").status_code == 404


def test_the_memory_is_bounded_and_each_keys_own(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_sessions=2), api_keys=("a", "b")).wait_ready()
    own = {"x-api-key": "a"}
    ids = [server.http.post("/v1/responses", json={"input": "Hi"}, headers=own).json()["id"] for _ in range(3)]

    statuses = [server.http.get(f"/v1/responses/{each}", headers=own).status_code for each in ids]

    assert statuses == [404, 200, 200]
    assert server.http.get(f"/v1/responses/{ids[2]}", headers={"x-api-key": "b"}).status_code == 404


def test_an_error_in_a_stream_is_an_event(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartsLLM, "parts", (Part(content="x"), Part(finish_reason="abort")))

    events = events_of(post(server, stream=True))

    assert events[-1]["type"] == "error"
    assert events[-1]["code"] == "aborted"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_the_official_client(hello: RunningServer, server: RunningServer, say: Say) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=hello.url + "/v1", api_key="any", max_retries=0) as client:
        whole = client.responses.create(model="hello", input="Hi")
        again = client.responses.retrieve(whole.id)
        with client.responses.stream(model="hello", input="Hi", previous_response_id=whole.id) as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
    assert whole.output_text == again.output_text == final.output_text == HELLO
    assert final.usage.input_tokens > whole.usage.input_tokens

    say(*TWO_CALLS)
    with (
        openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client,
        client.responses.stream(model="m", input="Hi", tools=TOOLS) as stream,
    ):
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


def _call() -> Any:
    from tests.server.test_parts import Call

    return Call(0, "c1", "clock", "{}")
