"""Tool calls, reasoning and forced forms over HTTP, with the real reading of a model's text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.models.packages import CHATML
from tests.server.running import RunningServer

CALLS = (
    'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 😀"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "clock"}},
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
THINKING = CHATML + "{# <think> </think> #}"


@pytest.fixture(scope="module")
def server(scripted_package: Callable[..., Path]) -> Iterator[RunningServer]:
    scripts = {
        "calls": (CALLS, CHATML),
        "broken": ('<tool_call>\n{"name": "weather", "arguments": {</tool_call>', CHATML),
        "thinks": ("<think>hm, so</think>\n\nThe answer.", THINKING),
        "json": ('{"name": "Ada", "age": 36}', CHATML),
        "talks": ("I would rather talk.", CHATML),
    }

    def spec(name: str, script: str, template: str) -> ModelSpec:
        folder = scripted_package(script, chat_template=template)
        return ModelSpec(name=name, load=lambda: AsyncLLM(folder, threads=1), eager=False)

    with RunningServer([spec(name, *each) for name, each in scripts.items()]) as server:
        yield server


def joined(chunks: list[dict[str, Any]], field: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"])


def test_two_calls_streamed_and_not(server: RunningServer) -> None:
    whole = server.chat(model="calls", tools=TOOLS).json()["choices"][0]
    chunks = server.chat_chunks(model="calls", tools=TOOLS)

    functions = [call["function"] for call in whole["message"]["tool_calls"]]
    assert whole["finish_reason"] == "tool_calls"
    assert [each["name"] for each in functions] == ["weather", "clock"]
    assert json.loads(functions[0]["arguments"]) == {"city": "Zürich 😀"}
    assert functions[1]["arguments"] == "{}"
    assert len({call["id"] for call in whole["message"]["tool_calls"]}) == 2
    assert (whole["message"]["content"] or "").strip() == "I look."
    streamed = {0: "", 1: ""}
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls", []):
            streamed[call["index"]] += call["function"]["arguments"]
    assert list(streamed.values()) == [each["arguments"] for each in functions]
    assert "tool_call" not in joined(chunks, "content")
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_without_tools_the_marks_are_text(server: RunningServer) -> None:
    choice = server.chat(model="calls").json()["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_tools_that_may_not_be_called_are_not(server: RunningServer) -> None:
    choice = server.chat(model="calls", tools=TOOLS, tool_choice="none").json()["choices"][0]

    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_a_call_that_is_none_is_text(server: RunningServer) -> None:
    choice = server.chat(model="broken", tools=TOOLS).json()["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    assert "weather" in choice["message"]["content"]


def test_reasoning_streamed_and_not(server: RunningServer) -> None:
    message = server.chat(model="thinks").json()["choices"][0]["message"]
    chunks = server.chat_chunks(model="thinks")

    assert message["reasoning_content"].strip() == "hm, so"
    assert message["content"].strip() == "The answer."
    assert joined(chunks, "reasoning_content") == message["reasoning_content"]
    assert joined(chunks, "content") == message["content"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_form_is_kept(server: RunningServer, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    fields: dict[str, Any] = {"model": "talks", "response_format": form, "max_tokens": 60, "temperature": 0}

    if stream:
        chunks = server.chat_chunks(**fields)
        text, reason = joined(chunks, "content"), chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = server.chat(**fields).json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]

    assert reason in ("stop", "length")
    assert set(json.loads(text)) == {"name", "age"}


def test_a_forced_function_is_called(server: RunningServer) -> None:
    named = {"type": "function", "function": {"name": "clock"}}

    fields = {"tools": TOOLS, "tool_choice": named, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 300}

    (choice,) = server.chat(model="talks", **fields).json()["choices"]

    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["clock"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


def test_a_required_call_that_is_cut_is_a_call_and_said_to_be_cut(
    noise_package: Callable[..., Path], serve: Callable[..., RunningServer]
) -> None:
    """The model hardly ever ends a text."""
    folder = noise_package(2, closing=-6.0)
    server = serve(ModelSpec(name="rambles", load=lambda: AsyncLLM(folder, threads=1), eager=False))
    function = {"name": "greet", "parameters": PERSON}
    common: dict[str, Any] = {"model": "rambles", "tool_choice": "required", "temperature": 0}

    tools = [{"type": "function", "function": function}]
    choice = server.chat(**common, tools=tools, max_tokens=150).json()["choices"][0]
    chunks = server.chat_chunks(**common, tools=tools, max_tokens=150)
    body = {**common, "input": "Hi", "tools": [{"type": "function", **function}], "max_output_tokens": 150}
    response = server.http.post("/v1/responses", json=body).json()

    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "length"
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    items = [item for item in response["output"] if item["type"] == "function_call"]
    assert calls
    assert items
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    for call in [*calls, *items]:
        assert call["name"] == "greet"
        Draft202012Validator(PERSON).validate(json.loads(call["arguments"]))


def test_the_official_client_parses_an_object(server: RunningServer) -> None:
    openai = pytest.importorskip("openai")
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model="json", messages=[{"role": "user", "content": "who?"}], response_format=Person, temperature=0
        )

        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(
                model="json",
                messages=[{"role": "user", "content": "who?"}],
                response_format=Person,
                max_tokens=3,
            )

    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)


@pytest.mark.parametrize(
    "schema",
    [{"type": "strng"}, {"$ref": "#/nowhere"}, {"type": "string", "pattern": "("}, {"type": "object", "properties": 5}],
)
def test_a_schema_that_cannot_be_kept_is_refused(server: RunningServer, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    response = server.chat(model="json", response_format=form)

    assert response.status_code == 400, response.text
    assert server.chat(model="json").status_code == 200
