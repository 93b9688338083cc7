"""Chats with scripted models: reasoning and answer are told apart."""

from __future__ import annotations

import pytest

from onnx_genai import grammar
from tests.models.packages import CHATML
from tests.pipelines.chats import CALL, GREEDY, HELLO, THINKING, TOOLS_PART, WEATHER, Open, joined, same, sampled


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


def test_calls_inside_reasoning_are_thoughts(scripted: Open) -> None:
    llm = scripted(f"<think>I could {CALL}</think>No", chat_template=THINKING)

    result = llm.chat(HELLO, GREEDY, tools=[WEATHER])

    assert (result.text, result.tool_calls) == ("No", ())
    assert result.reasoning == f"I could {CALL}"
