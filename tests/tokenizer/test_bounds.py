"""The fewest tokens that a text can have, and long texts that let other threads run."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest
from tokenizers import Tokenizer as Library

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tokenizer import Tokenizer
from tests.tokenizer.tokenizers_in_code import byte_level
from tests.tokenizer.trained import KINDS, random_text, trained
from tests.waiting import lets_others_run


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_has_fewer_tokens_than_the_bound(kind: str) -> None:
    tokenizer = Tokenizer(trained(kind).to_str(), config={})
    generator = random.Random(7)
    for _ in range(1000):
        text = random_text(generator) * generator.randrange(1, 4)
        found = len(tokenizer.encode(text, add_special_tokens=False))
        assert tokenizer.least_tokens(text) <= found, text
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, special_tokens="text")), text


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_byte_fallback"])
def test_the_longest_token_over_and_over_comes_near_the_bound(kind: str) -> None:
    tokenizer = Tokenizer(trained(kind).to_str(), config={})
    texts = [tokenizer.token_bytes(token) or b"" for token in range(tokenizer.vocab_size)]
    longest = max((each for each in texts if each.decode("utf-8", "replace").isprintable()), key=len)
    text = longest.decode("utf-8") * 100

    assert 0 < tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_a_byte_level_bound_is_bytes_by_the_longest_token() -> None:
    tokenizer = Tokenizer(byte_level(), config={})
    longest = max(len(tokenizer.token_bytes(token) or b"") for token in range(tokenizer.vocab_size))

    assert tokenizer.least_tokens("a" * (longest * 50)) == 50
    assert tokenizer.least_tokens("a" * (longest * 50 + 1)) == 51
    assert tokenizer.least_tokens("") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "StripAccents"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": "a"}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}},
    ],
)
def test_nothing_is_said_where_text_can_vanish(change: dict[str, object]) -> None:
    document = {**json.loads(byte_level()), **change}

    assert Tokenizer(json.dumps(document), config={}).least_tokens("a" * 10**5) == 0


def test_nothing_is_said_where_a_token_takes_the_blanks_beside_it() -> None:
    document = json.loads(byte_level())
    document["added_tokens"][0]["rstrip"] = True

    assert Tokenizer(json.dumps(document), config={}).least_tokens(" " * 10**5) == 0


def test_bytes_that_the_vocabulary_lacks_do_not_count() -> None:
    document = json.loads(byte_level())
    vocab = document["model"]["vocab"]
    del vocab["\u0113"]  # byte 0x13
    tokenizer = Tokenizer(json.dumps(document), config={})

    assert tokenizer.encode("\x13" * 1000, add_special_tokens=False) == []
    assert tokenizer.least_tokens("\x13" * 1000) == 0
    assert tokenizer.least_tokens("a" * 1000) > 0


def test_composing_leaves_a_third_of_the_bytes() -> None:
    document = {**json.loads(byte_level()), "normalizer": {"type": "NFC"}}
    plain, composing = Tokenizer(byte_level(), config={}), Tokenizer(json.dumps(document), config={})
    text = unicodedata.normalize("NFD", "각" * 3000)

    assert plain.least_tokens(text) == pytest.approx(3 * composing.least_tokens(text), abs=3)
    assert composing.least_tokens(text) <= len(composing.encode(text, add_special_tokens=False))


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        Tokenizer(byte_level(), config={}).least_tokens("\ud800")


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_has_the_ids_that_the_library_gives_it(kind: str) -> None:
    library = Library.from_str(trained(kind).to_str())
    tokenizer = Tokenizer(trained(kind).to_str(), config={})
    generator = random.Random(8)
    for size in (100, 400, 1000):
        text = "".join(random_text(generator) for _ in range(size))
        expected = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == expected
        assert tokenizer.encode(text, add_special_tokens=False, plain=[(len(text), len(text))]) == expected
        for skip in (True, False):
            assert tokenizer.decode(expected, skip) == library.decode(expected, skip_special_tokens=skip)


def test_other_threads_run_while_a_long_text_is_tokenised_and_decoded() -> None:
    tokenizer = Tokenizer(trained("byte_level").to_str(), config={})
    text = "a b c " * 100_000

    ids = lets_others_run(lambda: tokenizer.encode(text))
    assert lets_others_run(lambda: tokenizer.encode(text, special_tokens="text")) == ids
    assert lets_others_run(lambda: tokenizer.decode(ids * 3)) == text * 3
