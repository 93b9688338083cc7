"""Text in pieces equals the text at once, which equals what the tokenizers library decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tokenizer import Tokenizer, TokenKind, TokenStream, TokenTableData
from tests.tokenizer.trained import KINDS, random_sequences, trained


def streamed(table: TokenTableData, ids: Sequence[int], *, skip: bool) -> str:
    stream = TokenStream(table, skip_special_tokens=skip)
    return "".join([*map(stream.append, ids), stream.flush()])


@pytest.mark.parametrize("kind", KINDS)
def test_stream_given_random_texts_equals_the_decode_of_tokenizers(kind: str) -> None:
    reference = trained(kind)
    tokenizer = Tokenizer(reference.to_str(), config={})
    table = tokenizer.token_table()
    sequences = random_sequences(kind)

    assert table.exact
    assert len(sequences) == 5000
    for skip in (True, False):
        expected = reference.decode_batch(sequences, skip_special_tokens=skip)
        assert [streamed(table, ids, skip=skip) for ids in sequences] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_stream_given_random_texts_cut_anywhere_equals_the_decode_of_tokenizers(kind: str) -> None:
    reference = trained(kind)
    table = Tokenizer(reference.to_str(), config={}).token_table()

    for skip in (True, False):
        sequences = random_sequences(kind)[skip::2]
        cuts = [ids[:end] for ids in sequences for end in range(len(ids))]
        expected = reference.decode_batch(cuts, skip_special_tokens=skip)
        assert [streamed(table, ids, skip=skip) for ids in cuts] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_decode_given_random_texts_equals_the_decode_of_tokenizers(kind: str) -> None:
    reference = trained(kind)
    tokenizer = Tokenizer(reference.to_str(), config={})
    sequences = [[i for i in ids if i < tokenizer.vocab_size] for ids in random_sequences(kind)]

    for skip in (True, False):
        expected = reference.decode_batch(sequences, skip_special_tokens=skip)
        assert [tokenizer.decode(ids, skip_special_tokens=skip) for ids in sequences] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_stream_given_a_text_only_holds_back_what_is_not_certain(kind: str) -> None:
    table = Tokenizer(trained(kind).to_str(), config={}).token_table()

    for ids in random_sequences(kind)[:500]:
        stream = TokenStream(table)
        text = "".join(map(stream.append, ids))

        assert streamed(table, ids, skip=True).startswith(text)
        # The rest is a part of one character, or a run of byte tokens.
        assert len(stream.flush()) <= 1 or table.decoding == "byte_fallback"


def test_stream_given_an_emoji_in_parts_gives_it_whole() -> None:
    table = TokenTableData(
        decoding="byte_level",
        strip_first_space=False,
        bytes=(b"ok\xf0\x9f", b"\x99", b"\x82!", b"<s>"),
        kinds=(TokenKind.TEXT, TokenKind.TEXT, TokenKind.TEXT, TokenKind.SPECIAL),
    )
    stream = TokenStream(table)

    assert [stream.append(i) for i in (0, 1, 3, 2)] == ["ok", "", "", "🙂!"]
    assert stream.flush() == ""


def test_stream_given_an_unfinished_character_flushes_one_replacement_and_begins_anew() -> None:
    table = TokenTableData(
        decoding="byte_level",
        strip_first_space=True,
        bytes=(b" a", b"\xf0\x9f"),
        kinds=(TokenKind.TEXT, TokenKind.TEXT),
    )
    stream = TokenStream(table)

    assert [stream.append(0), stream.append(1), stream.flush()] == ["a", "", "\ufffd"]
    assert [stream.append(0), stream.append(0), stream.flush()] == ["a", " a", ""]


@pytest.mark.parametrize("token_id", [-1, 1.5, None, "1", True])
def test_stream_given_no_id_refuses(token_id: Any) -> None:
    stream = TokenStream(TokenTableData.empty())

    assert stream.append(7) == ""
    with pytest.raises(InvalidArgumentError, match="token_id is"):
        stream.append(token_id)
