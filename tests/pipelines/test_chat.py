"""Chats with scripted models: reasoning, tools, answers of a form, and streams."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from onnx_genai import LLM, AsyncLLM, Choice, SamplingParams, errors, grammar
from tests.engine.processors import settled
from tests.models.packages import CHATML

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.content else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>\n' if enable_thinking }}{% endif %}"
)
TOOLS_PART = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
TOOLS_SHOWN = (
    f"{TOOLS_PART}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments}"
    " | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"enum": ["Paris", "Oslo"]},
                "days": {"type": "integer", "maximum": 9, "minimum": 0},
            },
            "required": ["place"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
HELLO = [{"role": "user", "content": "Hi"}]
GREEDY = SamplingParams(max_new_tokens=300, temperature=0)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Paris"}}\n</tool_call>'

Open = Callable[..., LLM]


@pytest.fixture
def scripted(scripted_package: Callable[..., Path]) -> Any:
    """``scripted(script, **options)``: a model that says it."""
    with contextlib.ExitStack() as stack:
        yield lambda script, **options: stack.enter_context(LLM(scripted_package(script, **options), threads=1))


@pytest.fixture
def noise(noise_package: Callable[..., Path]) -> Any:
    """``noise(seed, **options)``: a model that writes at random."""
    with contextlib.ExitStack() as stack:
        yield lambda seed, **options: stack.enter_context(LLM(noise_package(seed, **options), threads=1))


def sampled(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 400, "temperature": 1.0, "seed": seed, **more})


def joined(model: LLM, messages: Sequence[Mapping[str, Any]], params: SamplingParams, **options: Any) -> list[Choice]:
    """The choices that the pieces of a stream join to."""
    parts: dict[int, dict[str, Any]] = {}
    for chunk in model.chat_stream(messages, params, **options):
        part = parts.setdefault(chunk.index, {"text": "", "reasoning": "", "calls": [], "ids": [], "finish": None})
        assert part["finish"] is None
        part["text"] += chunk.content
        part["reasoning"] += chunk.reasoning
        part["calls"] += chunk.tool_calls
        part["ids"] += chunk.token_ids
        part["finish"] = chunk.finish_reason
    return [
        Choice(
            index=index,
            text=part["text"],
            reasoning=part["reasoning"],
            tool_calls=tuple(part["calls"]),
            token_ids=tuple(part["ids"]),
            finish_reason=part["finish"],
        )
        for index, part in sorted(parts.items())
    ]


def same(streamed: Choice, whole: Choice) -> None:
    assert streamed.text == whole.text
    assert streamed.reasoning == (whole.reasoning or "")
    assert [dataclasses.replace(call, id="") for call in streamed.tool_calls] == [
        dataclasses.replace(call, id="") for call in whole.tool_calls
    ]
    assert (streamed.token_ids, streamed.finish_reason) == (whole.token_ids, whole.finish_reason)


# Reasoning.


@pytest.mark.parametrize(
    ("script", "thinking", "reasoning", "text"),
    [
        ("<think>\nHm.\n</think>\n\nYes", False, "Hm.", "Yes"),
        ("Hm.\n</think>\n\nYes", True, "Hm.", "Yes"),
        ("Yes", False, None, "Yes"),
        ("<think></think>Yes", False, "", "Yes"),
        ("<think>\nNever ends", False, "Never ends", ""),
        ("Never ends", True, "Never ends", ""),
        ("A <b> </think", False, None, "A <b> </think"),
    ],
)
def test_reasoning_is_no_part_of_the_text(
    scripted: Open, script: str, thinking: bool, reasoning: str | None, text: str
) -> None:
    llm = scripted(script, chat_template=THINKING)
    options = {"template_kwargs": {"enable_thinking": thinking}}

    result = llm.chat(HELLO, GREEDY, **options)

    assert (result.reasoning, result.text) == (reasoning, text)
    same(joined(llm, HELLO, GREEDY, **options)[0], result.choices[0])


LETTER = "It is a tag that opens thoughts."
ALWAYS = THINKING.replace("{% if add_generation_prompt %}", "").removesuffix("{% endif %}")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "What does the <think> tag do?"}],
        [{"role": "user", "content": "<think>"}],
        [{"role": "system", "content": "Write <think>."}, {"role": "user", "content": "Why?"}],
        [*HELLO, {"role": "assistant", "content": "a <think> b"}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "<think>"}],
    ],
)
@pytest.mark.parametrize("template", [CHATML + "{# <think> </think> #}", THINKING, ALWAYS])
def test_a_mark_in_a_message_opens_no_reasoning(scripted: Open, template: str, messages: list[dict[str, str]]) -> None:
    llm = scripted(LETTER, chat_template=template)

    result = llm.chat(messages, GREEDY)

    assert (result.text, result.reasoning) == (LETTER, None)
    same(joined(llm, messages, GREEDY)[0], result.choices[0])


@pytest.mark.parametrize("template", [THINKING, ALWAYS])
@pytest.mark.parametrize("text", ["Hi", "a <think> b", "a </think> b"])
def test_a_mark_of_the_template_opens_reasoning_whatever_the_message_says(
    scripted: Open, template: str, text: str
) -> None:
    llm = scripted("Hm.</think>Yes", chat_template=template)

    result = llm.chat([{"role": "user", "content": text}], GREEDY, template_kwargs={"enable_thinking": True})

    assert (result.text, result.reasoning) == ("Yes", "Hm.")


def test_a_mark_in_a_message_leaves_the_grammar_of_the_answer(noise: Open) -> None:
    llm = noise(5, chat_template=CHATML + "{# <think> </think> #}")
    asking = [{"role": "user", "content": "What is <think>?"}]

    for seed in range(3):
        result = llm.chat(asking, sampled(seed), response_format=grammar.regex("[ab]{3}"))
        assert result.reasoning is not None or set(result.text) <= {"a", "b"}
        assert set(result.text) <= {"a", "b"}


def test_json_that_is_nested_deeper_than_python_goes_stays_text(scripted: Open) -> None:
    script = '{"a":' + "[" * 3000 + "]" * 3000 + "}"
    llm = scripted(script, context_length=8000)
    params = dataclasses.replace(GREEDY, max_new_tokens=7000)

    result = llm.chat(HELLO, params, response_format={"type": "json_object"})

    assert (result.text, result.choices[0].parsed) == (script, None)


NAMED_CALL = 'Action: ```json\n[{"tool_name": "get_time", "parameters": {}}]\n```'
WITH_TOOLS = CHATML + "{% if tools %}{{ tools | tojson }} write Action: ```json{% endif %}{# <thought> #}"


def with_templates(package: Path, folder: Path, *named: tuple[str, str]) -> Path:
    """A copy of the package, which other tests share, with a list of named templates."""
    shutil.copytree(package, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = [{"name": name, "template": text} for name, text in named]
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("named", [[("default", CHATML), ("tool_use", WITH_TOOLS)], [("tool_use", WITH_TOOLS)],
                                   [("rag", CHATML), ("tool_use", WITH_TOOLS)]])  # fmt: skip
def test_what_the_template_for_tools_says_is_seen(
    scripted_package: Callable[..., Path], tmp_path: Path, named: list[tuple[str, str]]
) -> None:
    folder = with_templates(scripted_package(f"<thought>Hm.</thought>{NAMED_CALL}"), tmp_path / "package", *named)
    with LLM(folder, threads=1) as llm:
        result = llm.chat(HELLO, GREEDY, tools=[TIME])

    assert [(call.name, call.arguments) for call in result.tool_calls] == [("get_time", "{}")]
    assert (result.text, result.reasoning) == ("", "Hm.")


def test_templates_without_a_default_are_named(scripted_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = with_templates(scripted_package("x"), tmp_path / "package", ("rag", CHATML), ("short", CHATML))
    with (
        LLM(folder, threads=1) as llm,
        pytest.raises(
            errors.PackageError, match=r"tokenizer_config\.json.*no template is named 'default'; there are: rag, short"
        ),
    ):
        llm.chat(HELLO, GREEDY)


@pytest.mark.parametrize("name", ["self", "control_texts", "messages"])
def test_names_that_templates_cannot_have_are_refused(scripted: Open, name: str) -> None:
    llm = scripted("x")

    for call in (llm.chat, llm.render):
        with pytest.raises(errors.InvalidArgumentError, match=f"template_kwargs has {name}"):
            call(HELLO, template_kwargs={name: ["x"]})


def test_answer_goes_into_the_history_without_its_thoughts(scripted: Open) -> None:
    llm = scripted("<think>Secret</think>Yes", chat_template=THINKING)
    result = llm.chat(HELLO, GREEDY)

    messages = [*HELLO, result.message, {"role": "user", "content": "Sure?"}]

    assert result.message == {"role": "assistant", "content": "Yes", "reasoning_content": "Secret"}
    assert "Secret" not in llm.render(messages)
    assert "Yes<|im_end|>" in llm.render(messages)


def test_marks_that_are_special_tokens_are_seen_and_others_are_not(scripted: Open) -> None:
    specials = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<other>")
    llm = scripted(f"<think>Hm</think><other>A{CALL}", chat_template=THINKING + TOOLS_PART, specials=specials)

    result = llm.chat(HELLO, GREEDY, tools=[WEATHER])

    assert (result.reasoning, result.text) == ("Hm", "A")
    assert [call.name for call in result.tool_calls] == ["get_weather"]
    same(joined(llm, HELLO, GREEDY, tools=[WEATHER])[0], result.choices[0])


# Tools.


def test_calls_are_parts_of_the_answer(scripted: Open) -> None:
    llm = scripted(f"Let me see.\n{CALL}\n{CALL}", chat_template=TOOLS_SHOWN)

    result = llm.chat(HELLO, GREEDY, tools=[WEATHER])

    assert result.text.strip() == "Let me see."
    assert [(call.index, call.name, json.loads(call.arguments)) for call in result.tool_calls] == [
        (0, "get_weather", {"place": "Paris"}),
        (1, "get_weather", {"place": "Paris"}),
    ]
    assert len({call.id for call in result.tool_calls}) == 2
    same(joined(llm, HELLO, GREEDY, tools=[WEATHER])[0], result.choices[0])


def test_result_of_a_tool_goes_round(scripted: Open) -> None:
    llm = scripted(CALL, chat_template=TOOLS_SHOWN)
    call = llm.chat(HELLO, GREEDY, tools=[WEATHER])
    message = call.message
    assert message["content"] is None

    text = llm.render(
        [*HELLO, message, {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "21 degrees"}],
        tools=[WEATHER],
    )

    assert '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Paris"}}\n</tool_call>' in text
    assert "<|im_start|>tool\n21 degrees" in text


@pytest.mark.parametrize(
    "script",
    [
        '<tool_call>\n{"name": "get_weather", "arguments": {"place": </tool_call>',
        "<tool_call>\nget_weather\n</tool_call>",
        '<tool_call>\n{"name": "get_weather"',
        "a <tool",
    ],
)
def test_malformed_calls_stay_text(scripted: Open, script: str) -> None:
    llm = scripted(script, chat_template=TOOLS_SHOWN)

    result = llm.chat(HELLO, GREEDY, tools=[WEATHER])

    assert (result.text, result.tool_calls) == (script, ())
    same(joined(llm, HELLO, GREEDY, tools=[WEATHER])[0], result.choices[0])


def test_calls_inside_reasoning_are_thoughts(scripted: Open) -> None:
    llm = scripted(f"<think>I could {CALL}</think>No", chat_template=THINKING)

    result = llm.chat(HELLO, GREEDY, tools=[WEATHER])

    assert (result.text, result.tool_calls) == ("No", ())
    assert result.reasoning == f"I could {CALL}"


def test_without_tools_calls_are_text(scripted: Open) -> None:
    llm = scripted(CALL, chat_template=TOOLS_SHOWN)

    assert llm.chat(HELLO, GREEDY).text == CALL
    none = llm.chat(HELLO, GREEDY, tools=[WEATHER], tool_choice="none")
    assert (none.text, none.tool_calls) == (CALL, ())
    assert none.prompt_token_ids == llm.chat(HELLO, GREEDY).prompt_token_ids


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be kind."}]])
def test_template_without_tools_gets_them_in_words(scripted: Open, system: list[dict[str, str]]) -> None:
    llm = scripted(CALL)
    messages = [*system, {"role": "user", "content": "Say get_weather"}]

    result = llm.chat(messages, GREEDY, tools=[WEATHER])

    prompt = llm.tokenizer.decode(list(result.prompt_token_ids), skip_special_tokens=False)
    assert json.dumps(WEATHER) in prompt
    assert "<tool_call>\n{" in prompt
    assert prompt.count("<|im_start|>system") == 1
    assert prompt.startswith("<|im_start|>system\n" + ("Be kind.\n\nYou can" if system else "You can"))
    assert [call.name for call in result.tool_calls] == ["get_weather"]


def test_template_without_a_system_role_gets_tools_from_the_user(scripted: Open) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    llm = scripted('{"name": "get_time", "parameters": {}}', chat_template=template)

    result = llm.chat(HELLO, GREEDY, tools=[TIME], tool_format="llama3_json")

    prompt = llm.tokenizer.decode(list(result.prompt_token_ids), skip_special_tokens=False)
    assert '"parameters": {...}' in prompt
    assert prompt.count("<|im_start|>") == 2
    assert [call.name for call in result.tool_calls] == ["get_time"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("parallel", [True, False])
def test_forced_calls_are_right(noise: Open, choice: Any, parallel: bool) -> None:
    llm = noise(10, chat_template=TOOLS_SHOWN)
    options = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": parallel}
    names = set()
    for seed in range(12):
        result = llm.chat(HELLO, sampled(seed, n=2), **options)
        streamed = joined(llm, HELLO, sampled(seed, n=2), **options)
        for one, whole in zip(streamed, result.choices, strict=True):
            same(one, whole)
            if whole.finish_reason != "stop":
                continue
            assert whole.text == ""
            assert 1 <= len(whole.tool_calls) <= (16 if parallel else 1)
            for call in whole.tool_calls:
                names.add(call.name)
                arguments = json.loads(call.arguments)
                if call.name == "get_time":
                    assert arguments == {}
                else:
                    assert arguments["place"] in ("Paris", "Oslo")
                    assert set(arguments) <= {"place", "days"}
    assert names == ({"get_weather", "get_time"} if choice == "required" else {"get_weather"})


def test_forced_call_behind_reasoning(noise: Open) -> None:
    llm = noise(5, chat_template=THINKING + "{{ tools | tojson if tools }}", specials=("</think>",), closing=2.0)
    finished = 0
    for seed in range(10):
        result = llm.chat(
            HELLO,
            sampled(seed, max_new_tokens=1500, logit_bias={llm.tokenizer.special_tokens["</think>"]: 4.0}),
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            template_kwargs={"enable_thinking": True},
        )
        if result.finish_reason == "stop":
            finished += 1
            assert result.reasoning is not None
            assert [call.name for call in result.tool_calls] == ["get_weather"]
            assert result.text == ""
    assert finished >= 5


def test_begun_calls_are_finished_right(noise: Open) -> None:
    llm = noise(6, chat_template=TOOLS_SHOWN, specials=("<tool_call>", "</tool_call>"))
    called = 0
    for seed in range(10):
        params = sampled(seed, logit_bias={llm.tokenizer.special_tokens["<tool_call>"]: 3.0})
        result = llm.chat(HELLO, params, tools=[WEATHER], enforce_tool_calls=True)
        if result.finish_reason == "stop":
            called += len(result.tool_calls)
            assert "<tool_call>" not in result.text
    assert called > 3


# The form of the answer.


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


# Errors.


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


def test_package_without_a_template_says_so(scripted: Open) -> None:
    with pytest.raises(errors.UnsupportedError, match="no chat template"):
        scripted("Yes", chat_template=None).chat(HELLO)


# Streams.


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
