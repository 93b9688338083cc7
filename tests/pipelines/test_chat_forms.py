"""Chats with scripted models: answers of a form."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from onnx_genai import SamplingParams, grammar
from tests.pipelines.chats import CALL, GREEDY, HELLO, THINKING, TOOLS_SHOWN, WEATHER, Open, sampled


class City(BaseModel):
    name: str
    size: int


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Pair(TypedDict):
    first: str
    second: int


@pytest.mark.parametrize(
    ("form", "script", "parsed"),
    [
        (City, '{"name": "Oslo", "size": 7}', City(name="Oslo", size=7)),
        (Point, '{"x": 1, "y": -2}', Point(1, -2)),
        (Pair, '{"first": "a", "second": 2}', {"first": "a", "second": 2}),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        ({"type": "array", "items": {"type": "boolean"}}, "[true]", [True]),
        ({"type": "json_object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a"]}}}, '"a"', "a"),
        ({"type": "text"}, "free", None),
        (grammar.json_schema({"const": 3}), "3", 3),
        (grammar.regex("[0-9]+"), "12", None),
        (grammar.choice(["yes", "no"]), "no", None),
    ],
)
def test_answer_of_a_form_is_parsed(scripted: Open, form: Any, script: str, parsed: Any) -> None:
    llm = scripted(script)

    result = llm.chat(HELLO, GREEDY, response_format=form)

    assert (result.text, result.finish_reason) == (script, "stop")
    assert result.parsed == parsed
    assert type(result.parsed) is type(parsed)


def test_answer_that_is_cut_is_not_parsed(scripted: Open) -> None:
    result = scripted('{"name": "Oslo", "size": 7}').chat(
        HELLO, SamplingParams(max_new_tokens=5, temperature=0), response_format=City
    )

    assert (result.finish_reason, result.parsed) == ("length", None)


@pytest.mark.parametrize("form", [City, Point, Pair])
def test_types_have_no_other_properties(noise: Open, form: Any) -> None:
    llm = noise(7)
    for seed in range(10):
        result = llm.chat(HELLO, sampled(seed), response_format=form)
        if result.finish_reason == "stop":
            assert set(json.loads(result.text)) == set(form.__annotations__)
            assert result.parsed is not None


def test_answer_of_a_form_behind_reasoning(scripted: Open) -> None:
    llm = scripted('<think>One {"or</think>\n{"x": 1, "y": 2}', chat_template=THINKING)

    result = llm.chat(HELLO, GREEDY, response_format=Point)

    assert (result.reasoning, result.parsed) == ('One {"or', Point(1, 2))


@pytest.mark.parametrize("form", [Point, grammar.choice(["yes", "no"])])
def test_answer_is_of_the_form_or_a_call(noise: Open, scripted: Open, form: Any) -> None:
    options = {"tools": [WEATHER], "response_format": form}
    kinds = set()
    llm = noise(3, chat_template=TOOLS_SHOWN)
    for seed in range(20):
        result = llm.chat(HELLO, sampled(seed, logit_bias={llm.tokenizer.encode("<")[0]: 1.0}), **options)
        if result.finish_reason == "stop":
            kinds.add(bool(result.tool_calls))
            assert bool(result.tool_calls) != bool(result.text)
            assert form is not Point or bool(result.tool_calls) != isinstance(result.parsed, Point)
    assert kinds == {True, False}
    assert scripted(CALL, chat_template=TOOLS_SHOWN).chat(HELLO, GREEDY, **options).tool_calls


def test_json_that_is_nested_deeper_than_python_goes_stays_text(scripted: Open) -> None:
    script = '{"a":' + "[" * 3000 + "]" * 3000 + "}"
    llm = scripted(script, context_length=8000)
    params = dataclasses.replace(GREEDY, max_new_tokens=7000)

    result = llm.chat(HELLO, params, response_format={"type": "json_object"})

    assert (result.text, result.choices[0].parsed) == (script, None)
