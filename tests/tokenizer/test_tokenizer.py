"""Encoding, decoding, special ids, and files that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError
from onnx_genai.tokenizer import Tokenizer
from tests.tokenizer.tokenizers_in_code import byte_level, tokenizer_json, word_level

BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [261], "tokens": ["<s>"]}},
}
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(post_processor=BOS_FIRST), config=CONFIG)


def test_encode_given_plain_text_adds_bos(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("AB") == [261, 65, 66]
    assert tokenizer.encode("AB", add_special_tokens=False) == [65, 66]


@pytest.mark.parametrize("text", ["<s>AB", "<s>"])
def test_encode_given_text_that_begins_with_bos_does_not_double_it(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text).count(261) == 1


def test_encode_given_an_unknown_class_name_follows_tokenizer_json() -> None:
    config = {**CONFIG, "tokenizer_class": "NoSuchTokenizer"}

    assert Tokenizer(byte_level(), config=config).encode("AB") == [65, 66]


def test_encode_given_truncation_and_padding_in_the_file_keeps_the_whole_text() -> None:
    source = byte_level(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "!",
        },
    )

    assert Tokenizer(source, config={}).encode("ABCD") == [65, 66, 67, 68]


def test_encode_given_a_nul_character_keeps_what_follows(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\0b")) == "a\0b"


@pytest.mark.parametrize("text", ["ab\ud800", b"ab", None, 3])
def test_encode_given_no_text_names_the_fault(tokenizer: Tokenizer, text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"lone surrogate .* at character 2|text is a (bytes|NoneType|int)"):
        tokenizer.encode(text)


def test_decode_given_specials_leaves_them_out_on_demand(tokenizer: Tokenizer) -> None:
    ids = [261, 65, 263]

    assert tokenizer.decode(ids) == "A"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>A<|im_end|>"


def test_decode_given_numpy_ids_takes_them(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(np.array([65, 66], dtype=np.int64)) == "AB"


def test_decode_given_an_id_in_a_hole_gives_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.id_to_token(267) is None
    assert tokenizer.decode([65, 267, 66]) == "AB"


@pytest.mark.parametrize("bad", [-1, 270, 2**40, 1.5, "a", True, None])
def test_decode_given_an_id_out_of_range_names_position_and_range(tokenizer: Tokenizer, bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"ids\[1\] is .*allowed: (0\.\.269|a whole number)"):
        tokenizer.decode([65, bad])


def test_ids_of_special_tokens_come_from_the_config(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id) == (261, 262, None, None)
    assert tokenizer.vocab_size == 270
    assert tokenizer.token_to_id("<s>") == 261
    assert tokenizer.token_to_id("no such token") is None
    assert tokenizer.token_to_id("\ud800") is None
    assert tokenizer.id_to_token(-1) is None
    assert tokenizer.id_to_token(10**9) is None
    assert tokenizer.special_tokens == {"<s>": 261, "</s>": 262, "<|im_end|>": 263}


def test_eos_candidates_put_the_configured_one_first(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_candidates() == (262, 263)
    assert Tokenizer(byte_level(), config={"eos_token": "<|im_end|>"}).eos_candidates() == (263, 262)
    assert Tokenizer(word_level(), config={}).eos_candidates() == (17,)


def test_eos_candidates_given_a_vocabulary_with_a_final_end_leave_out_the_message_end() -> None:
    texts = [(1, "<|end|>"), (2, "<|return|>"), (3, "<|call|>")]
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}

    assert Tokenizer(tokenizer_json(model, None, special=texts), config={}).eos_candidates() == (2, 3)
    assert Tokenizer(tokenizer_json(model, None, special=texts[:1]), config={}).eos_candidates() == (1,)


def test_special_stop_ids_given_special_texts_returns_their_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_stop_ids(["END", "<|im_end|>", "</s>", "<|im_end|>", "<think>"]) == (263, 262)


def test_from_file_given_sibling_files_reads_the_special_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "dïr 日本 😀"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("\ufeff" + byte_level(), encoding="utf-8")
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "<s>"}', encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}', encoding="utf-8")

    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")

    assert (tokenizer.bos_id, tokenizer.eos_id) == (261, 262)


@pytest.mark.parametrize("merges", [["a b"], [["a", "b"]]])
def test_from_file_given_either_form_of_merges_gives_the_same_ids(merges: list[Any]) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": merges}

    assert Tokenizer(tokenizer_json(model, None), config={}).encode("aba") == [2, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (byte_level()[:-500].encode(), r"not valid JSON at line 1 .*may be cut off"),
        (b"", r"not valid JSON at line 1 column 1"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", r"Git LFS pointer.*git lfs pull"),
        (b"\xff\xfe{", r"not UTF-8 at byte 0"),
        (b"[1]", r"top level is a list; expected an object"),
        (b'{"version": "1.0"}', r"key 'model' is missing"),
        (b'{"model": []}', r"key 'model' is missing or no object"),
        (b'{"model": {"type": "NoSuchModel"}}', r"cannot be read as a tokenizer"),
        (b"[" * 100_000, r"not valid JSON"),
    ],
)
def test_from_file_given_a_broken_file_names_file_and_fault(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)

    with pytest.raises(PackageError, match=message) as caught:
        Tokenizer.from_file(path)

    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("other", "message"),
    [(None, "does not exist"), ("tokenizer.model", "SentencePiece"), ("vocab.json", "vocab.json")],
)
def test_from_file_given_no_file_says_what_to_do(tmp_path: Path, other: str | None, message: str) -> None:
    if other is not None:
        (tmp_path / other).write_bytes(b"x")

    with pytest.raises(NotFoundError, match=message) as caught:
        Tokenizer.from_file(tmp_path / "tokenizer.json")

    assert "save_pretrained" in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "version https://git-lfs.github.com/spec/v1\n"])
def test_from_file_given_a_broken_config_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")

    with pytest.raises(PackageError, match=r"tokenizer_config\.json"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_encode_given_flags_of_added_tokens_takes_blanks_as_they_say(flag: str) -> None:
    document = json.loads(byte_level())
    for token in document["added_tokens"]:
        token[flag] = True

    tokenizer = Tokenizer(json.dumps(document), config={})

    ids = tokenizer.encode("a <think> b")

    # lstrip and rstrip take the blank beside the token into it; the others do not.
    think = tokenizer.token_to_id("<think>")
    expected = {
        "lstrip": [97, think, 32, 98],
        "rstrip": [97, 32, think, 98],
        "single_word": [97, 32, think, 32, 98],
        "normalized": [97, 32, think, 32, 98],
    }
    assert ids == expected[flag]


TEXTS = ["", " ", "Hello world", "<s>", "a <think> b", "日本 token", "éé x😀ENDé\n\n"]


@pytest.mark.parametrize(
    "processor",
    [
        None,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "BertProcessing", "sep": ["</s>", 262], "cls": ["<|im_end|>", 263]},
        {
            "type": "RobertaProcessing",
            "sep": ["</s>", 262],
            "cls": ["<|im_end|>", 263],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        {
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                BOS_FIRST,
            ],
        },
    ],
)
def test_encode_given_any_post_processor_adds_what_the_library_adds(processor: Any) -> None:
    source = byte_level(post_processor=processor)
    library = tokenizers.Tokenizer.from_str(source)

    for text in TEXTS:
        for add in (True, False):
            expected = library.encode(text, add_special_tokens=add).ids
            ids = Tokenizer(source, config={}).encode(text, add_special_tokens=add)
            # The one difference: BOS is not doubled.
            assert ids == (expected[1:] if expected[:2] == [261, 261] else expected)


def test_encode_given_a_chat_whose_template_writes_bos_has_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<s>Hi", add_special_tokens=True).count(261) == 1
    assert tokenizer.encode("<s>Hi", add_special_tokens=False).count(261) == 1
    assert Tokenizer(byte_level(post_processor=BOS_FIRST), config={}).encode("<s>Hi").count(261) == 1


def test_token_bytes_given_parts_of_characters_gives_them_as_they_are(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hello world", add_special_tokens=False)
    half = tokenizer.vocab_size - 1

    assert b"".join(tokenizer.token_bytes(i) or b"" for i in ids) == b"Hello world"
    assert tokenizer.token_bytes(258) == b"x\xf0\x9f"
    assert tokenizer.token_text(258) == "x\ufffd"
    assert tokenizer.token_bytes(261) == b"<s>"
    assert tokenizer.token_bytes(half) == b"far away"
    assert [tokenizer.token_bytes(i) for i in (-1, 267, 10**9)] == [None, None, None]
    assert tokenizer.token_text(267) is None


def test_stream_given_special_tokens_shows_them_on_demand(tokenizer: Tokenizer) -> None:
    hidden, shown = tokenizer.stream(), tokenizer.stream(skip_special_tokens=False)

    assert [hidden.append(i) for i in (261, 65, 263)] == ["", "A", ""]
    assert [shown.append(i) for i in (261, 65, 263)] == ["<s>", "A", "<|im_end|>"]
