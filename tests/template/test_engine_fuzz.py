"""Random templates of the constructs that the fast engine takes: it gives jinja2's text, or leaves it to jinja2."""

from __future__ import annotations

import random
import warnings

import pytest

from onnx_genai.template.jinja2_engine import Jinja2Engine
from onnx_genai.template.minijinja_engine import MinijinjaEngine, is_portable
from tests.template.reference import NOW, Refused, reference_render

VARIABLES = {
    "messages": [
        {"role": "user", "content": " Hi é😀\n"},
        {
            "role": "assistant",
            "content": "ab</t>ab",
            "n": 3,
            "flag": True,
            "nil": None,
            "l": ["x", "", 2],
            "d": {"k": "v", "items": 1},
        },
    ],
    "tools": None,
    "add_generation_prompt": True,
    "x": "Xab",
    "i": -3,
    "e": "",
    "no": False,
    "big": 2**62,
}
ATOMS = [
    "messages",
    "messages[0]",
    "messages[1]",
    "messages[-1].content",
    "messages[1].l",
    "messages[1].d",
    "messages[1].n",
    "messages[1].flag",
    "messages[1].nil",
    "messages[5]",
    "nothing",
    "x",
    "i",
    "e",
    "no",
    "big",
    "none",
    "true",
    "false",
    "'ab'",
    "''",
    "' é '",
    "0",
    "1",
    "7",
    "[]",
    "[1, 'a']",
    "(1, 'a')",
    "{}",
    "{'k': 1}",
    "add_generation_prompt",
    "tools",
    "messages[0]['content']",
    "(messages | length)",
]
FILTERS = ("count", "default(1)", "first", "last", "length", "lower", "tojson", "trim", "upper", "default(x, true)")
TESTS = [
    "boolean",
    "defined",
    "even",
    "false",
    "iterable",
    "mapping",
    "none",
    "number",
    "odd",
    "sequence",
    "string",
    "true",
    "undefined",
    "equalto(1)",
]
METHODS = [
    "items()",
    "keys()",
    "lower()",
    "lstrip()",
    "rstrip('b')",
    "split()",
    "split('b')",
    "strip()",
    "upper()",
    "values()",
    "get('k')",
    "get('z', 1)",
    "endswith('b')",
    "startswith(x)",
    "find('b')",
    "replace('a', '-')",
]
SLICES = (":", "1:", ":-1", "::-1", "-2:", "1:3", "::2", "5:", "-9:2")


def expression(pick: random.Random, depth: int) -> str:
    if depth <= 0 or pick.random() < 0.15:
        return pick.choice(ATOMS)

    def part() -> str:
        return expression(pick, depth - pick.choice((1, 2)))

    return pick.choice(
        [
            lambda: f"({part()} {pick.choice(['+', '-', '%', '~'])} {part()})",
            lambda: f"({part()} {pick.choice(['==', '!=', '<', '>=', 'in', 'not in', 'and', 'or'])} {part()})",
            lambda: f"(not {part()})",
            lambda: f"({part()} if {part()} else {part()})",
            lambda: f"({part()} | {pick.choice(FILTERS)})",
            lambda: f"({part()} is {pick.choice(['', 'not '])}{pick.choice(TESTS)})",
            lambda: f"{part()}.{pick.choice(METHODS)}",
            lambda: f"messages[{pick.choice(SLICES)}]",
            lambda: f"{part()}[{pick.choice(['0', '-1', '5', 'x', 'i'])}]",
        ]
    )()


def template(pick: random.Random) -> str:
    shape = pick.choice(
        [
            "{{ EXPRESSION }}",
            "{% if EXPRESSION %}T{% else %}F{% endif %}",
            "{% for q in EXPRESSION %}{{ q }}{{ loop.index }}{{ loop.last }},{% else %}E{% endfor %}",
            "{% set q = EXPRESSION %}{{ q }}|{{ q is defined }}",
        ]
    )
    return shape.replace("EXPRESSION", expression(pick, 3))


@pytest.mark.parametrize("seed", range(4))
def test_fast_engine_given_random_templates_gives_the_text_of_jinja2_or_none(seed: int) -> None:
    pick = random.Random(seed)
    answered = 0

    for _ in range(600):
        source = template(pick)
        # Python warns of things such as 2[0].
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            try:
                expected = reference_render(source, VARIABLES)
            except Refused:
                expected = None
            tree = Jinja2Engine(source, clock=lambda: NOW).tree
        if is_portable(source, tree):
            text = MinijinjaEngine(source, tree, clock=lambda: NOW).render(VARIABLES)
            if text is not None:
                answered += 1
                assert text == expected, source

    assert answered >= 20
