"""Encoding and decoding with a package's ``tokenizer.json``."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tokenizers

from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError
from onnx_genai.tokenizer.backend import decoded, encoded, read_tokenizer
from onnx_genai.tokenizer.bounds import TokenBound
from onnx_genai.tokenizer.plain import PlainEncoder
from onnx_genai.tokenizer.stream import TokenStream
from onnx_genai.tokenizer.table import TokenTableData, build_table
from onnx_genai.tokenizer.whole import WholeText, encode_whole

__all__ = ["Tokenizer"]

_LFS_MARK = b"version https://git-lfs"

_END_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_role|>",
    "<|eot|>",
    "<|eom|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<eos>",
    "</s>",
)
"""Texts of special tokens after which no model family goes on, taken when a package says nothing."""

_MESSAGE_ENDS = frozenset({"<|end|>", "<|end_of_role|>"})
"""Of these, the ones that end only a part of an answer in vocabularies that also have another, final end token."""

_OTHER_TEXT = "\u263a"
"""A text that joins with no other one to a token."""


class Tokenizer:
    """A package's tokenizer. Immutable; safe from any thread.

    ``tokenizer.json`` alone decides how text is split, whatever class other files name. Padding and truncation that
    the file may ask for are turned off: a prompt is never cut silently.

    Example:
        >>> tokenizer = Tokenizer.from_file(Path("model/tokenizer.json"))  # doctest: +SKIP
        >>> tokenizer.decode(tokenizer.encode("Hello"))  # doctest: +SKIP
        'Hello'
    """

    def __init__(self, source: str | bytes, *, config: Mapping[str, Any] | None = None, name: str = "tokenizer.json"):
        """Reads a tokenizer from the content of a tokenizer.json.

        Args:
            source: The JSON text.
            config: Content of ``tokenizer_config.json`` (names ``bos_token``, ``eos_token``, ...); may be empty.
            name: File name for error texts.

        Raises:
            PackageError: The text is no tokenizer.json.
        """
        self._tokenizer = _load(source.encode("utf-8") if isinstance(source, str) else source, name)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        tokens = _tokens_by_id(self._tokenizer)
        self._vocab_size = len(tokens)
        self._tokens: list[str | None] | None = tokens  # until the first table is made of them
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token.content: token_id for token_id, token in sorted(added.items())}
        self._special = {text: token_id for text, token_id in self._added.items() if added[token_id].special}
        self._before, self._after = _surroundings(self._tokenizer)
        self._plain: PlainEncoder | None = None
        self._cached_table: TokenTableData | None = None
        self._config = dict(config or {})
        self._bos_id = self._configured("bos_token")
        self._eos_id = self._configured("eos_token")

    @classmethod
    def from_file(cls, path: Path, *, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Reads ``tokenizer.json``.

        Args:
            path: The file.
            config: Content of ``tokenizer_config.json``; None reads it, and ``special_tokens_map.json``, from the
                file's folder when they are there.

        Raises:
            NotFoundError: There is no such file.
            PackageError: The file is no tokenizer.json, is cut off, or is a Git LFS pointer.
        """
        path = Path(path)
        data = _read(path)
        return cls(data, config=_sibling_config(path.parent) if config is None else config, name=str(path))

    @property
    def vocab_size(self) -> int:
        """Ids are in ``[0, vocab_size)``: the highest id + 1. A model's logits may be wider (padding) or narrower."""
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        """Id of the configured ``bos_token``."""
        return self._bos_id

    @property
    def eos_id(self) -> int | None:
        """Id of the configured ``eos_token``."""
        return self._eos_id

    @property
    def pad_id(self) -> int | None:
        """Id of the configured ``pad_token``."""
        return self._configured("pad_token")

    @property
    def unk_id(self) -> int | None:
        """Id of the configured ``unk_token``."""
        return self._configured("unk_token")

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text to id of the special tokens, in id order."""
        return dict(self._special)

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """All tokens beside the model's own, special or not, by their texts."""
        return self._added

    @property
    def ids_before_text(self) -> Sequence[int]:
        """What :meth:`encode` puts in front of a text when it adds special tokens (often BOS)."""
        return tuple(self._before)

    def eos_candidates(self) -> tuple[int, ...]:
        """Ids that end an answer as far as the tokenizer can tell: the configured ``eos_token`` first, then special
        tokens whose text is a well-known end mark, in id order. Not a replacement for the ids that a package states.
        """
        found = [token_id for text, token_id in self._special.items() if text in _END_TEXTS]
        if "<|return|>" in self._special:
            found = [token_id for token_id in found if self.id_to_token(token_id) not in _MESSAGE_ENDS]
        first = [] if self.eos_id is None else [self.eos_id]
        return tuple(dict.fromkeys(first + found))

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        special_tokens: Literal["parse", "text"] = "parse",
        plain: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """Token ids of ``text``.

        Args:
            text: Any text without lone surrogates.
            add_special_tokens: Add what the tokenizer puts around a text (often BOS). What it puts in front is not
                doubled when the text already begins with it. Chat templates usually write BOS themselves: pass False
                for their output.
            special_tokens: ``parse``: texts of special tokens become those tokens. ``text``: they stay plain text, so
                that no text can hold a special token.
            plain: With ``parse``, spans ``[start, end)`` in characters: a control string that touches one stays plain
                text. :meth:`onnx_genai.template.ChatTemplate.render_guarded` gives the spans of user text.

        Raises:
            InvalidArgumentError: ``text`` is no string or has a lone surrogate, or ``special_tokens`` is another word.
        """
        _check_text(text)
        if special_tokens not in ("parse", "text"):
            raise InvalidArgumentError(f"special_tokens is {special_tokens!r}; allowed: 'parse' or 'text'")
        if special_tokens == "text":
            plain = ((0, len(text)),)
        ids: list[int]
        if plain:
            ids = self._plain_encoder().encode(text, plain)
        else:
            ids = encoded(self._tokenizer, text)
        if not add_special_tokens:
            return ids
        if ids[: len(self._before)] == self._before:
            return [*ids, *self._after]
        return [*self._before, *ids, *self._after]

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of ``text`` as it is written behind another one: without the space that some tokenizers put before
        a text. Texts of special tokens stay plain text, and nothing is added.

        Raises:
            InvalidArgumentError: As :meth:`encode`.
        """
        alone = self.encode(text, add_special_tokens=False, special_tokens="text")
        if not self._marks_beginnings:
            return alone
        other = self.encode(_OTHER_TEXT, add_special_tokens=False)
        both = self.encode(_OTHER_TEXT + text, add_special_tokens=False, special_tokens="text")
        return both[len(other) :] if both[: len(other)] == other else alone

    @cached_property
    def _marks_beginnings(self) -> bool:
        """Whether the first word of a text has other ids than the same word behind a character."""
        word, other = (self.encode(text, add_special_tokens=False) for text in ("x", _OTHER_TEXT))
        return self.encode(_OTHER_TEXT + "x", add_special_tokens=False) != [*other, *word]

    def least_tokens(self, text: str) -> int:
        """Tokens that ``text`` has at least, without tokenising it; 0 where nothing can be said.

        Raises:
            InvalidArgumentError: As :meth:`encode`.
        """
        _check_text(text)
        return 0 if self._bound is None else self._bound.least_tokens(text)

    @cached_property
    def _bound(self) -> TokenBound | None:
        return TokenBound.of(self._tokenizer)

    def encode_whole(self, texts: Sequence[str | tuple[str, str]]) -> list[WholeText]:
        """Whole texts, or pairs of them, for encoders: with special tokens and token types, and never cut.

        Raises:
            InvalidArgumentError: A text is no string, or has a lone surrogate.
        """
        for text in texts:
            for each in text if isinstance(text, tuple) else (text,):
                _check_text(each)
        return encode_whole(self._tokenizer, texts)

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes that a token stands for inside a text, such as ``b" the"``; also those of special tokens.

        Bytes of a token need not be UTF-8, because vocabularies cut characters. Joined over the tokens of an answer
        they are its bytes, but for a space that some tokenizers drop at the start of a text.

        Returns:
            None for ids that do not exist.
        """
        table = self._table()
        if not 0 <= token_id < len(table.bytes) or self.id_to_token(token_id) is None:
            return None
        return table.bytes[token_id]

    def token_text(self, token_id: int) -> str | None:
        """:meth:`token_bytes` as text, with U+FFFD for what is no UTF-8."""
        data = self.token_bytes(token_id)
        return None if data is None else data.decode("utf-8", errors="replace")

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """A new text that is made token by token."""
        return TokenStream(self._table(), skip_special_tokens=skip_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids`` decoded together.

        Args:
            ids: Token ids in ``[0, vocab_size)``. Ids in a hole of the vocabulary give no text.
            skip_special_tokens: Leave special tokens out.

        Raises:
            InvalidArgumentError: An id is out of range or no whole number; the text names its position.
            PackageError: The tokenizer's decoder fails on these tokens.
        """
        if not isinstance(ids, Iterable):
            raise InvalidArgumentError(f"ids is {ids!r}; allowed: token ids")
        checked: list[int] = []
        for position, value in enumerate(ids):
            try:
                token_id = operator.index(value)
            except TypeError as error:
                raise InvalidArgumentError(
                    f"ids[{position}] is {value!r} ({type(value).__name__}); allowed: a whole number"
                ) from error
            if isinstance(value, bool) or not 0 <= token_id < self._vocab_size:
                raise InvalidArgumentError(
                    f"ids[{position}] is {value!r}; allowed: 0..{self._vocab_size - 1} (the tokenizer's vocabulary)"
                )
            checked.append(token_id)
        try:
            text = decoded(self._tokenizer, checked, skip_special_tokens=skip_special_tokens)
        # A decoder that cannot take a token panics, which is only a BaseException.
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            raise PackageError(f"the decoder of the tokenizer.json cannot decode these tokens: {error}") from error
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of the token written ``token`` in the vocabulary; None when there is none."""
        try:
            token_id: int | None = self._tokenizer.token_to_id(token)
        except UnicodeEncodeError:  # a lone surrogate is in no vocabulary
            return None
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        """The token as written in the vocabulary; None for ids that do not exist."""
        if not 0 <= token_id < self._vocab_size:
            return None
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def special_stop_ids(self, stops: Sequence[str]) -> tuple[int, ...]:
        """Ids of the stop strings that are the text of a special token, in the order given, each once.

        Special tokens are left out of the text, so such a stop string is never found there: stop at the id instead.
        """
        return tuple(dict.fromkeys(self._special[stop] for stop in stops if stop in self._special))

    def _plain_encoder(self) -> PlainEncoder:
        # Making it twice in a race does no harm.
        if self._plain is None:
            self._plain = PlainEncoder(self._tokenizer, self._special)
        return self._plain

    def _table(self) -> TokenTableData:
        if self._cached_table is None:
            self._cached_table = self.token_table()
        return self._cached_table

    def token_table(self) -> TokenTableData:
        """The text of every token, for the C++ detokenizer. Made anew at each call: O(vocabulary)."""
        tokens = self._tokens or _tokens_by_id(self._tokenizer)
        self._tokens = None
        decoder = self._tokenizer.decoder
        # Pickling state is the only way to the decoder's JSON that does not write out the whole vocabulary.
        description = None if decoder is None else json.loads(decoder.__getstate__())

        def decode(ids: list[int]) -> str:
            try:
                return self.decode(ids, skip_special_tokens=False)
            except PackageError:  # a token that the decoder cannot take has no text
                return ""

        return build_table(description, tokens, frozenset(self._special), decode)

    def _configured(self, key: str) -> int | None:
        """Id of a token that tokenizer_config.json names, as a string or as ``{"content": ...}``."""
        value = self._config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        return self.token_to_id(value) if isinstance(value, str) else None


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidArgumentError(f"text is a {type(text).__name__}; allowed: a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"text has the lone surrogate {text[error.start]!a} at character {error.start}; allowed: text that "
            "UTF-8 can hold; remove it or replace it by U+FFFD"
        ) from error


def _tokens_by_id(tokenizer: tokenizers.Tokenizer) -> list[str | None]:
    """The vocabulary, as long as its highest id + 1; None for ids that do not exist.

    An id may have two texts, as added tokens are numbered by how many there are. ``id_to_token`` says which one is
    decoded; the order of ``get_vocab`` is another one each time.
    """
    tokens: list[str | None] = list(map(tokenizer.id_to_token, range(tokenizer.get_vocab_size(with_added_tokens=True))))
    if None not in tokens:
        return tokens
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return list(map(tokenizer.id_to_token, range(highest + 1)))


def _surroundings(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    if tokenizer.post_processor is None:
        return [], []
    inner = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True)
    before = next((index for index, mask in enumerate(whole.special_tokens_mask) if not mask), len(whole.ids))
    return list(whole.ids[:before]), list(whole.ids[before + len(inner) :])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        hint = ""
        if path.with_name("tokenizer.model").exists():
            hint = " The folder has a SentencePiece tokenizer.model, which is not read;"
        elif path.with_name("vocab.json").exists():
            hint = " The folder has a vocab.json, which is not read;"
        raise NotFoundError(
            f"{path} does not exist.{hint} save the tokenizer as tokenizer.json "
            "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
        ) from error
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror or error}") from error


def _load(data: bytes, name: str) -> tokenizers.Tokenizer:
    if data.startswith(_LFS_MARK):
        raise PackageError(
            f"{name} is a Git LFS pointer, not the file itself; run `git lfs pull` in the folder, or download it again"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackageError(f"{name}: not UTF-8 at byte {error.start}; expected a JSON text") from error
    try:
        return read_tokenizer(text)
    # The library raises bare Exception, and for some broken files a panic that is only a BaseException.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        raise _load_error(text, name, error) from error


def _load_error(text: str, name: str, error: BaseException) -> PackageError:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as cause:
        return PackageError(
            f"{name}: not valid JSON at line {cause.lineno} column {cause.colno} ({cause.msg}); "
            f"the file has {len(text)} characters and may be cut off; download it again"
        )
    except (ValueError, RecursionError) as cause:
        return PackageError(f"{name}: not valid JSON ({cause}); download it again")
    if not isinstance(document, Mapping):
        return PackageError(f"{name}: the top level is a {type(document).__name__}; expected an object")
    if not isinstance(document.get("model"), Mapping):
        return PackageError(f"{name}: key 'model' is missing or no object; expected the tokenizer's model")
    return PackageError(
        f"{name}: cannot be read as a tokenizer: {error}. Expected: a tokenizer.json that tokenizers "
        f"{tokenizers.__version__} can load; save the model's tokenizer again or update tokenizers"
    )


def _sibling_config(folder: Path) -> Mapping[str, Any]:
    """tokenizer_config.json over special_tokens_map.json; what is missing is empty."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        data = _read(path)
        if data.startswith(_LFS_MARK):
            raise PackageError(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in the folder")
        try:
            document = json.loads(data.decode("utf-8-sig"))
        except ValueError as error:
            raise PackageError(f"{path}: not valid JSON ({error}); expected an object") from error
        if not isinstance(document, Mapping):
            raise PackageError(f"{path}: the top level is a {type(document).__name__}; expected an object")
        merged.update(document)
    return merged
