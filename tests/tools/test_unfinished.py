"""Calls that were begun and not ended: cut, they are hidden; ended by the model, they are text; never calls."""

from __future__ import annotations

import pytest

from onnx_genai.tools import FORMATS, Call, ToolCallParser
from tests.tools.test_formats import EXAMPLES, IDS, TOOLS, Example, mutations

Parts = tuple[str, tuple[Call, ...], str, int]


def parts(pieces: list[str], form: str, *, was_cut: bool) -> Parts:
    """Content, calls, what was not ended, and how much was malformed."""
    parser = ToolCallParser(FORMATS[form], TOOLS)
    items = [item for piece in pieces for item in parser.feed(piece)] + parser.finish(was_cut=was_cut)
    content = "".join(item for item in items if isinstance(item, str))
    return content, tuple(item for item in items if isinstance(item, Call)), parser.unfinished, parser.malformed


WITH_CALLS = [(example, name) for example, name in zip(EXAMPLES, IDS, strict=True) if example.calls]


@pytest.mark.parametrize("example", [each for each, _ in WITH_CALLS], ids=[name for _, name in WITH_CALLS])
def test_of_a_call_that_is_cut_anywhere_nothing_shows(example: Example) -> None:
    whole = parts([example.text], example.form, was_cut=False)
    for cut in range(len(example.text)):
        text = example.text[:cut]
        content, calls, unfinished, malformed = parts([text], example.form, was_cut=True)

        assert parts(list(text), example.form, was_cut=True) == (content, calls, unfinished, malformed), cut
        if any(f"a{mark}" in text.replace(" ", "") for mark in ("</tool_call>", '"b",c:1<end_function_call>')):
            continue  # an argument that holds the closing mark looks like a call that was ended, and wrong
        shown = content.removesuffix(_words_of_an_opener(example.form, content))
        assert example.content.startswith(shown) or not shown.strip(), (cut, content)
        assert calls == whole[1][: len(calls)], "no call but those that were whole"
        assert malformed == 0


def _words_of_an_opener(form: str, content: str) -> str:
    """The end of a text that may be the beginning of an opener made of words, and so may be words: it stays."""
    for opener in ("functools[", "Action: ```", "```"):
        if any(known.startswith(opener) for known in FORMATS[form].openers):
            for size in range(len(opener), 0, -1):
                if content.endswith(opener[:size]) and opener[:size] != "functools[":
                    return opener[:size]
    return ""


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1}'),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>\n<function=now>\n<parameter=a>\n1"),
        ("hermes", "<tool_call><func"),
        ("hermes", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n<para"),
        ("mistral", '[TOOL_CALLS][{"name": "now"}, {"nam'),
        ("mistral", "[TOOL_CALLS]now[ARGS]"),
        ("mistral", '[TOOL_CALLS]now{"a"'),
        ("deepseek", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜to"),
        ("command_r", 'Action: ```json\n[{"tool_name": "no'),
        ("phi4", '<|tool_call|>[{"name": "now"'),
        ("functools", 'functools[{"name": "now"'),
        ("granite", '<|tool_call|>[{"name": "now"'),
        ("gemma", "```tool_code\nnow()"),
        ("function_gemma", "<start_function_call>call:now{a:<escape>x"),
        ("llama3_json", '{"name": "now", "parameters": {'),
        ("llama3_json", '{ "type": "function", "name": "get_w'),
        ("llama3_json", '<|python_tag|>{"na'),
        ("llama3_json", '<|python_tag|>brave_search.call(query="c'),
        ("pythonic", "[now(), get_weather(city="),
        ("pythonic", "[get_w"),
        ("channels", "<|channel|>comment"),
        ("channels", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"),
        ("channels", '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": 1'),
    ],
)
@pytest.mark.parametrize("before", ["", "\n", "Well. "])
@pytest.mark.parametrize("was_cut", [False, True])
def test_a_call_that_the_answer_ends_in_is_hidden_if_it_was_cut_and_else_text(
    form: str, text: str, before: str, was_cut: bool
) -> None:
    if before.strip() and text[0] in "{[" and form in ("llama3_json", "pythonic"):
        pytest.skip("such a call is the whole answer")

    found = parts([before + text], form, was_cut=was_cut)

    hidden = (before if before.strip() else "", (), text, 0)
    assert found == (hidden if was_cut else (before + text, (), "", 1))
    assert parts(list(before + text), form, was_cut=was_cut) == found


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call> what is this"),
        ("hermes", "<tool_call><b>bold</b>"),
        ("functools", "You may use functools"),
        ("functools", "You may use functools now"),
        ("llama3_json", '{"name": "Bob", "par'),
        ("llama3_json", '{"answer": 4'),
        ("llama3_json", "<|python_tag|>import os"),
        ("pythonic", "[a link](http://x"),
        ("pythonic", '[rm(path="/"'),
        ("gemma", "```python\nnow()\n```"),
        ("command_r", "Action"),
        ("mistral", "[TOOL_CALLS] are what"),
        ("mistral", "[TOOL_CALLS]now[0] is"),
        ("hermes", "a call begins with `<tool_call>{` and I can explain"),
        ("hermes", "`<tool_call><function=x>` in XML form. More prose"),
        ("hermes", "in `<tool_call>`"),
        ("hermes", '<tool_call>{"name": "now", "arguments": [1]}'),
        ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_'),
        ("hermes", '<tool_call>{"name": 3, '),
        ("hermes", '<tool_call>{"name": "now" is'),
        ("hermes", "<tool_call><function=now><parameter=a>1</parameter> and"),
        ("gemma", "Gemma writes ```tool_code before its calls. Then"),
        ("gemma", "```tool_code\nYou write calls here"),
        ("functools", "Use functools[ by mistake and the rest"),
        ("functools", "Use functools[0, 1"),
        ("function_gemma", "The mark is <start_function_call> and"),
        ("function_gemma", "<start_function_call>call:now and"),
        ("deepseek", "<｜tool▁call▁begin｜>is\nwhat"),
        ("llama3_json", '{"name": "get_weather" is what you write. More prose'),
        ("llama3_json", "<|python_tag|>print(1, "),
        ("pythonic", "[Note: a bracket"),
        ("phi4", "<|tool_call|>[1"),
        ("channels", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>so what"),
    ],
)
@pytest.mark.parametrize("was_cut", [False, True])
def test_what_was_not_begun_as_a_call_stays(form: str, text: str, was_cut: bool) -> None:
    content, calls, unfinished, _ = parts([text], form, was_cut=was_cut)

    assert (content, calls, unfinished) == (text, (), "")
    assert parts(list(text), form, was_cut=was_cut)[:3] == (text, (), "")


def test_a_call_without_its_closing_mark_is_text_where_text_follows() -> None:
    text = 'Hm.<tool_call>{"name": "now"} and then some'

    assert parts([text], "hermes", was_cut=False) == (text, (), "", 1)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "begins with `<tool_call>{` and"),
        ("hermes", "`<tool_call><function=x>` and"),
        ("hermes", '<tool_call>{"name": "now"} and'),
        ("gemma", "```tool_code before"),
        ("functools", "functools[ by"),
        ("function_gemma", "<start_function_call> and"),
        ("llama3_json", '{"name": "get_weather" is'),
        ("pythonic", "[Note"),
    ],
)
def test_what_can_be_no_call_is_streamed_as_soon_as_that_is_known(form: str, text: str) -> None:
    parser = ToolCallParser(FORMATS[form], TOOLS)

    shown = "".join(str(item) for char in text for item in parser.feed(char))

    assert shown == text


def test_a_call_behind_a_mark_in_prose_is_a_call() -> None:
    text = 'I write `<tool_call>{` first.\n<tool_call>{"name": "now"}</tool_call>'

    content, calls, unfinished, malformed = parts(list(text), "hermes", was_cut=False)

    assert (content, unfinished, malformed) == ("I write `<tool_call>{` first.\n", "", 1)
    assert [call.name for call in calls] == ["now"]


@pytest.mark.parametrize(("was_cut", "content"), [(False, "a <tool"), (True, "a ")])
def test_half_a_mark_is_one_only_where_more_would_have_come(was_cut: bool, content: str) -> None:
    assert parts(["a <tool"], "hermes", was_cut=was_cut)[0] == content


@pytest.mark.parametrize("was_cut", [False, True])
@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_broken_calls_in_prose_are_the_same_streamed_and_whole(example: Example, was_cut: bool) -> None:
    for mutant in mutations(f"{example.text} and `{example.text}", 20, seed=5):
        whole = parts([mutant], example.form, was_cut=was_cut)

        assert parts(list(mutant), example.form, was_cut=was_cut) == whole, mutant
        assert was_cut or whole[2] == "", mutant
