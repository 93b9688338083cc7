"""The token table says the same text as the tokenizers library, which is the reference here."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers

from onnx_genai.tokenizer import Tokenizer, TokenKind, TokenTableData
from tests.tokenizer.detokenizer import detokenize
from tests.tokenizer.tokenizers_in_code import documents, metaspace_fallback, word_level

REAL = (
    "ort-genai/models/hf-internal-testing/tiny-random-gpt2-fp32",
    "ort-genai/models/phi3-v",
    "ort-genai/models/whisper",
    "packages/tiny-llm",
    "packages/tiny-whisper",
    "packages-workflow/tiny-reasoning",
)


def random_ids(generator: random.Random, vocab_size: int) -> list[int]:
    """Mostly a few neighbours of one place, so that byte runs and specials meet."""
    length = generator.randrange(0, 12)
    if generator.random() < 0.5:
        return [generator.randrange(vocab_size) for _ in range(length)]
    start = generator.randrange(vocab_size)
    return [(start + generator.randrange(300)) % vocab_size for _ in range(length)]


def check_same_text(tokenizer: Tokenizer, reference: tokenizers.Tokenizer, table: TokenTableData, rounds: int) -> None:
    generator = random.Random(7)
    for _ in range(rounds):
        ids = random_ids(generator, tokenizer.vocab_size)
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip)
            assert detokenize(table, ids, skip_special_tokens=skip) == expected, ids


@pytest.mark.parametrize("name", sorted(documents()))
def test_table_given_random_ids_says_what_tokenizers_decodes(name: str) -> None:
    source = documents()[name]
    tokenizer = Tokenizer(source, config={})

    table = tokenizer.token_table()

    assert table.exact
    assert len(table.bytes) == len(table.kinds) == tokenizer.vocab_size
    check_same_text(tokenizer, tokenizers.Tokenizer.from_str(source), table, rounds=3000)


@pytest.mark.parametrize("folder", REAL)
def test_table_given_a_real_tokenizer_says_what_tokenizers_decodes(shared_cases: Path, folder: str) -> None:
    path = shared_cases / folder / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    tokenizer = Tokenizer.from_file(path)

    table = tokenizer.token_table()

    assert table.exact
    check_same_text(tokenizer, tokenizers.Tokenizer.from_file(str(path)), table, rounds=2000)


@pytest.mark.parametrize("folder", REAL)
def test_table_given_each_token_alone_says_what_tokenizers_decodes(shared_cases: Path, folder: str) -> None:
    path = shared_cases / folder / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    tokenizer = Tokenizer.from_file(path)
    reference = tokenizers.Tokenizer.from_file(str(path))

    table = tokenizer.token_table()

    for token_id in range(tokenizer.vocab_size):
        assert detokenize(table, [token_id], skip_special_tokens=False) == reference.decode(
            [token_id], skip_special_tokens=False
        )


def test_table_given_byte_fallback_marks_byte_tokens_and_specials() -> None:
    table = Tokenizer(metaspace_fallback(), config={}).token_table()

    assert table.decoding == "byte_fallback"
    assert table.strip_first_space
    assert table.kinds[:3] == (TokenKind.SPECIAL,) * 3
    assert table.kinds[3:259] == (TokenKind.BYTE,) * 256
    assert table.bytes[3:259] == tuple(bytes([byte]) for byte in range(256))
    assert set(table.kinds[259:]) == {TokenKind.TEXT}
    assert table.first == {}


def test_table_given_a_hole_in_the_ids_has_an_empty_special_there() -> None:
    table = Tokenizer(word_level(), config={}).token_table()

    assert (table.bytes[18], table.kinds[18]) == (b"", TokenKind.SPECIAL)


def test_table_given_tokens_of_no_byte_writes_them_as_they_are() -> None:
    texts = ["a", "\u0120b", "c\ufffed", "\n", "\uffff", "\u0120", "\u00e9", " "]
    model = {"type": "BPE", "vocab": {text: index for index, text in enumerate(texts)}, "merges": []}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    source = {"version": "1.0", "added_tokens": [], "decoder": decoder, "model": model}

    table = Tokenizer(json.dumps(source), config={}).token_table()

    # A character of the alphabet is its byte; a token with another one is its UTF-8.
    wanted = [b"a", b" b", "c\ufffed".encode(), b"\n", "\uffff".encode(), b" ", b"\xe9", b" "]
    assert list(table.bytes) == wanted


def test_table_given_two_texts_of_an_id_has_the_one_that_is_decoded() -> None:
    added = {"id": 9, "content": "<x>", "special": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": {"a": 0, "b": 3, "c": 5}, "merges": []}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    source = json.dumps({"version": "1.0", "added_tokens": [added | flags], "decoder": decoder, "model": model})

    for _ in range(40):  # the library's order of the vocabulary is another one each time
        tokenizer = Tokenizer(source, config={})
        assert tokenizer.decode([3]) == "<x>"
        for _ in range(2):
            assert tokenizer.token_table().bytes == (b"a", b"", b"", b"<x>", b"", b"c")


def test_table_is_the_same_each_time() -> None:
    tokenizer = Tokenizer(word_level(), config={})

    assert tokenizer.token_table() == tokenizer.token_table()


def test_table_given_metaspace_that_drops_marks_at_the_start_lists_only_the_unusual_tokens() -> None:
    source = documents()["metaspace_always"]
    tokenizer = Tokenizer(source, config={})

    table = tokenizer.token_table()

    assert table.strip_first_space
    assert table.first == {
        tokenizer.token_to_id(" c"): b" c",
        tokenizer.token_to_id("e▁▁f"): b"ef",
        tokenizer.token_to_id("▁▁i"): b"i",
        tokenizer.token_to_id(""): b"",
    }


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}]},
        {"type": "CTC", "pad_token": "<unk>", "word_delimiter_token": ".", "cleanup": True},
    ],
)
def test_table_given_an_unknown_decoder_is_marked_inexact_and_right_for_one_token(decoder: dict[str, object]) -> None:
    source = word_level(decoder)
    tokenizer = Tokenizer(source, config={})
    reference = tokenizers.Tokenizer.from_str(source)

    table = tokenizer.token_table()

    assert not table.exact
    for token_id in range(tokenizer.vocab_size):
        assert detokenize(table, [token_id], skip_special_tokens=False) == reference.decode(
            [token_id], skip_special_tokens=False
        )
