"""The compat tokenizer and its streams."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from onnx_genai.tokenizer import Tokenizer as PlainTokenizer
from tests.tokenizer.tokenizers_in_code import documents

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(scripted_package: Callable[..., Path]) -> Path:
    return scripted_package("Hello!", format="genai")


@pytest.fixture
def tokenizer(folder: Path) -> og.Tokenizer:
    return og.Tokenizer(str(folder))


def test_text_to_ids_and_back(tokenizer: og.Tokenizer, folder: Path) -> None:
    plain = PlainTokenizer.from_file(folder / "tokenizer.json")

    ids = tokenizer.encode("Hello the END")

    assert ids.dtype == np.int32
    assert ids.tolist() == plain.encode("Hello the END", add_special_tokens=False)
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == "Hello the END"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode(ids[0]) == tokenizer.decode(int(ids[0])) == "H"


def test_special_tokens_are_left_out_unless_asked_for(tokenizer: og.Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.decode(ids) == "ab"

    tokenizer.update_options(skip_special_tokens=False)

    assert tokenizer.decode(ids) == "a<|im_end|>b"
    stream = tokenizer.create_stream()
    assert "".join(stream.decode(token) for token in ids) == "a<|im_end|>b"
    tokenizer.update_options(skip_special_tokens="true", add_special_tokens="false")
    assert tokenizer.decode(ids) == "ab"


def test_batch_is_padded_on_the_right_and_back(tokenizer: og.Tokenizer) -> None:
    tensor = tokenizer.encode_batch(["abc", "d"])

    assert tensor.shape() == [2, 3]
    assert tensor.type() == "int32"
    pad = tokenizer.pad_token_id
    assert tensor.as_numpy()[1].tolist() == [*tokenizer.encode("d"), pad, pad]
    assert tokenizer.decode_batch(tensor) == ["abc", "d"]
    assert tokenizer.decode_batch([tokenizer.encode("abc"), tokenizer.encode("d")]) == ["abc", "d"]


def test_ids_that_the_package_states(tokenizer: og.Tokenizer) -> None:
    assert tokenizer.eos_token_ids.tolist() == [2]
    assert tokenizer.bos_token_id == 1
    assert tokenizer.pad_token_id == 0
    assert tokenizer.to_token_id("<|im_start|>") == 1
    for call in (lambda: tokenizer.to_token_id("<|none|>"), lambda: tokenizer.bot_token_id):
        with pytest.raises(errors.NotFoundError):
            call()


def test_ids_of_marks_come_from_the_config(folder: Path) -> None:
    config = og.Config(str(folder))
    config.overlay('{"model": {"bot_token_id": 7, "eos_token_id": [2, 0]}}')
    tokenizer = og.Tokenizer(config)

    assert tokenizer.bot_token_id == 7
    assert tokenizer.eos_token_ids.tolist() == [2, 0]


@pytest.mark.parametrize("messages", [MESSAGES, json.dumps(MESSAGES)])
def test_template_takes_a_list_or_its_json(messages: Any, tokenizer: og.Tokenizer) -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n"

    assert tokenizer.apply_chat_template(messages) == text + "<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(messages=messages, add_generation_prompt=False) == text


def test_template_of_the_call_its_tools_and_variables(tokenizer: og.Tokenizer) -> None:
    template = "{{ messages[0].content }}|{{ tools[0].name if tools else 'none' }}|{{ thinking | default('unset') }}"

    def render(**options: Any) -> str:
        return tokenizer.apply_chat_template(MESSAGES, template_str=template, **options)

    assert render() == "Hi|none|unset"
    assert render(tools="") == "Hi|none|unset"
    assert render(tools='[{"name": "add"}]', thinking=False) == "Hi|add|False"
    assert render(tools=[{"name": "sub"}]) == "Hi|sub|unset"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.encode(b"a"), "a string"),
        (lambda t: t.decode(5.0), "token ids"),
        (lambda t: t.decode([10**6]), "allowed: 0"),
        (lambda t: t.decode(np.zeros((1, 2), np.int32)), "decode_batch"),
        (lambda t: t.encode_batch([]), "at least one"),
        (lambda t: t.encode_batch("text"), "a list"),
        (lambda t: t.update_options(bogus=True), "add_special_tokens"),
        (lambda t: t.update_options(skip_special_tokens="maybe"), "maybe"),
        (lambda t: t.apply_chat_template("x"), "no JSON"),
        (lambda t: t.apply_chat_template(MESSAGES, documents=[]), "documents"),
        (lambda t: t.create_stream().decode(10**6), "allowed: 0"),
        (lambda t: t.create_stream().decode(-1), "allowed: 0"),
        (lambda t: t.create_stream().decode("a"), "whole number"),
        (lambda t: og.Tokenizer(5), "a Config"),
    ],
)
def test_wrong_calls_are_refused(call: Callable[[og.Tokenizer], object], words: str, tokenizer: og.Tokenizer) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=words):
        call(tokenizer)


def test_package_without_a_template_says_how_to_give_one(checksum_package: Callable[..., Path]) -> None:
    with pytest.raises(errors.UnsupportedError, match="template_str"):
        og.Tokenizer(str(checksum_package("gqa"))).apply_chat_template(MESSAGES)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", documents())
def test_pieces_of_a_stream_join_to_the_whole_text(name: str, skip: bool) -> None:
    plain = PlainTokenizer(documents()[name])
    stream = og.TokenizerStream(plain.token_table(), skip_special_tokens=skip)
    draw = random.Random(5)
    for _ in range(300):
        ids = [draw.randrange(plain.vocab_size) for _ in range(draw.randrange(12))]

        pieces = [stream.decode(token) for token in ids]

        assert "".join(pieces) + stream.flush() == plain.decode(ids, skip_special_tokens=skip)


def test_character_comes_with_its_last_token(tokenizer: og.Tokenizer) -> None:
    stream = tokenizer.create_stream()
    ids = tokenizer.encode("é!")

    assert [stream.decode(token) for token in ids] == ["", "é", "!"]
    assert stream.decode(ids[0]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_end_token_gives_out_the_bytes_that_wait() -> None:
    plain = PlainTokenizer(documents()["byte_fallback"])
    end = plain.special_tokens["</s>"]
    stream = og.TokenizerStream(plain.token_table(), ends=[end])
    ids = [3 + byte for byte in "é".encode()]

    assert [stream.decode(token) for token in [*ids, end]] == ["", "", "é"]


def test_names_are_these() -> None:
    assert sorted(og.__all__) == og.__all__
    assert all(hasattr(og, name) for name in og.__all__)
    wanted = {"Adapters", "Audios", "Config", "Generator", "GeneratorParams", "Images", "Model", "MultiModalProcessor"}
    assert wanted | {"NamedTensors", "Tensor", "Tokenizer", "TokenizerStream"} <= set(og.__all__)


def test_package_with_a_template_of_another_name_only_has_one(scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package("x", format="genai_config", chat_template=None)
    extra = folder / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("<{{ messages[0].content }}>", encoding="utf-8")

    assert og.Tokenizer(str(folder)).apply_chat_template(MESSAGES) == "<Hi>"
