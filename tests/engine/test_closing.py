"""Answers that run out of room under a grammar: they are cut, but what is there is whole."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from onnx_genai import LLM, SamplingParams, grammar
from onnx_genai.engine import RequestOptions
from tests.grammar.walk import object_schema

PROMPT = "Say something."
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/node",
}
SHORTEST: list[tuple[dict[str, Any], str]] = [
    (object_schema(name={"type": "string"}, ok={"type": "boolean"}), '{"name":"","ok":true}'),
    (object_schema(a=object_schema(b=object_schema(c={"type": "string"}))), '{"a":{"b":{"c":""}}}'),
    (object_schema(tags={"type": "array", "items": {"type": "string"}, "minItems": 3}), '{"tags":["","",""]}'),
    (object_schema(n={"type": "array", "items": {"type": "number"}, "minItems": 4}), '{"n":[1,1,1,1]}'),
    (object_schema(kind={"enum": ["alpha", "be", "gamma"]}, text={"type": "string"}), '{"kind":"be","text":""}'),
    (object_schema(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}), '{"code":"ABC-1234"}'),
    (object_schema(text={"type": "string", "minLength": 12}), '{"text":"aaaaaaaaaaaa"}'),
    (object_schema(age={"type": "integer", "minimum": 100}, more={"type": "string"}), '{"age":100,"more":""}'),
    (object_schema(size={"type": "number", "minimum": 0.25, "maximum": 0.5}), '{"size":0.5}'),
    (object_schema(part={"type": "integer", "multipleOf": 7, "minimum": 50}), '{"part":56}'),
    ({"anyOf": [object_schema(big={"type": "string", "minLength": 30}), object_schema(x={"type": "null"})]},
     '{"x":null}'),
    ({"type": "object", "properties": {"may": {"type": "string"}, "must": {"type": "integer"}}, "required": ["must"]},
     '{"must":1}'),
    ({"type": "object"}, "{}"),
    ({"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 2}, "minItems": 2},
     '[["",""],["",""]]'),
    (TREE, '{"v":1}'),
]  # fmt: skip
"""Schemas, and a shortest text of each."""


HARD_TO_END: list[dict[str, Any]] = [
    *({"type": "string", "format": name} for name in ("email", "date-time", "time", "duration", "uri", "ipv4", "uuid")),
    {"type": "string", "pattern": "^[A-Z][a-z]+ [A-Z][a-z]+$"},
    {"type": "string", "pattern": "^\\w+ \\w+$"},
    {"type": "integer", "multipleOf": 5},
    {"type": "integer", "multipleOf": 1000, "minimum": 1},
    {"enum": ["New York", "Los Angeles"]},
]
"""Values whose begin says little of how they can end."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": object_schema(city={"type": "string"}, days={"type": "integer", "minimum": 1}),
    },
}
HELLO = [{"role": "user", "content": "How is the weather in Oslo?"}]


@pytest.fixture(scope="module")
def llm(noise_package: Callable[..., Path]) -> Iterator[LLM]:
    """Ends texts now and then."""
    with LLM(noise_package(1), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def rambling(noise_package: Callable[..., Path]) -> Iterator[LLM]:
    """Hardly ever ends a text or a list."""
    with LLM(noise_package(2, closing=-6.0), threads=1) as model:
        yield model


def sampled(seed: int, count: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": count, "temperature": 1.0, "seed": seed, **more})


def num_tokens(model: LLM, text: str) -> int:
    return len(model.tokenizer.encode(text, add_special_tokens=False))


def problems(schema: dict[str, Any], texts: Iterable[str]) -> list[str]:
    check = Draft202012Validator(schema)
    out = []
    for text in texts:
        try:
            check.validate(json.loads(text))
        except (ValueError, ValidationError) as error:
            out.append(f"{text!r}: {error}")
    return out


@pytest.mark.parametrize(("schema", "shortest"), SHORTEST, ids=[text for _, text in SHORTEST])
def test_every_answer_with_room_for_an_end_validates(rambling: LLM, schema: dict[str, Any], shortest: str) -> None:
    assert not problems(schema, [shortest])
    least = num_tokens(rambling, shortest)
    counts = (least, least + 1, least + 2, least + 5, least + 11, least + 40, 190, 300)
    params = [sampled(seed, count) for count in counts for seed in range(6)]

    results = rambling.generate([PROMPT] * len(params), params, grammar=grammar.json_schema(schema))

    assert not problems(schema, [result.text for result in results])
    assert {result.finish_reason for result in results} <= {"length", "stop"}
    assert all(result.finish_reason == "stop" for result in results if len(result.token_ids) < least)


@pytest.mark.parametrize(("schema", "shortest"), SHORTEST, ids=[text for _, text in SHORTEST])
def test_answer_that_ends_by_itself_is_left_alone(llm: LLM, schema: dict[str, Any], shortest: str) -> None:
    """With exactly the room that it takes, and a little more."""
    spec = grammar.json_schema(schema)
    free = llm.generate([PROMPT] * 30, [sampled(seed, 600) for seed in range(30)], grammar=spec)
    ended = [seed for seed in range(30) if free[seed].finish_reason == "stop"]
    assert len(ended) >= 25

    for more in (0, 1, 3):
        params = [sampled(seed, len(free[seed].token_ids) + more) for seed in ended]
        exact = llm.generate([PROMPT] * len(ended), params, grammar=spec)

        found = [(result.token_ids, result.finish_reason) for result in exact]
        assert found == [(free[seed].token_ids, "stop") for seed in ended]


@pytest.mark.parametrize("item", HARD_TO_END, ids=json.dumps)
def test_answer_with_room_is_left_alone_where_ends_are_hard_to_find(llm: LLM, item: dict[str, Any]) -> None:
    """An empty list would always be an end."""
    spec = grammar.json_schema({"type": "array", "items": item})
    free = llm.generate([PROMPT] * 30, [sampled(seed, 600) for seed in range(30)], grammar=spec)
    ended = [seed for seed in range(30) if free[seed].finish_reason == "stop"]
    assert len(ended) >= 20

    for more in (30, 80, 160):
        params = [sampled(seed, len(free[seed].token_ids) + more) for seed in ended]
        again = llm.generate([PROMPT] * len(ended), params, grammar=spec)

        found = [(result.token_ids, result.finish_reason) for result in again]
        assert found == [(free[seed].token_ids, "stop") for seed in ended]


def test_cut_answer_is_cut_however_it_ends(rambling: LLM) -> None:
    schema, shortest = SHORTEST[0]

    result = rambling.generate(PROMPT, sampled(1, 60, n=4), grammar=grammar.json_schema(schema))

    assert [choice.finish_reason for choice in result.choices] == ["length"] * 4
    assert len({choice.text for choice in result.choices}) == 4
    assert not problems(schema, [choice.text for choice in result.choices])
    assert all(50 <= len(choice.token_ids) <= 60 for choice in result.choices)
    assert num_tokens(rambling, shortest) < 50


def test_too_little_room_for_any_end_leaves_the_answer_cut(rambling: LLM) -> None:
    schema, shortest = SHORTEST[0]
    count = num_tokens(rambling, shortest) - 1

    result = rambling.generate(PROMPT, sampled(1, count), grammar=grammar.json_schema(schema))

    assert result.finish_reason == "length"
    assert len(result.token_ids) == count
    assert problems(schema, [result.text])


def test_end_of_the_context_is_an_end_of_the_room(noise_package: Callable[..., Path]) -> None:
    schema, _ = SHORTEST[0]
    with LLM(noise_package(2, closing=-6.0, context_length=64), threads=1) as model:
        result = model.generate(PROMPT, sampled(1, 500), grammar=grammar.json_schema(schema))

    assert result.finish_reason == "length"
    assert not problems(schema, [result.text])


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": True},
        {"temperature": 0.0},
        {"min_new_tokens": 50},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"stop": ["no such text"]},
        {"mirostat": 2},
        {"ignore_eos": True},
    ],
    ids=lambda more: next(iter(more)),
)
def test_every_setting_leaves_whole_answers(rambling: LLM, more: dict[str, Any]) -> None:
    schema, _ = SHORTEST[2]

    params = [sampled(seed, 50 + seed, **more) for seed in range(6)]
    results = rambling.generate([PROMPT] * 6, params, grammar=grammar.json_schema(schema))

    assert not problems(schema, [result.text for result in results])
    assert [result.finish_reason for result in results] == ["length"] * 6
    for result in results:
        if result.logprobs is not None:
            assert [each.token_id for each in result.logprobs] == list(result.token_ids)


def test_stop_string_in_what_closes_ends_the_answer(rambling: LLM) -> None:
    schema, _ = SHORTEST[0]

    result = rambling.generate(PROMPT, sampled(1, 60, stop=['"ok"']), grammar=grammar.json_schema(schema))

    assert result.finish_reason == "stop"
    assert result.choices[0].stop_reason == '"ok"'


def test_stream_joins_to_the_answer_and_validates(rambling: LLM) -> None:
    schema, _ = SHORTEST[1]
    whole = rambling.generate(PROMPT, sampled(4, 50), grammar=grammar.json_schema(schema))

    chunks = list(rambling.stream(PROMPT, sampled(4, 50), grammar=grammar.json_schema(schema)))

    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[-1].finish_reason == "length"
    assert not problems(schema, [whole.text])


def test_answer_that_is_preempted_again_and_again_closes_all_the_same(rambling: LLM) -> None:
    schema, _ = SHORTEST[1]
    spec = grammar.json_schema(schema)
    expected = rambling.generate([PROMPT] * 6, [sampled(seed, 48) for seed in range(6)], grammar=spec)
    ids, options = rambling.tokenizer.encode(PROMPT), RequestOptions(grammar=spec)
    generations = [rambling.engine.submit(ids, sampled(seed, 48), options) for seed in range(6)]
    draw = random.Random(3)

    texts = [""] * 6
    open_ = dict(enumerate(iter(generation) for generation in generations))
    while open_:
        seed = draw.choice(list(open_))
        rambling.engine.preempt(generations[seed])
        chunk = next(open_[seed], None)
        if chunk is None:
            del open_[seed]
        else:
            texts[seed] += chunk.text

    assert texts == [result.text for result in expected]
    assert not problems(schema, texts)


@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        (grammar.regex("(ab)*c"), "(ab)*c"),
        (grammar.regex(r"\[[a-z]+(, [a-z]+)*\]"), r"\[[a-z]+(, [a-z]+)*\]"),
        (grammar.regex("[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z ]*!)?"), "[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z ]*!)?"),
        (grammar.lark('start: "(" word+ ")"\nword: /[a-z]+/ ";"'), r"\(([a-z]+;)+\)"),
    ],
)
def test_other_grammars_end_as_well(rambling: LLM, spec: grammar.GrammarSpec, pattern: str) -> None:
    params = [sampled(seed, count) for count in (12, 13, 20, 41) for seed in range(5)]

    results = rambling.generate([PROMPT] * len(params), params, grammar=spec)

    for result in results:
        assert re.fullmatch(pattern, result.text), result.text


@pytest.mark.parametrize("special", [(), ("<tool_call>", "</tool_call>")], ids=["text", "special"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
def test_forced_call_that_is_cut_is_a_call(
    noise_package: Callable[..., Path], special: tuple[str, ...], choice: Any
) -> None:
    with LLM(noise_package(2, closing=-6.0, specials=special), threads=1) as model:
        for seed in range(8):
            params = sampled(seed, 130 + seed)
            result = model.chat(HELLO, params, tools=[WEATHER], tool_choice=choice, tool_format="hermes")

            assert result.finish_reason == "length"
            assert result.text == ""
            assert len(result.tool_calls) >= 1
            schema = WEATHER["function"]["parameters"]
            assert not problems(schema, [call.arguments for call in result.tool_calls])


def test_call_that_the_model_began_is_closed(noise_package: Callable[..., Path]) -> None:
    """Calls are not required, but enforced once they have begun."""
    cut = 0
    with LLM(noise_package(2, closing=-6.0, specials=("<tool_call>", "</tool_call>")), threads=1) as model:
        begin = {model.tokenizer.special_tokens["<tool_call>"]: 9.0}
        for seed in range(12):
            params = sampled(seed, 100 + 7 * seed, logit_bias=begin)
            result = model.chat(HELLO, params, tools=[WEATHER], tool_format="hermes", enforce_tool_calls=True)

            cut += result.finish_reason == "length" and len(result.tool_calls) > 0
            assert "<tool_call>" not in result.text
            schema = WEATHER["function"]["parameters"]
            assert not problems(schema, [call.arguments for call in result.tool_calls])
    assert cut >= 6


@pytest.mark.parametrize("special", [True, False])
def test_thoughts_end_in_time_for_the_answer(noise_package: Callable[..., Path], special: bool) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}"
    )
    schema, _ = SHORTEST[0]
    marks = {"specials" if special else "added": ("<think>", "</think>")}
    with LLM(noise_package(2, closing=-6.0, chat_template=template, **marks), threads=1) as model:
        for seed in range(6):
            result = model.chat(HELLO, sampled(seed, 60 + seed), response_format=schema)

            assert result.finish_reason == "length"
            assert result.reasoning is not None
            assert not problems(schema, [result.text]), (seed, result.token_ids)
