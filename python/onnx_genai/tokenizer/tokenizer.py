"""Encoding and decoding with a package's ``tokenizer.json``."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError
from onnx_genai.tokenizer.table import TokenTableData, build_table

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
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self._vocab_size = max(vocab.values(), default=-1) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: token_id for token_id, token in sorted(added.items()) if token.special}
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

    def eos_candidates(self) -> tuple[int, ...]:
        """Ids that end an answer as far as the tokenizer can tell: the configured ``eos_token`` first, then special
        tokens whose text is a well-known end mark, in id order. Not a replacement for the ids that a package states.
        """
        found = [token_id for text, token_id in self._special.items() if text in _END_TEXTS]
        if "<|return|>" in self._special:
            found = [token_id for token_id in found if self.id_to_token(token_id) not in _MESSAGE_ENDS]
        first = [] if self.eos_id is None else [self.eos_id]
        return tuple(dict.fromkeys(first + found))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``.

        Args:
            text: Any text without lone surrogates. Texts of special tokens in it become those tokens.
            add_special_tokens: Add what the tokenizer puts around a text (often BOS). A BOS that the text already
                begins with is not doubled. Chat templates usually write BOS themselves: pass False for their output.

        Raises:
            InvalidArgumentError: ``text`` is no string or has a lone surrogate.
        """
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text is a {type(text).__name__}; allowed: a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"text has the lone surrogate {text[error.start]!a} at character {error.start}; allowed: text that "
                "UTF-8 can hold; remove it or replace it by U+FFFD"
            ) from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._bos_id is not None and ids[:2] == [self._bos_id, self._bos_id]:
            del ids[0]
        return ids

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
            text: str = self._tokenizer.decode(checked, skip_special_tokens=skip_special_tokens)
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

    def token_table(self) -> TokenTableData:
        """The text of every token, for the C++ detokenizer. Made anew at each call: O(vocabulary)."""
        tokens = [self.id_to_token(token_id) for token_id in range(self._vocab_size)]
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
        return tokenizers.Tokenizer.from_str(text)
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
