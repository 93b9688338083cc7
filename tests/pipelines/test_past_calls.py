"""Calls in earlier answers reach the model, whether or not its chat template knows calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM
from onnx_genai.pipelines.chat import ChatRequest
from tests.models.packages import CHATML

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def talk(**answer: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", **answer},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]


def prompt(llm: LLM, messages: list[dict[str, Any]]) -> str:
    return llm.tokenizer.decode(llm.encode_chat(messages), skip_special_tokens=False)


@pytest.mark.parametrize(
    ("content", "shown"), [(None, WRITTEN), ("", WRITTEN), ("Let me look.", f"Let me look.\n{WRITTEN}")]
)
def test_template_that_knows_no_calls_gets_them_as_text(
    scripted_package: Callable[..., Path], content: str | None, shown: str
) -> None:
    with LLM(scripted_package("x"), threads=1) as llm:
        assert f"assistant\n{shown}<|im_end|>" in prompt(llm, talk(content=content, tool_calls=[CALL]))


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city":"Oslo"}'])
def test_arguments_may_be_an_object_or_its_text(scripted_package: Callable[..., Path], arguments: object) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    with LLM(scripted_package("x"), threads=1) as llm:
        assert WRITTEN in prompt(llm, talk(content=None, tool_calls=[call]))


def test_template_that_writes_calls_is_left_alone(scripted_package: Callable[..., Path]) -> None:
    template = CHATML.replace(
        "message['content']", "(message['content'] or '') + ((message.get('tool_calls') or []) | length | string)"
    )
    with LLM(scripted_package("x", chat_template=template), threads=1) as llm:
        found = prompt(llm, talk(content="", tool_calls=[CALL]))

    assert "assistant\n1<|im_end|>" in found
    assert "tool_call" not in found


def test_messages_without_calls_are_rendered_as_they_are(scripted_package: Callable[..., Path]) -> None:
    with LLM(scripted_package("x"), threads=1) as llm:
        assert prompt(llm, talk(content="Fine.", tool_calls=[])) == prompt(llm, talk(content="Fine."))


def test_tools_are_described_beside_calls_of_earlier_answers(scripted_package: Callable[..., Path]) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    with LLM(scripted_package("x"), threads=1) as llm:
        chat = llm.prepare_chat(talk(content=None, tool_calls=[CALL]), None, ChatRequest(tools=tuple(tools)))
        found = llm.tokenizer.decode(list(chat.prompt_ids), skip_special_tokens=False)

    assert "<tools>" in found
    assert found.count('{"city": "Oslo"}') == 1


@pytest.mark.parametrize("template", [CHATML, CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}"])
def test_render_shows_the_prompt_that_a_chat_computes(scripted_package: Callable[..., Path], template: str) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "description": "What it is like outside"}}]
    with LLM(scripted_package("x", chat_template=template), threads=1) as llm:
        for messages in (talk(content=None, tool_calls=[CALL]), [{"role": "user", "content": "Hi"}]):
            for given in (None, tools):
                text = llm.render(messages, tools=given)

                computed = llm.prepare_chat(messages, None, ChatRequest(tools=tuple(given or ()))).prompt_ids
                assert llm.tokenizer.decode(list(computed), skip_special_tokens=False) == text
                assert tuple(llm.encode_chat(messages, tools=given)) == computed
                assert ("outside" in text) == (given is not None)
                assert ("Oslo" in text) == (len(messages) > 1)
