"""Rendering: the families' templates, Hugging Face semantics, forms of content, and what is refused."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.errors import InvalidArgumentError, PackageError
from onnx_genai.template import ChatTemplate
from tests.template.families import CONVERSATION, SHELF, Entry

USER = [{"role": "user", "content": "Hi"}]
PRINT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def fixed_clock() -> datetime:
    return datetime(2024, 3, 5, 7, 8, 9)


def make(entry: Entry) -> ChatTemplate:
    return ChatTemplate(entry.source, bos_token=entry.bos_token, eos_token=entry.eos_token, clock=fixed_clock)


@pytest.mark.parametrize("name", sorted(SHELF))
def test_render_given_a_family_template_gives_its_prompt(name: str) -> None:
    entry = SHELF[name]

    assert make(entry).render(entry.messages) == entry.prompt


@pytest.mark.parametrize("name", sorted(SHELF))
def test_render_given_parts_gives_the_same_prompt_as_text(name: str) -> None:
    entry = SHELF[name]
    halves = [
        {**m, "content": [{"type": "text", "text": m["content"][:3]}, {"type": "text", "text": m["content"][3:]}]}
        for m in entry.messages
    ]

    assert make(entry).render(halves) == entry.prompt


def test_render_given_the_probe_constructs_gives_what_hugging_face_gives(shared_cases: Path) -> None:
    path = shared_cases / "ort-genai" / "chat-template-probe.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    probe = json.loads(path.read_text(encoding="utf-8"))
    different = []

    for case in probe["cases"]:
        template = ChatTemplate(case["template"], bos_token="<|endoftext|>", eos_token="<|endoftext|>")
        expected = case["jinja2_hf_settings"]
        try:
            text = template.render(probe["messages"])
        except (InvalidArgumentError, PackageError):
            text = "ERROR"
        # transformers adds the generation tag to the engine that this file was made with.
        wanted = "x" if case["name"] == "generation tag" else "ERROR" if expected.startswith("ERROR") else expected
        if text != wanted:
            different.append((case["name"], wanted, text))

    assert different == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a.b.c'.rsplit('.', 1)[0] }}", "a.b"),
        ("{{ '%s-%03d' % ('a', 7) }}", "a-007"),
        ("{{ 'o\\'neil x-y'.title() }}", "O'Neil X-Y"),
        (
            "{{ none }}|{{ true }}|{{ 1.0 }}|{{ [1, 'a', none] }}|{{ {'a': false} }}",
            "None|True|1.0|[1, 'a', None]|{'a': False}",
        ),
        ("{{ nothing }}|{{ messages[0].nothing }}|{{ messages[5] }}|", "|||"),
        ("{{ 7 / 2 }} {{ 7 // 2 }} {{ -7 % 3 }}", "3.5 3 2"),
        ("{{ 'x' in 'axb' }}{{ 'content' in messages[0] }}", "TrueTrue"),
        ("{{ {'b': 1, 'a': '<é>'} | tojson }}", '{"b": 1, "a": "<é>"}'),
        ("{{ [1.0] | tojson }}{{ {'a': 1} | tojson(indent=2) }}", '[1.0]{\n  "a": 1\n}'),
        ("{{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }}", '{"a":1,"b":2}'),
        ("{{ 'ab' is sequence }}{{ 'ab' is iterable }}{{ {} is mapping }}", "TrueTrueTrue"),
        ("{{ {'items': 5}['items'] }}{{ {'a': 1}.items() | list }}", "5[('a', 1)]"),
        ("{{ 'é😀' | length }}{{ 'aé😀'[::-1] }}", "2😀éa"),
        ("{% generation %}x{{ messages[0].content }}{% endgeneration %}", "xHi"),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}",
            "02",
        ),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{%- if tools is none and documents is none %}none{% endif %}", "none"),
        ("{% if tools is defined %}defined{% endif %}{% if bos_token is defined %}bos{% endif %}", "defined"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2024-03-05"),
        ("{{ 1 < 2 < 3 }}{{ [3, 1] | sort }}{{ ['a', 'b'] | join('-') }}", "True[1, 3]a-b"),
        ("{% set x %}b{{ 1 }}{% endset %}{{ x | upper }}{% filter upper %}c{% endfilter %}", "B1C"),
        ("{% macro m(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call m('x') %}y{% endcall %}", "<xy>"),
    ],
)
def test_render_given_a_construct_gives_pythons_answer(source: str, text: str) -> None:
    assert ChatTemplate(source, clock=fixed_clock).render(USER) == text


def test_render_given_template_kwargs_passes_them_on() -> None:
    entry = SHELF["thinking"]

    prompt = make(entry).render(entry.messages, enable_thinking=False)

    assert prompt == entry.prompt + "<think>\n\n</think>\n\n"


def test_render_given_tools_passes_them_in_order_and_selects_the_tool_template() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"z": 1.0, "a": None}}}]
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | tojson }}"})

    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=tools) == json.dumps(tools)


def test_render_given_special_tokens_shows_them() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}", bos_token="<s>", special_tokens={"pad_token": "<p>"}
    )

    assert template.render(USER) == "<s><p>"


def test_render_given_a_text_for_a_template_of_parts_gives_the_text() -> None:
    assert ChatTemplate(PARTS).render(USER) == "Hi"


def test_render_given_other_parts_reaches_templates_that_take_them_and_no_others() -> None:
    content = [{"type": "image"}, {"type": "text", "text": "what?"}]
    messages = [{"role": "user", "content": content}]

    assert ChatTemplate(EITHER).render(messages) == "<image>what?"
    with pytest.raises(InvalidArgumentError, match=r"messages\[0\].content has a part of type 'image'.*text only"):
        ChatTemplate(PRINT).render(messages)


def test_render_given_no_content_gives_an_empty_text_unless_the_template_tests_for_none() -> None:
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": []}]
    tests = PRINT.replace("{{ m.content }}", "{% if m.content is none %}-{% else %}+{% endif %}")

    assert ChatTemplate(PRINT).render(messages) == "[user]Hi[assistant]"
    assert ChatTemplate(tests).render(messages) == "[user]+[assistant]-"


def test_render_given_a_developer_message_is_system_for_templates_that_do_not_know_it() -> None:
    messages = [{"role": "developer", "content": "x"}]

    assert ChatTemplate(PRINT).render(messages) == "[system]x"
    assert ChatTemplate(PRINT + "{# developer #}").render(messages) == "[developer]x"


def test_render_given_tool_messages_keeps_their_fields() -> None:
    source = "{% for m in messages %}{{ m.role }}:{{ m.name }}:{{ m.tool_call_id }}{% endfor %}"

    assert (
        ChatTemplate(source).render([{"role": "tool", "name": "f", "tool_call_id": "c1", "content": "1"}])
        == "tool:f:c1"
    )


@pytest.mark.parametrize(
    ("content", "end"),
    [("The answer", "The answer"), ("The answer ", "The answer "), ([{"type": "text", "text": "The"}], "The")],
)
def test_render_given_a_final_message_to_continue_ends_inside_it(content: Any, end: str) -> None:
    messages = [*USER, {"role": "assistant", "content": content}]

    prompt = make(SHELF["chatml"]).render(messages, continue_final_message=True)

    assert prompt == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{end}"


def test_render_given_a_final_message_to_continue_and_a_template_that_trims_ends_trimmed() -> None:
    messages = [*USER, {"role": "assistant", "content": "The answer "}]

    prompt = make(SHELF["turns"]).render(messages, continue_final_message=True)

    assert prompt.endswith("<start_of_turn>model\nThe answer")


def test_render_given_a_final_message_without_text_to_continue_refuses() -> None:
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": []}]

    with pytest.raises(InvalidArgumentError, match=r"continue_final_message"):
        ChatTemplate(PRINT + "{# content is none #}").render(messages, continue_final_message=True)


OBJECTS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)
ONE_BY_ONE = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
    "<{{ k }}>{{ v }}{% endfor %}{% endfor %}{% endfor %}"
)
PLAIN = OBJECTS.replace("{{ c.function.arguments | tojson }}", "{{ '>' + c.function.arguments }}")
BOTH = OBJECTS.replace(
    "{{ c.function.arguments | tojson }}",
    "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
)


def calling(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize("arguments", ['{"b": 1.0, "a": "é"}', {"b": 1.0, "a": "é"}])
@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (OBJECTS, '{"b": 1.0, "a": "é"}'),
        (ONE_BY_ONE, "<b>1.0<a>é"),
        (PLAIN, '>{"b": 1.0, "a": "é"}'),
        (BOTH, '{"b": 1.0, "a": "é"}'),
    ],
)
def test_render_given_arguments_in_either_form_gives_the_one_that_the_template_prints(
    source: str, prompt: str, arguments: Any
) -> None:
    messages = calling(arguments)

    assert ChatTemplate(source).render(messages) == prompt
    assert messages == calling(arguments)


def test_render_given_arguments_as_text_for_a_template_of_both_keeps_their_spelling() -> None:
    assert ChatTemplate(BOTH).render(calling('{"a":1 , "a": 2}')) == '{"a":1 , "a": 2}'


def test_render_given_no_arguments_gives_an_empty_object_to_templates_of_objects() -> None:
    assert ChatTemplate(OBJECTS).render(calling("")) == "{}"


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "1"])
def test_render_given_arguments_that_are_no_object_names_the_message_or_leaves_them(arguments: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments is "):
        ChatTemplate(OBJECTS).render(calling(arguments))

    assert ChatTemplate(PLAIN).render(calling(arguments)) == ">" + arguments


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("Hi", "messages is a str"),
        ({"role": "user"}, "messages is a dict"),
        (None, "messages is a NoneType"),
        (["Hi"], r"messages\[0\] is a str"),
        ([{"content": "x"}], r"messages\[0\].role is None"),
        ([{"role": 3, "content": "x"}], r"messages\[0\].role is 3"),
        ([{"role": "", "content": "x"}], r"messages\[0\].role is ''"),
        ([*USER, {"role": "user", "content": 5}], r"messages\[1\].content is a int"),
        ([{"role": "user", "content": [5]}], r"messages\[0\].content\[0\] is 5"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text is None"),
        ([{"role": "user", "content": "a\ud800"}], r"messages\[0\].content has the lone surrogate"),
    ],
)
def test_render_given_wrong_messages_names_the_place(messages: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ChatTemplate(PRINT).render(messages)


@pytest.mark.parametrize("tools", ["f", {"a": 1}, [1]])
def test_render_given_wrong_tools_refuses(tools: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"tools(\[0\])? is a"):
        ChatTemplate(PRINT).render(USER, tools=tools)


def test_render_given_messages_that_the_template_refuses_gives_its_words_and_line() -> None:
    with pytest.raises(InvalidArgumentError, match=r"refuses the messages: System role not supported \(.*line 1\)"):
        make(SHELF["turns"]).render(CONVERSATION)


def test_render_given_a_failing_expression_gives_a_short_error_with_the_line() -> None:
    source = "{# " + "x" * 5000 + " #}\n\n{{ messages[0].nothing.deeper }}"

    with pytest.raises(InvalidArgumentError, match=r"cannot take these messages: .*line 3\)") as caught:
        ChatTemplate(source, name="config.json chat_template").render(USER)

    assert "config.json chat_template" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("source", "line"),
    [("a\n{% if %}", 2), ("a\n\n{{ x | nofilter }}", 3), ("{% for x in y %}", 1), ("\n{{ 'a' is notest }}", 2)],
)
def test_render_given_a_broken_template_names_the_line(source: str, line: int) -> None:
    template = ChatTemplate(source, name="chat_template.jinja")

    with pytest.raises(PackageError, match=rf"chat_template\.jinja: line {line}: "):
        template.render(USER)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n{{ messages[0].content | truncate(2) }}", r"cannot take these messages: expected length >= 3.* line 2\)"),
        ("\n{{ cycler().next() }}", r"cannot take these messages: .* line 2\)"),
        ("\n\n{{ [] | map(attribute='x') | first | round }}", r"cannot take these messages: .* line 3\)"),
        ("{{ (1).to_bytes(1, 'middle') }}", r"cannot take these messages: .* line 1\)"),
        ("{% include 'x' %}", r"cannot take these messages: .* line 1\)"),
    ],
)
def test_whatever_an_expression_raises_is_a_short_error_with_the_line(source: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        ChatTemplate(source).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in messages %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 6000 + " }}",
        "{{ " + "(" * 4000 + "1" + ")" * 4000,
    ],
)
def test_a_template_that_python_cannot_compile_is_a_broken_package(source: str) -> None:
    with pytest.raises(PackageError, match=r"chat_template\.jinja: "):
        ChatTemplate(source, name="chat_template.jinja").render(USER)


OPENING = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (OPENING + "{% if add_generation_prompt %}[assistant]<think>{% endif %}", "[assistant]<think>"),
        (OPENING + "{% if add_generation_prompt %}{{ '[assistant]<think>' if deep }}{% endif %}", "</s>"),
        (OPENING + "[assistant]<think>", "</s>[assistant]<think>"),
        (OPENING, "</s>"),
        (OPENING.replace("</s>", "<{{ 'a' if add_generation_prompt else 'b' }}>"), "<a>"),
        ("{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}" + OPENING, ""),
        ("{{ messages | length }}", ""),
    ],
)
@pytest.mark.parametrize("text", ["Hi", "<think>", "a <think> b", "</s>[assistant]<think>", " <think>\n"])
def test_generation_prompt_is_the_templates_own_writing(source: str, written: str, text: str) -> None:
    messages = [{"role": "user", "content": text}]

    assert ChatTemplate(source).generation_prompt(messages).strip() == written


def test_generation_prompt_knows_tools_and_variables() -> None:
    header = "{% if add_generation_prompt %}[assistant]{{ '<think>' if deep }}{{ tools | length if tools }}{% endif %}"
    template = ChatTemplate({"default": OPENING, "tool_use": OPENING + header})

    assert template.generation_prompt(USER, tools=[{}], deep=True) == "[assistant]<think>1"


@pytest.mark.parametrize(
    "source",
    [
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'a': 1}) %}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.format.__globals__ }}{{ messages.pop() }}",
    ],
)
def test_render_given_a_template_that_reaches_out_refuses(source: str) -> None:
    messages = [dict(message) for message in USER]

    with pytest.raises((PackageError, InvalidArgumentError)):
        ChatTemplate(source).render(messages)

    assert messages == USER


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in 'x' * 9999 %}{% for c in 'ab' %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in [1, 2, 3, 4] %}{% for b in [1, 2, 3, 4] %}"
        + "{% for c in 'abcdefghijklmnopqrstuvwxyz' %}" * 8
        + "{% endfor %}" * 10,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for x in [1, [1]] recursive %}{{ loop([1, [1]]) }}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 9 ** 99999999 }}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
        "{% for a in range(9999) %}" + "x" * 100_000 + "{% endfor %}",
        "{% macro f() %}{% for a in range(9999) %}" + "x" * 100_000 + "{% endfor %}{% endmacro %}{{ f() }}",
        "{% set x = 'ab' * 4000000 %}{% for a in range(9999) %}{{ x }}{% endfor %}",
        "{% set x = 'ab' * 4000000 %}{% for a in range(9999) %}{% if x | upper == a %}{% endif %}{% endfor %}",
        "{% set x = ['ab'] * 4000000 %}{% macro f() %}{% for a in x %}{{ x }}{% endfor %}{% endmacro %}{{ f() }}",
        "{% set x = 'ab' * 4000000 %}{% for a in range(9999) %}{% if x[::-1] == a %}{% endif %}{% endfor %}",
    ],
)
def test_render_given_an_endless_template_stops(source: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"does too much|cannot take"):
        ChatTemplate(source).render(USER)


def test_named_is_one_of_the_templates_for_all_requests() -> None:
    template = ChatTemplate({"rag": "R{{ bos_token }}", "tool_use": "T", "default": "D"}, bos_token="<s>")

    assert template.names == ("rag", "tool_use", "default")
    assert template.named("rag").render(USER, tools=[{"type": "function"}]) == "R<s>"
    with pytest.raises(InvalidArgumentError, match="'x'; allowed: rag, tool_use, default"):
        template.named("x")


def test_source_is_the_default_template() -> None:
    assert ChatTemplate({"tool_use": "a", "default": "b"}).source == "b"
    assert ChatTemplate({"only": "a"}).render(USER) == "a"
    with pytest.raises(PackageError, match="named 'default'; there are: a, b"):
        ChatTemplate({"a": "1", "b": "2"}).render(USER)


def test_variables_may_have_any_other_name() -> None:
    template = ChatTemplate("{{ name }}{{ template_name }}{{ source }}")
    others = {"self": "s", "name": "a", "template_name": "b", "source": "c"}
    assert template.render(USER, **others) == "abc"
    assert template.render_guarded(USER, control_texts=["<s>"], **others).text == "abc"


def test_source_for_is_the_template_that_renders() -> None:
    both = ChatTemplate({"tool_use": "a", "default": "b"})
    assert (both.source_for(tools=True), both.source_for(tools=False)) == ("a", "b")
    rest = ChatTemplate({"tool_use": "a", "rag": "b"})
    assert (rest.source_for(tools=True), rest.source_for(tools=False)) == ("a", "")


@pytest.mark.parametrize("source", [None, 3, {}, {"default": None}])
def test_template_given_no_text_refuses(source: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="source is"):
        ChatTemplate(source)
