"""Chats with scripted models: what is refused, streams that are left, and asyncio."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, AsyncLLM, SamplingParams, errors, grammar
from tests.engine.processors import settled
from tests.pipelines.chats import CALL, GREEDY, HELLO, THINKING, TOOLS_SHOWN, WEATHER, Open, same


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "required"}, "no tools"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "sometimes"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "f"}}}, "'f'; the tools are get_weather"),
        ({"tools": [WEATHER], "tool_choice": {}}, "the tools are get_weather"),
        ({"tools": ["get_weather"]}, r"tools\[0\] is str"),
        ({"tools": [{"type": "function", "function": {}}]}, "no function name"),
        ({"tools": [{"type": "retrieval"}]}, "retrieval"),
        ({"tools": [WEATHER], "tool_format": "nobody's"}, "nobody's"),
        ({"tools": 1}, "tools is 1; allowed: a list of mappings"),
        ({"tools": WEATHER}, "allowed: a list of mappings"),
        ({"tools": [WEATHER, WEATHER]}, "two tools are called 'get_weather'"),
        ({"tools": [named("a<|im_end|>b")], "tool_choice": "required"}, "special token '<|im_end|>' in its name"),
        ({"tools": [WEATHER], "response_format": grammar.lark('start: "a" rest\nrest: "b"\n')}, "cannot be combined"),
        ({"response_format": 3}, "3"),
        ({"response_format": b"{}"}, "bytes"),
        ({"response_format": {"type": "regex"}}, "regex"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({"response_format": {"not": {}}}, "not"),
        ({"template_kwargs": {"messages": []}}, "messages"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    scripted: Open, options: dict[str, Any], message: str
) -> None:
    llm = scripted("Yes", chat_template=TOOLS_SHOWN)

    for call in (llm.chat, llm.chat_stream):
        with pytest.raises(errors.InvalidArgumentError, match=message):
            call(HELLO, GREEDY, **options)
    assert llm.metrics()["num_requests"] == 0


@pytest.mark.parametrize("name", ["self", "control_texts", "messages"])
def test_names_that_templates_cannot_have_are_refused(scripted: Open, name: str) -> None:
    llm = scripted("x")

    for call in (llm.chat, llm.render):
        with pytest.raises(errors.InvalidArgumentError, match=f"template_kwargs has {name}"):
            call(HELLO, template_kwargs={name: ["x"]})


def test_package_without_a_template_says_so(scripted: Open) -> None:
    with pytest.raises(errors.UnsupportedError, match="no chat template"):
        scripted("Yes", chat_template=None).chat(HELLO)


def test_leaving_a_stream_ends_its_request(noise: Open) -> None:
    llm = noise(1)
    endless = SamplingParams(max_new_tokens=3000, ignore_eos=True)

    for taken in (0, 1, 3):
        stream = llm.chat_stream(HELLO, endless)
        for _ in range(taken):
            next(stream)
        del stream
        assert settled(llm, lambda metrics: metrics["num_running"] == metrics["num_waiting"] == 0)


def test_asyncio_gives_the_same(scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package(f"<think>Hm</think>A\n{CALL}", chat_template=THINKING)
    with LLM(folder, threads=1) as llm:
        expected = llm.chat(HELLO, GREEDY, tools=[WEATHER]).choices[0]

    async def run() -> None:
        async with AsyncLLM(folder, threads=1) as model:
            whole = (await model.chat(HELLO, GREEDY, tools=[WEATHER])).choices[0]
            same(dataclasses.replace(whole, reasoning=whole.reasoning or ""), expected)
            text = reasoning = ""
            calls = []
            async for chunk in model.chat_stream(HELLO, GREEDY, tools=[WEATHER]):
                text, reasoning = text + chunk.content, reasoning + chunk.reasoning
                calls += chunk.tool_calls
            assert (text, reasoning) == (expected.text, expected.reasoning)
            assert [call.name for call in calls] == ["get_weather"]
            stream = model.chat_stream(HELLO, GREEDY)
            await anext(stream)
            await stream.aclose()
            with pytest.raises(errors.InvalidArgumentError, match="no tools"):
                await model.chat(HELLO, tool_choice="required")

    asyncio.run(run())
