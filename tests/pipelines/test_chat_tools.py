"""Chats with scripted models: tools are offered, called and answered."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, errors
from tests.models.packages import CHATML
from tests.pipelines.chats import CALL, GREEDY, HELLO, THINKING, TIME, TOOLS_SHOWN, WEATHER, Open, joined, same, sampled


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
        "a <tool",
    ],
)
def test_malformed_calls_stay_text(scripted: Open, script: str) -> None:
    llm = scripted(script, chat_template=TOOLS_SHOWN)

    result = llm.chat(HELLO, GREEDY, tools=[WEATHER])

    assert (result.text, result.tool_calls) == (script, ())
    assert result.choices[0].malformed_calls == script.count("</tool_call>")
    assert result.choices[0].unfinished_call == ""
    same(joined(llm, HELLO, GREEDY, tools=[WEATHER])[0], result.choices[0])


def test_a_call_that_is_cut_is_neither_text_nor_a_call(scripted: Open) -> None:
    llm = scripted('Hm. <tool_call>\n{"name": "get_weather", "argu', chat_template=TOOLS_SHOWN)
    params = dataclasses.replace(GREEDY, max_new_tokens=20)

    (choice,) = llm.chat(HELLO, params, tools=[WEATHER]).choices
    last = list(llm.chat_stream(HELLO, params, tools=[WEATHER]))[-1]

    assert (choice.text, choice.tool_calls, choice.malformed_calls) == ("Hm. ", (), 0)
    assert choice.finish_reason == "length"
    assert choice.unfinished_call == last.unfinished_call
    assert choice.unfinished_call.startswith("<tool_call>\n{")
    same(joined(llm, HELLO, params, tools=[WEATHER])[0], choice)


@pytest.mark.parametrize(
    "script",
    [
        'Hm. <tool_call>\n{"name": "get_weather", "argu',
        "A call begins with `<tool_call>{` and so on.",
        "The mark is <tool_call>",
    ],
)
def test_a_call_that_the_model_does_not_end_is_text(scripted: Open, script: str) -> None:
    llm = scripted(script, chat_template=TOOLS_SHOWN)

    (choice,) = llm.chat(HELLO, GREEDY, tools=[WEATHER]).choices

    assert (choice.text, choice.tool_calls, choice.finish_reason) == (script, (), "stop")
    assert (choice.unfinished_call, choice.malformed_calls) == ("", 1)
    same(joined(llm, HELLO, GREEDY, tools=[WEATHER])[0], choice)


def test_without_tools_calls_are_text(scripted: Open) -> None:
    llm = scripted(CALL, chat_template=TOOLS_SHOWN)

    assert llm.chat(HELLO, GREEDY).text == CALL
    none = llm.chat(HELLO, GREEDY, tools=[WEATHER], tool_choice="none")
    assert (none.text, none.tool_calls) == (CALL, ())
    assert none.prompt_token_ids == llm.chat(HELLO, GREEDY).prompt_token_ids


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
