"""Answers of a generator that are constrained, cut, continued and followed by others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onnx_genai.compat as og
from onnx_genai import errors

pytestmark = [pytest.mark.boundary, pytest.mark.usefixtures("interface")]


def test_guidance_of_an_unknown_kind_is_refused(scripted_package: Callable[..., Path]) -> None:
    model = og.Model(str(scripted_package("hello")))
    with pytest.raises(errors.InvalidArgumentError, match="json_schema, regex, lark_grammar"):
        og.GeneratorParams(model).set_guidance("xml", "a")


@pytest.mark.parametrize(
    ("kind", "data", "pattern"),
    [
        ("regex", "[0-9]{3}", r"\d{3}"),
        ("lark_grammar", 'start: "yes" | "no"', "yes|no"),
        ("json_schema", '{"enum": [true, "a"]}', 'true|"a"'),
    ],
)
def test_guidance_constrains_every_row(
    scripted_package: Callable[..., Path], kind: str, data: str, pattern: str
) -> None:
    model = og.Model(str(scripted_package("hello")))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=40, batch_size=2)
    params.set_guidance(kind, data)
    made = og.Generator(model, params)
    made.append_tokens([[10, 11, 12], [13, 14, 15]])
    while not made.is_done():
        made.generate_next_token()
    tokenizer = og.Tokenizer(model)
    for row in range(2):
        assert re.fullmatch(pattern, tokenizer.decode(made.get_sequence(row)[3:]))


PROMPT = (10, 11, 12)


@pytest.fixture
def guided(scripted_package: Callable[..., Path]) -> Callable[..., tuple[og.Generator, og.Tokenizer]]:
    """``guided(kind, data, rows)``: generators of a model that would say "hello", with :data:`PROMPT` appended."""
    model = og.Model(str(scripted_package("hello")))

    def make(kind: str, data: str, rows: int = 1) -> tuple[og.Generator, og.Tokenizer]:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=60, batch_size=rows)
        params.set_guidance(kind, data)
        made = og.Generator(model, params)
        made.append_tokens([list(PROMPT)] * rows)
        return made, og.Tokenizer(model)

    return make


def step(made: og.Generator, count: int = 100) -> None:
    for _ in range(count):
        if not made.is_done():
            made.generate_next_token()


@pytest.mark.parametrize(("first", "kept"), [(4, 2), (4, 0), (4, 4), (6, 3), (6, 6), (100, 6), (100, 5)])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_guided_answer_goes_on_where_it_was_cut(guided: Any, first: int, kept: int, rows: int) -> None:
    made, tokenizer = guided("regex", "[0-9]{3}[a-f]{3}", rows)
    step(made, first)
    before = made.get_sequence(rows - 1).tolist()
    made.rewind_to(len(PROMPT) + kept)
    for row in range(rows):
        assert made.get_sequence(row).tolist() == before[: len(PROMPT) + kept]
    step(made)

    for row in range(rows):
        assert re.fullmatch("[0-9]{3}[a-f]{3}", tokenizer.decode(made.get_sequence(row)[len(PROMPT) :]))
    assert made.is_done()


def test_a_guided_answer_is_cut_again_and_again(guided: Any) -> None:
    made, tokenizer = guided("json_schema", '{"enum": ["abcdef"]}')
    for kept in (5, 3, 7, 1, 8, 2):
        step(made)
        made.rewind_to(len(PROMPT) + kept)
    step(made)

    assert tokenizer.decode(made.get_sequence(0)[len(PROMPT) :]) == '"abcdef"'


def test_tokens_that_fit_a_guided_answer_are_a_piece_of_it(guided: Any) -> None:
    made, tokenizer = guided("regex", "[0-9]{3}[a-f]{3}")
    step(made, 2)
    made.append_tokens(tokenizer.encode("7ab"))
    step(made)
    text = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch("[0-9]{2}7ab[a-f]", text)

    made.rewind_to(len(PROMPT) + 1)
    made.append_tokens(tokenizer.encode("99"))
    step(made)
    text = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch("[0-9]99[a-f]{3}", text)


def test_the_next_turn_has_a_guided_answer_of_its_own(guided: Any) -> None:
    made, tokenizer = guided("regex", "[0-9]{3}")
    step(made, 2)
    turn = tokenizer.encode("stop. Again:")
    made.append_tokens(turn)  # no piece of the answer
    step(made)
    text = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch("[0-9]{2}stop. Again:[0-9]{3}", text)

    made.append_tokens(tokenizer.encode("12"))  # behind an answer that is over
    step(made)
    again = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch(re.escape(text) + "12[0-9]{3}", again)
    assert made.is_done()

    made.rewind_to(len(PROMPT) + len(text) - 1)
    step(made)
    assert tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])[:-1] == text[:-1]
    assert made.token_count() == len(PROMPT) + len(text)
