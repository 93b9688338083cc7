"""The text of every token, in the form that the C++ detokenizer takes (``cpp/genai/core/token_table.h``).

``tokenizer.json`` names a decoder that turns a list of tokens into text. The core needs that as one byte string a token
plus two rules, so this module rewrites the decoder into such a table. Which decoders that is exact for:

=====================================================  ==========================================================
decoder in tokenizer.json                              table
=====================================================  ==========================================================
``ByteLevel``                                          exact
``Replace``, ``ByteFallback``, ``Fuse``, ``Strip``     exact if Replace and inner Strips come before ByteFallback
                                                       and Fuse, and the Strip after Fuse drops one leading space
``Metaspace``, ``WordPiece``, none (joins with " ")    exact (``first`` holds the tokens that differ at the start)
anything else (``BPEDecoder``, ``CTC``, ``Regex``)     best effort: each piece is what the token adds after another
                                                       token; text that depends on later tokens is not modelled
=====================================================  ==========================================================
"""

from __future__ import annotations

import builtins
import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["TokenKind", "TokenTableData", "build_table", "byte_alphabet"]

Decoding = Literal["byte_level", "byte_fallback"]
DecodeFunction = Callable[[list[int]], str]


class TokenKind(enum.IntEnum):
    """What a token does to the text; the values are those of ``genai::TokenTable::Kind``."""

    TEXT = 0
    BYTE = 1
    SPECIAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTableData:
    """One entry a token id; see ``genai::TokenTable`` for what the fields mean."""

    decoding: Decoding
    strip_first_space: bool
    """The first character of the whole text is dropped when it is a space."""
    bytes: tuple[builtins.bytes, ...]
    """One a token id. An id that does not exist has empty bytes and is special: it gives no text in any case."""
    kinds: tuple[TokenKind, ...]
    """Same length as ``bytes``."""
    first: Mapping[int, builtins.bytes] = field(default_factory=dict)
    """Tokens whose text is different (this one, with nothing stripped) when no text token stands before them."""
    exact: bool = True
    """False when the table only comes near what the tokenizer decodes."""

    @classmethod
    def empty(cls) -> TokenTableData:
        """The table of a package without a tokenizer: every id has no text."""
        return cls(decoding="byte_level", strip_first_space=False, bytes=(), kinds=())


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: Sequence[str | None]
    """Token text by id, None for ids that do not exist."""
    special: frozenset[str]

    def kind(self, token: str | None) -> TokenKind:
        return TokenKind.SPECIAL if token is None or token in self.special else TokenKind.TEXT

    def kinds(self) -> tuple[TokenKind, ...]:
        special, text, marked = TokenKind.SPECIAL, TokenKind.TEXT, self.special
        return tuple([special if token is None or token in marked else text for token in self.tokens])


def build_table(
    decoder: Mapping[str, Any] | None,
    tokens: Sequence[str | None],
    special: frozenset[str],
    decode: DecodeFunction,
) -> TokenTableData:
    """Makes the table for one vocabulary.

    Args:
        decoder: The ``decoder`` object of tokenizer.json; None when it has none.
        tokens: Token text by id, as written in the vocabulary; None for holes.
        special: Texts of the special tokens.
        decode: One-shot decode that keeps special tokens; asked only where the decoder is of no known form.
    """
    vocabulary = _Vocabulary(tokens, special)
    stages = _flatten(decoder)
    names = [str(stage.get("type")) for stage in stages]
    if names == ["ByteLevel"]:
        return _byte_level(vocabulary)
    if not stages:
        return _joined_with_spaces(vocabulary)
    if names == ["WordPiece"]:
        return _word_piece(vocabulary, stages[0])
    if names == ["Metaspace"]:
        return _metaspace(vocabulary, stages[0])
    table = _byte_fallback(vocabulary, stages)
    return table if table is not None else _differenced(vocabulary, decode)


def _flatten(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [stage for inner in decoder.get("decoders", ()) for stage in _flatten(inner)]
    return [decoder]


def _byte_level(vocabulary: _Vocabulary) -> TokenTableData:
    """Every character stands for a byte; a token with any other character is its own UTF-8."""
    to_byte = _byte_level_translation()

    def piece(translated: str, token: str) -> bytes:
        try:
            return translated.encode("latin-1")
        except UnicodeEncodeError:
            return token.encode("utf-8")

    # One translation for all is several times faster. A token with the separator in it is none of the alphabet's.
    separator = "\ufffe"
    tokens = [token or "" for token in vocabulary.tokens]
    translated = separator.join([token.replace(separator, "\uffff") for token in tokens]).translate(to_byte)
    return TokenTableData(
        decoding="byte_level",
        strip_first_space=False,
        bytes=tuple(map(piece, translated.split(separator), tokens)) if tokens else (),
        kinds=vocabulary.kinds(),
    )


def byte_alphabet() -> str:
    """The GPT-2 byte alphabet: the character of each byte.

    Source: Radford et al. 2019 (GPT-2): printable latin-1 bytes stand for themselves, the 68 others for U+0100 upward.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


def _byte_level_translation() -> dict[int, str]:
    """Maps each character of the GPT-2 byte alphabet to the latin-1 character of its byte.

    Latin-1 characters outside the alphabet map to one that latin-1 cannot encode, so that encoding shows them.
    """
    table = dict.fromkeys(range(256), "\uffff")
    table.update({ord(each): chr(byte) for byte, each in enumerate(byte_alphabet())})
    return table


def _joined_with_spaces(vocabulary: _Vocabulary) -> TokenTableData:
    return TokenTableData(
        decoding="byte_level",
        strip_first_space=True,
        bytes=tuple(b"" if token is None else b" " + token.encode("utf-8") for token in vocabulary.tokens),
        kinds=vocabulary.kinds(),
    )


def _word_piece(vocabulary: _Vocabulary, stage: Mapping[str, Any]) -> TokenTableData:
    prefix = str(stage.get("prefix", "##"))
    cleanup = _word_piece_cleanup if stage.get("cleanup", True) else str

    def later(token: str) -> str:
        return cleanup(token[len(prefix) :] if token.startswith(prefix) else " " + token)

    return _table_with_first(vocabulary, later, cleanup)


def _word_piece_cleanup(token: str) -> str:
    """Drops the space before punctuation and contractions. Source: ``WordPiece`` decoder of ``tokenizers``."""
    for old, new in (
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ):
        token = token.replace(old, new)
    return token


def _metaspace(vocabulary: _Vocabulary, stage: Mapping[str, Any]) -> TokenTableData:
    mark = str(stage.get("replacement", "\u2581"))
    default_scheme = "always" if stage.get("add_prefix_space", True) else "never"
    drops_at_start = stage.get("prepend_scheme", default_scheme) != "never"

    def later(token: str) -> str:
        return token.replace(mark, " ")

    def at_start(token: str) -> str:
        return token.replace(mark, "") if drops_at_start else later(token)

    return _table_with_first(vocabulary, later, at_start)


def _table_with_first(
    vocabulary: _Vocabulary, later: Callable[[str], str], at_start: Callable[[str], str]
) -> TokenTableData:
    """A table of two texts a token; the common case, one leading space less at the start, needs no ``first`` entry."""
    pieces: list[bytes] = []
    first: dict[int, bytes] = {}
    strips = any(token is not None and later(token) == " " + at_start(token) for token in vocabulary.tokens)
    for token_id, token in enumerate(vocabulary.tokens):
        text, start = ("", "") if token is None else (later(token), at_start(token))
        pieces.append(text.encode("utf-8"))
        by_rule = text.removeprefix(" ") if strips else text
        # Nothing is stripped after an empty first token either, as its entry says.
        if start != by_rule or (strips and token == ""):
            first[token_id] = start.encode("utf-8")
    return TokenTableData(
        decoding="byte_level",
        strip_first_space=strips,
        bytes=tuple(pieces),
        kinds=vocabulary.kinds(),
        first=first,
    )


def _byte_fallback(vocabulary: _Vocabulary, stages: Sequence[Mapping[str, Any]]) -> TokenTableData | None:
    """The SentencePiece-like chain; None when the chain holds a stage that acts across tokens in some other way."""
    steps: list[Callable[[str], str]] = []
    has_bytes = joined = strip_first = False
    for stage in stages:
        name = stage.get("type")
        if name == "Replace" and not has_bytes and not joined:
            step = _replace_step(stage)
            if step is None:
                return None
            steps.append(step)
        elif name == "ByteFallback" and not joined:
            has_bytes = True
        elif name == "Fuse":
            joined = True
        elif name == "Strip" and joined and not strip_first:
            if (stage.get("content"), stage.get("start"), stage.get("stop")) != (" ", 1, 0):
                return None
            strip_first = True
        elif name == "Strip" and not has_bytes and not joined:
            steps.append(_strip_step(stage))
        else:
            return None
    pieces: list[bytes] = []
    kinds: list[TokenKind] = []
    for token in vocabulary.tokens:
        text = token or ""
        for step in steps:
            text = step(text)
        byte = _fallback_byte(text) if has_bytes and token is not None else None
        pieces.append(text.encode("utf-8") if byte is None else byte)
        kind = vocabulary.kind(token)
        kinds.append(TokenKind.BYTE if byte is not None and kind is TokenKind.TEXT else kind)
    return TokenTableData(
        decoding="byte_fallback" if has_bytes else "byte_level",
        strip_first_space=strip_first,
        bytes=tuple(pieces),
        kinds=tuple(kinds),
    )


def _replace_step(stage: Mapping[str, Any]) -> Callable[[str], str] | None:
    pattern, content = stage.get("pattern"), stage.get("content")
    old = pattern.get("String") if isinstance(pattern, Mapping) else None
    if not isinstance(old, str) or not old or not isinstance(content, str):
        return None
    return lambda text: text.replace(old, content)


def _strip_step(stage: Mapping[str, Any]) -> Callable[[str], str]:
    content, start, stop = str(stage.get("content", " ")), int(stage.get("start", 0)), int(stage.get("stop", 0))

    def strip(text: str) -> str:
        left = 0
        while left < min(start, len(text)) and text[left] == content:
            left += 1
        right = len(text)
        while right > left and len(text) - right < stop and text[right - 1] == content:
            right -= 1
        return text[left:right]

    return strip


def _fallback_byte(token: str) -> bytes | None:
    """The byte of ``<0xAB>``, else None."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return bytes([int(token[3:5], 16)])
    except ValueError:
        return None


def _differenced(vocabulary: _Vocabulary, decode: DecodeFunction) -> TokenTableData:
    """Each piece is what the token adds to the text after a plain reference token."""
    reference = next(
        (
            token_id
            for token_id, token in enumerate(vocabulary.tokens)
            if token is not None and vocabulary.kind(token) is TokenKind.TEXT and decode([token_id]).isalnum()
        ),
        None,
    )
    base = "" if reference is None else decode([reference, reference])
    pieces: list[bytes] = []
    first: dict[int, bytes] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        if token is None:
            pieces.append(b"")
            continue
        alone = decode([token_id])
        text = alone if reference is None else decode([reference, reference, token_id])
        text = text[len(base) :] if reference is not None and text.startswith(base) else alone
        pieces.append(text.encode("utf-8"))
        if alone != text:
            first[token_id] = alone.encode("utf-8")
    return TokenTableData(
        decoding="byte_level",
        strip_first_space=False,
        bytes=tuple(pieces),
        kinds=vocabulary.kinds(),
        first=first,
        exact=False,
    )
