"""Filling in the middle: prompts for coder models from the marks in their tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from onnx_genai import LLM, SamplingParams, errors

GREEDY = SamplingParams(max_new_tokens=300, temperature=0)

Open = Callable[..., LLM]


@pytest.fixture
def scripted(scripted_package: Callable[..., Path]) -> Any:
    """``scripted(script, **options)``: a model that says it."""
    with contextlib.ExitStack() as stack:
        yield lambda script, **options: stack.enter_context(LLM(scripted_package(script, **options), threads=1))


@pytest.mark.parametrize(
    ("specials", "order"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"), "psm"),
        (("<PRE>", "<SUF>", "<MID>", "<EOT>"), "psm"),
        (("[PREFIX]", "[SUFFIX]", "[MIDDLE]"), "spm"),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "psm"),
    ],
)
def test_middle_is_written_between_prefix_and_suffix(scripted: Open, specials: tuple[str, ...], order: str) -> None:
    llm = scripted("x + 1", specials=specials)
    prefix, suffix, middle = (llm.tokenizer.special_tokens[text] for text in specials[:3])

    result = llm.generate("def f(x):\n    return ", GREEDY, suffix="\n\nprint(f(2))")

    before = [prefix, *llm.tokenizer.encode("def f(x):\n    return ", add_special_tokens=False)]
    behind = [suffix, *llm.tokenizer.encode("\n\nprint(f(2))", add_special_tokens=False)]
    parts = before + behind if order == "psm" else behind + before
    assert list(result.prompt_token_ids) == [*parts, middle]
    assert (result.text, result.finish_reason) == ("x + 1", "stop")


@pytest.mark.parametrize("specials", [("<PRE>", "<SUF>", "<MID>"), ("[PREFIX]", "[SUFFIX]", "[MIDDLE]")])
def test_what_begins_every_text_begins_the_prompt(scripted_package: Callable[..., Path], specials: Any) -> None:
    folder = scripted_package("x", specials=specials)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    with LLM(folder, threads=1) as llm:
        ids = list(llm.generate("ab", GREEDY, suffix="cd").prompt_token_ids)

    begin = tokenizer.token_to_id("<|im_start|>")
    prefix, suffix, middle = (tokenizer.token_to_id(text) for text in specials)
    a, b, c, d = (tokenizer.token_to_id(text) for text in "abcd")
    parts = [prefix, a, b, suffix, c, d] if specials[0] == "<PRE>" else [suffix, c, d, prefix, a, b]
    assert ids == [begin, *parts, middle]


def test_marks_inside_the_texts_are_text(scripted: Open) -> None:
    specials = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    llm = scripted("x", specials=specials)

    result = llm.generate("a<|fim_suffix|>", GREEDY, suffix="<|im_end|>")

    marks = [token for token in result.prompt_token_ids if token in llm.tokenizer.special_tokens.values()]
    assert marks == [llm.tokenizer.special_tokens[text] for text in specials]


def test_middle_ends_at_the_next_mark(scripted: Open) -> None:
    specials = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
    llm = scripted("x<|fim_pad|>y", specials=specials)

    result = llm.generate("a", GREEDY, suffix="b")

    assert (result.text, result.finish_reason) == ("x", "stop")
    with pytest.raises(errors.InvalidArgumentError, match="texts"):
        llm.generate([5, 6], GREEDY, suffix="b")


def test_model_without_marks_cannot_fill_in(scripted: Open) -> None:
    with pytest.raises(errors.UnsupportedError, match="fim_prefix"):
        scripted("x").generate("a", GREEDY, suffix="b")
