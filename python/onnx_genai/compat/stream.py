"""Text from tokens that come one by one: :class:`TokenizerStream`."""

from __future__ import annotations

import codecs
import operator
from collections.abc import Iterable

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tokenizer import TokenKind, TokenTableData

__all__ = ["TokenizerStream"]


class TokenizerStream:
    """Ids in, pieces of text out. The pieces, with that of :meth:`flush`, join to the text of all ids.

    A piece is empty while a character is incomplete. One thread at a time. Made by ``Tokenizer.create_stream``.

    Args:
        table: The text of every token.
        skip_special_tokens: Leave special tokens out.
        ends: Ids that end an answer: after one of them waiting bytes that are whole characters are given out.
    """

    def __init__(self, table: TokenTableData, *, skip_special_tokens: bool = True, ends: Iterable[int] = ()) -> None:
        self._table = table
        self._skip = skip_special_tokens
        self._ends = frozenset(ends)
        self._reset()

    def decode(self, token_id: int) -> str:
        """Adds a token and returns the text that is certain now.

        Raises:
            InvalidArgumentError: The id is not in the vocabulary.
        """
        try:
            token = operator.index(token_id)
        except TypeError as error:
            raise InvalidArgumentError(f"token_id is {token_id!r}; allowed: a whole number") from error
        if not 0 <= token < len(self._table.bytes):
            raise InvalidArgumentError(f"token_id is {token}; allowed: 0..{len(self._table.bytes) - 1}")
        return self._stripped(self._decoder.decode(self._bytes_of(token)))

    def flush(self) -> str:
        """Returns the rest, where incomplete characters are U+FFFD, and begins a new text."""
        text = self._stripped(self._decoder.decode(self._end_run(), final=True))
        self._reset()
        return text

    def _reset(self) -> None:
        # An incomplete character waits in the decoder.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._run = bytearray()
        """Byte tokens in a row: one that is invalid spoils them all, so they wait for the next other token."""
        self._at_start = True
        self._strips = self._table.strip_first_space

    def _bytes_of(self, token: int) -> bytes:
        """What the token adds to the output now."""
        table = self._table
        kind, data = table.kinds[token], table.bytes[token]
        # A special token without text is an id that does not exist.
        if kind is TokenKind.SPECIAL and (self._skip or not data):
            return self._end_run() if token in self._ends and _is_text(self._run) else b""
        at_start, self._at_start = self._at_start, False
        if kind is TokenKind.BYTE and table.decoding == "byte_fallback":
            self._run.extend(data)
            return b""
        if at_start and token in table.first:
            self._strips = False
            data = table.first[token]
        return self._end_run() + data

    def _end_run(self) -> bytes:
        run = bytes(self._run)
        self._run.clear()
        return run if _is_text(run) else "\ufffd".encode() * len(run)

    def _stripped(self, text: str) -> str:
        if not self._strips or not text:
            return text
        self._strips = False
        return text.removeprefix(" ")


def _is_text(data: bytes | bytearray) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
