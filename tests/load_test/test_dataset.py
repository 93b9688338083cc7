"""What requests say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.load_test import jsonl_samples, random_samples, sharegpt_samples
from onnx_genai.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(scripted_package: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.from_file(scripted_package("Hello") / "tokenizer.json")


def test_random_prompts_have_as_many_words_and_do_not_begin_alike() -> None:
    samples = random_samples(50, input_tokens=30, output_tokens=9)

    assert all(len(sample.prompt.split()) == sample.prompt_tokens == 30 for sample in samples)
    assert all(sample.output_tokens == 9 for sample in samples)
    assert len({" ".join(sample.prompt.split()[:4]) for sample in samples}) == 50


def test_with_a_tokenizer_random_prompts_have_the_exact_length(tokenizer: Tokenizer) -> None:
    for sample in random_samples(20, input_tokens=40, output_tokens=9, tokenizer=tokenizer):
        counted = len(tokenizer.encode(sample.prompt, add_special_tokens=False))
        # A word of this tiny vocabulary is up to a dozen tokens, and no word is cut.
        assert abs(counted - 40) <= 12


def test_the_range_ratio_spreads_both_lengths() -> None:
    samples = random_samples(400, input_tokens=100, output_tokens=10, range_ratio=0.5)

    inputs, outputs = {each.prompt_tokens for each in samples}, {each.output_tokens for each in samples}
    assert (min(inputs) >= 50, max(inputs) <= 150, outputs) == (True, True, set(range(5, 16)))
    assert max(inputs) - min(inputs) > 80


def test_a_seed_fixes_the_prompts() -> None:
    def prompts(seed: int) -> list[str]:
        return [each.prompt for each in random_samples(3, input_tokens=5, output_tokens=5, seed=seed)]

    assert prompts(1) == prompts(1) != prompts(2)


@pytest.mark.parametrize("options", [{"input_tokens": 0}, {"output_tokens": 0}, {"range_ratio": 1.0}])
def test_impossible_lengths_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="allowed: "):
        random_samples(1, **{"input_tokens": 5, "output_tokens": 5, **options})  # type: ignore[arg-type]


def lines(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n", encoding="utf-8")
    return path


def test_a_file_of_lines_has_prompts_chats_and_lengths(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    path = lines(tmp_path / "a.jsonl", {"prompt": "one"}, {"messages": chat, "max_tokens": 7})

    samples = jsonl_samples(path, 5, output_tokens=3)

    assert len(samples) == 5
    assert {(each.prompt, each.output_tokens) for each in samples} == {("one", 3), ("", 7)}
    assert [list(each.messages) for each in samples if each.messages] == [chat] * (2 if samples[0].prompt else 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", ":1 is not JSON"),
        ("5", ":1 is a JSON int"),
        ('{"prompt": "a"}\n{}', ":2 has no prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens is True"),
        ("\n", "has no prompt that can be used"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(InvalidArgumentError, match=message):
        jsonl_samples(path, 1, output_tokens=3)


def test_conversations_give_their_first_turn_and_the_length_of_its_answer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "chats.json"
    good = {"conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "Hello the world"}]}
    path.write_text(json.dumps([good, {"conversations": []}, {}, 5]), encoding="utf-8")

    (sample,) = sharegpt_samples(path, 1, tokenizer=tokenizer)

    assert sample.prompt == "What?"
    assert sample.prompt_tokens == len(tokenizer.encode("What?", add_special_tokens=False))
    assert sample.output_tokens == len(tokenizer.encode("Hello the world", add_special_tokens=False))
    assert sharegpt_samples(path, 1, output_tokens=11)[0].output_tokens == 11


@pytest.mark.parametrize("text", ["{}", "[]", "[1]", '{"a": 1}\n{"b": 2}'])
def test_what_is_no_list_of_conversations_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "chats.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(InvalidArgumentError):
        sharegpt_samples(path, 1)
