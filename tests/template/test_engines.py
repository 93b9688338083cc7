"""Where the fast engine answers, it gives jinja2's text; where it might not, it steps back."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.template.jinja2_engine import Jinja2Engine
from onnx_genai.template.minijinja_engine import MAX_VALUE_TEXT, MinijinjaEngine, are_portable_values, is_portable
from tests.template.families import SHELF


def clock() -> datetime:
    return datetime(2024, 3, 5)


def fast(source: str) -> MinijinjaEngine | None:
    """The fast engine, if the template may run on it."""
    tree = Jinja2Engine(source, clock=clock).tree
    return MinijinjaEngine(source, tree, clock=clock) if is_portable(source, tree) else None


def variables(messages: Any) -> dict[str, Any]:
    return {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


@pytest.mark.parametrize("name", sorted(set(SHELF) - {"macro", "thinking"}))
def test_fast_engine_given_an_ordinary_template_gives_the_text_of_jinja2(name: str) -> None:
    entry = SHELF[name]
    engine = fast(entry.source)
    values = variables(entry.messages)

    assert engine is not None
    assert engine.render(values) == Jinja2Engine(entry.source, clock=clock).render(values)


def test_fast_engine_given_the_probe_constructs_gives_the_text_of_jinja2_or_none(shared_cases: Path) -> None:
    path = shared_cases / "ort-genai" / "chat-template-probe.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    probe = json.loads(path.read_text(encoding="utf-8"))
    answered = 0

    for case in probe["cases"]:
        if case["jinja2_hf_settings"].startswith("ERROR"):
            continue
        engine = fast(case["template"])
        values = variables(probe["messages"]) | {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
        text = None if engine is None else engine.render(values)
        if text is not None:
            answered += 1
            assert text == case["jinja2_hf_settings"], case["name"]

    assert answered >= 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | sort }}",
        "{{ 'a'.title() }}",
        "{{ messages.items }}",
        "{{ messages.index }}",
        "{{ messages.append(1) }}",
        "{{ messages._x }}",
        "{{ 1.5 }}",
        "{{ 2 * 3 }}",
        "{{ messages is callable }}",
        "{{ messages | trim('x') }}",
        "{{ unknown_function() }}",
        "{% macro f() %}{% endmacro %}",
        "{% include 'x' %}",
        "{% set x = x ~ x %}",
        "{% set x = x + x %}",
        "{% set x %}y{% endset %}",
        "{% for x in y recursive %}{% endfor %}",
        "{{ messages | list }}",
        "{{ messages < 3 }}",
        "{{ bos_token > 'a' }}",
        "{{ bos_token in messages[0].content }}",
        "{{ messages[0].content[1:] }}",
        "{{ messages[0].items()[0] }}",
        "{{ messages[0].get(bos_token) }}",
        "{{ bos_token.strip(eos_token) }}",
        "{{ bos_token is odd }}",
        "{{ bos_token.split('') }}",
        "{{ bos_token.startswith(eos_token) }}",
        r"{{ '\N{BULLET}' }}",
        r"{{ '\U0001F600' }}",
        r"{{ '\101' }}",
        r"{{ '\\\a' }}",
        r"{{ '\ud83d\ude00' }}",
        "{{ 'a\\\nb' }}",
        "a\r\nb",
    ],
)
def test_fast_engine_given_a_construct_that_may_differ_is_not_used(source: str) -> None:
    assert fast(source) is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing }}",
        "{{ none }}",
        "{{ true }}",
        "{{ messages }}",
        "{{ raise_exception('x') }}",
        "{{ nothing | tojson }}",
        "{% if nothing is sequence %}{% endif %}",
        "{% for x in nothing %}{% endfor %}",
        "{% if nothing == 1 %}{% endif %}",
        "{{ nothing ~ 'x' }}",
        "{% if 'x' in nothing %}{% endif %}",
    ],
)
def test_fast_engine_given_a_value_that_prints_differently_leaves_it_to_jinja2(source: str) -> None:
    engine = fast(source)

    assert engine is not None
    assert engine.render(variables([])) is None


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(999) %}{% for b in range(999) %}{{ messages[0] }}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}" + "x" * 100_000 + "{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    ],
)
def test_fast_engine_given_too_much_output_or_work_leaves_it_to_jinja2(source: str) -> None:
    engine = fast(source)

    assert engine is not None
    assert engine.render(variables(["x" * 1000])) is None


@pytest.mark.parametrize(
    ("value", "portable"),
    [
        ({"a": ["x", 1, True, None]}, True),
        (1.0, False),
        ({1: "a"}, False),
        ((1,), False),
        (2**63, False),
        ({"a": [{"b": 1.5}]}, False),
        (object(), False),
        ("a\x1f", False),
        ("x" * MAX_VALUE_TEXT, True),
        (["x" * MAX_VALUE_TEXT, "y"], False),
        ([None] * (MAX_VALUE_TEXT + 1), False),
    ],
)
def test_portable_values_are_those_that_arrive_unchanged(value: object, portable: bool) -> None:
    assert are_portable_values([value]) is portable
