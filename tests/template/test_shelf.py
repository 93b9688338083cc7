"""The shelf: templates in the style of the model families, rendered for conversations made up by hypothesis.

The prompt is the one that jinja2 gives with the settings of transformers, or both refuse.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hypothesis
import pytest
from hypothesis import strategies as st

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.template import ChatTemplate
from tests.template.reference import NOW, Refused, reference_render

SHELF = Path(__file__).with_name("shelf")
NAMES = sorted(path.stem for path in SHELF.glob("*.jinja"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
EXAMPLES = int(os.environ.get("ONNX_GENAI_SHELF_EXAMPLES", "25"))


@dataclass(frozen=True)
class Style:
    """What a template takes, read off its source by hand."""

    parts: bool = False
    none: bool = False
    arguments: Literal["any", "mapping", "text"] = "any"


STYLES = {
    "chatglm4": Style(parts=True),
    "command_r": Style(arguments="mapping"),
    "deepseek_r1": Style(none=True, arguments="text"),
    "functionary": Style(none=True, arguments="mapping"),
    "gemma3": Style(parts=True),
    "gpt_oss": Style(arguments="mapping"),
    "granite": Style(arguments="mapping"),
    "hermes_tools": Style(arguments="mapping"),
    "llama3_1_tools": Style(arguments="mapping"),
    "llama3_2": Style(parts=True),
    "mistral_v3_tools": Style(arguments="mapping"),
    "mistral_v7": Style(parts=True),
    "nemotron": Style(arguments="mapping"),
    "qwen2_5_tools": Style(arguments="mapping"),
}


def source_of(name: str) -> str:
    return (SHELF / f"{name}.jinja").read_text(encoding="utf-8")


# ------------------------------------------------------------------ conversations

WORDS = st.sampled_from(
    ["", " ", "\n", "Hi", "  two  ", "é😀", "<think>", "</think>", "<tool_response>", "{{ x }}", "'\"", "\\n", "/think"]
)
TEXTS = st.lists(WORDS | st.text(max_size=6), max_size=4).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "n", "é", "a b"]), VALUES, max_size=3)
SCHEMAS = st.sampled_from(
    [
        {},
        {"type": "object", "properties": {}},
        {
            "type": "object",
            "properties": {
                "z": {"type": "string", "description": "<é> & 'q'", "enum": ["a", "b"], "default": "a"},
                "a": {"type": ["number", "null"]},
                "l": {"type": "array", "items": {"type": "integer"}},
                "o": {"type": "object", "properties": {"i": {"oneOf": [{"type": "boolean"}, {"type": "string"}]}}},
            },
            "required": ["z"],
        },
    ]
)
TOOLS = st.lists(
    st.builds(
        lambda name, text, schema: {
            "type": "function",
            "function": {"name": name, "description": text, "parameters": schema},
        },
        st.sampled_from(["get_weather", "sum"]),
        TEXTS,
        SCHEMAS,
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def contents(draw: st.DrawFn) -> Any:
    text = draw(TEXTS)
    if not draw(st.integers(0, 3)):
        cut = draw(st.integers(0, len(text)))
        return [{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:]}]
    return text


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """System or not, turns, calls with their results; now and then out of order."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(contents())})
    for turn in range(draw(st.integers(1, 3))):
        if turn:
            answer: dict[str, Any] = {"role": "assistant", "content": draw(contents())}
            if draw(st.booleans()):
                answer["reasoning_content"] = draw(TEXTS)
            messages.append(answer)
        messages.append({"role": "user", "content": draw(contents())})
        if draw(st.integers(0, 2)) == 0:
            calls = []
            for number in range(draw(st.integers(1, 2))):
                arguments = draw(ARGUMENTS)
                function = {
                    "name": draw(st.sampled_from(["get_weather", "sum"])),
                    "arguments": json.dumps(arguments) if draw(st.booleans()) else arguments,
                }
                calls.append({"id": f"call0000{number}", "type": "function", "function": function})
            messages.append({"role": "assistant", "content": draw(st.none() | TEXTS), "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)})
    if draw(st.integers(0, 5)) == 0:
        messages.append(draw(st.sampled_from(messages)))
    return messages


KWARGS = st.fixed_dictionaries(
    {},
    optional={
        "enable_thinking": st.booleans(),
        "thinking": st.booleans(),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "date_string": TEXTS,
        "builtin_tools": st.just(["code_interpreter", "sum"]),
        "tools_in_user_message": st.booleans(),
        "python_tools": st.just(["def f(): pass"]),
        "controls": st.just({"citations": True}),
    },
)
DOCUMENTS = st.lists(st.fixed_dictionaries({"title": TEXTS, "text": TEXTS}), min_size=1, max_size=2)


def as_taken(messages: Sequence[dict[str, Any]], style: Style) -> list[dict[str, Any]]:
    """The conversation as a careful caller of transformers would write it for this template."""
    taken = []
    for message in messages:
        message = dict(message)
        content = message["content"]
        if isinstance(content, list) and not style.parts:
            message["content"] = "".join(part["text"] for part in content)
        if content is None and not style.none:
            message["content"] = ""
        if "tool_calls" in message:
            message["tool_calls"] = [
                {**call, "function": _function_as_taken(call["function"], style)} for call in message["tool_calls"]
            ]
        taken.append(message)
    return taken


def _function_as_taken(function: dict[str, Any], style: Style) -> dict[str, Any]:
    arguments = function["arguments"]
    if style.arguments == "mapping" and isinstance(arguments, str):
        arguments = json.loads(arguments)
    if style.arguments == "text" and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**function, "arguments": arguments}


@pytest.mark.parametrize("name", NAMES)
def test_shelf_given_any_conversation_gives_what_transformers_gives(name: str) -> None:
    source, style = source_of(name), STYLES.get(name, Style())
    template = ChatTemplate(source, **TOKENS, clock=lambda: NOW)
    prompts = 0

    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
    @hypothesis.given(conversations(), st.none() | TOOLS, st.none() | DOCUMENTS, st.booleans(), KWARGS)
    def check(messages: Any, tools: Any, documents: Any, prompt: bool, kwargs: dict[str, Any]) -> None:
        nonlocal prompts
        options = {"tools": tools, "documents": documents, "add_generation_prompt": prompt}
        variables = {**TOKENS, **kwargs, **options, "messages": as_taken(messages, style)}
        try:
            expected = reference_render(source, variables)
        except Refused:
            with pytest.raises(InvalidArgumentError):
                template.render(messages, **options, **kwargs)
        else:
            assert template.render(messages, **options, **kwargs) == expected
            prompts += 1

    check()

    assert prompts > 0


@pytest.mark.parametrize("name", NAMES)
def test_shelf_given_a_message_to_continue_ends_where_transformers_ends(name: str) -> None:
    source, style = source_of(name), STYLES.get(name, Style())
    template = ChatTemplate(source, **TOKENS, clock=lambda: NOW)
    mark = "MARK OF THE END "

    @hypothesis.settings(max_examples=5, deadline=None, database=None, derandomize=True)
    @hypothesis.given(conversations(), TEXTS)
    def check(messages: Any, text: str) -> None:
        final = {"role": "assistant", "content": text}
        options = {"tools": None, "documents": None, "add_generation_prompt": False}
        marked = [*as_taken(messages, style), {**final, "content": text + mark}]
        try:
            whole = reference_render(source, {**TOKENS, **options, "messages": marked})
        except Refused:
            whole = ""
        place = whole.rfind(mark.strip())
        if place < 0:
            with pytest.raises(InvalidArgumentError):
                template.render([*messages, final], continue_final_message=True)
        else:
            expected = whole[:place] if whole.startswith(mark, place) else whole[:place].rstrip()
            assert template.render([*messages, final], continue_final_message=True) == expected

    check()


def test_shelf_has_the_families() -> None:
    assert len(NAMES) >= 25
    assert set(STYLES) <= set(NAMES)
