"""Calls that an answer ends in: cut, they are in no route's text, streamed or not; else they are text."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.server.running import RunningServer

BEFORE = "Well. "
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
TELLS = "A call begins with `<tool_call>{` and ends with its mark."
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
COUNTS = [*range(2, 26), 40, *range(50, 80)]
"""Tokens of an answer: a character each, or a little more."""

Answer = tuple[str, list[dict[str, Any]], str]
"""Text, calls and the reason of the end."""


@pytest.fixture(scope="module")
def server(scripted_package: Callable[..., Path]) -> Iterator[RunningServer]:
    scripts = {"cut": BEFORE + CALL, "stops": BEFORE + CALL[:40], "tells": TELLS}
    folders = {name: scripted_package(script) for name, script in scripts.items()}
    specs = [
        ModelSpec(name=name, load=lambda folder=folder: AsyncLLM(folder, threads=1)) for name, folder in folders.items()
    ]
    with RunningServer(specs) as server:
        yield server.wait_ready()


def chat(server: RunningServer, model: str, count: int, choice: str, *, stream: bool) -> Answer:
    fields = {"model": model, "max_tokens": count, "temperature": 0, "tools": [{"type": "function", "function": CLOCK}]}
    fields["tool_choice"] = choice
    if not stream:
        (found,) = server.chat(**fields).json()["choices"]
        calls = [call["function"] for call in found["message"].get("tool_calls", ())]
        return found["message"]["content"] or "", calls, found["finish_reason"]
    text, calls, reason = "", [], ""
    for chunk in server.chat_chunks(**fields):
        (found,) = chunk["choices"]
        text += found["delta"].get("content") or ""
        for call in found["delta"].get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append(dict(call["function"]))
            else:
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
        reason = found["finish_reason"] or reason
    return text, calls, reason


def events_of(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = server.http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def responses(server: RunningServer, model: str, count: int, choice: str, *, stream: bool) -> Answer:
    body = {"model": model, "input": "Hi", "max_output_tokens": count, "tools": [{"type": "function", **CLOCK}]}
    body |= {"tool_choice": choice, "temperature": 0}
    if stream:
        events = events_of(server, "/v1/responses", body)
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        answer = events[-1]["response"]
    else:
        text, answer = "", server.http.post("/v1/responses", json=body).json()
    items = answer["output"]
    parts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    assert not stream or text == "".join(parts)
    calls = [{name: item[name] for name in ("name", "arguments")} for item in items if item["type"] == "function_call"]
    return "".join(parts), calls, answer["status"]


def messages(server: RunningServer, model: str, count: int, choice: str, *, stream: bool) -> Answer:
    tool = {"name": CLOCK["name"], "input_schema": CLOCK["parameters"]}
    body = {"model": model, "max_tokens": count, "tools": [tool], "messages": [{"role": "user", "content": "Hi"}]}
    body |= {"tool_choice": {"type": {"auto": "auto", "required": "any"}[choice]}, "temperature": 0}
    if not stream:
        answer = server.http.post("/v1/messages", json=body).json()
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        named = [{"name": call["name"], "arguments": json.dumps(call["input"])} for call in calls]
        return text, named, answer["stop_reason"]
    text, named, reason = "", [], ""
    for event in events_of(server, "/v1/messages", body):
        delta = event.get("delta", {})
        text += delta.get("text", "")
        reason = delta.get("stop_reason") or reason
        if event.get("content_block", {}).get("type") == "tool_use":
            named.append({"name": event["content_block"]["name"], "arguments": ""})
        if "partial_json" in delta:
            named[-1]["arguments"] += delta["partial_json"]
    return text, named, reason


ROUTES = [(chat, "length", "stop"), (responses, "incomplete", "completed"), (messages, "max_tokens", "end_turn")]
each_route = pytest.mark.parametrize(("ask", "cut", "ended"), ROUTES, ids=["chat", "responses", "messages"])


@each_route
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_anywhere_leaves_no_mark(
    server: RunningServer, ask: Callable[..., Answer], cut: str, ended: str, stream: bool
) -> None:
    numbers = []
    for count in COUNTS:
        text, calls, reason = ask(server, "cut", count, "auto", stream=stream)

        numbers.append(len(calls))
        assert text == BEFORE or (count < len(BEFORE) and BEFORE.startswith(text)), count
        assert [(call["name"], json.loads(call["arguments"])) for call in calls] in ([], [("clock", {"zone": "UTC"})])
        assert reason == cut or (calls and reason in ("tool_calls", "tool_use", ended)), count
    assert numbers == sorted(numbers), "once its object is whole it is a call"
    assert (numbers[0], numbers[-1]) == (0, 1)


@each_route
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_model_does_not_end_is_text(
    server: RunningServer, ask: Callable[..., Answer], cut: str, ended: str, stream: bool
) -> None:
    assert ask(server, "stops", 200, "auto", stream=stream) == (BEFORE + CALL[:40], [], ended)
    assert ask(server, "tells", 200, "auto", stream=stream) == (TELLS, [], ended)


@each_route
def test_a_required_call_in_too_small_a_budget_is_the_same_streamed_and_whole(
    server: RunningServer, ask: Callable[..., Answer], cut: str, ended: str
) -> None:
    for count in (1, 5, 11, 12, 20, 30, 50):
        whole = ask(server, "cut", count, "required", stream=False)

        assert whole[0] == "", count
        for call in whole[1]:
            assert isinstance(json.loads(call["arguments"]), dict)
        assert ask(server, "cut", count, "required", stream=True) == whole, count


def test_a_stop_string_inside_a_call_leaves_no_mark(server: RunningServer) -> None:
    tools = [{"type": "function", "function": CLOCK}]
    for stop in ("_call", "clock", "UTC"):
        (choice,) = server.chat(model="cut", stop=stop, tools=tools).json()["choices"]
        chunks = server.chat_chunks(model="cut", stop=stop, tools=tools)

        assert (choice["message"]["content"], choice["finish_reason"]) == (BEFORE, "stop"), stop
        assert "tool_calls" not in choice["message"]
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == BEFORE


def test_the_log_says_that_a_call_was_not_ended_and_nothing_of_it(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="onnx_genai"):
        chat(server, "cut", 30, "auto", stream=True)

    (record,) = [record for record in caplog.records if "did not end it" in record.getMessage()]
    assert "27 characters, finish reason length" in record.getMessage()
    assert "clock" not in record.getMessage()
