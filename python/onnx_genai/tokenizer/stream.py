"""Text from tokens one at a time, for callers outside the engine; the engine has the same in C++."""

from __future__ import annotations

import codecs

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tokenizer.table import TokenKind, TokenTableData

__all__ = ["TokenStream"]


class TokenStream:
    r"""Turns ids into text piece by piece. One thread.

    The pieces and the last :meth:`flush` join to exactly the one-shot decode of all ids. What later ids could still
    change is held back: the bytes of an unfinished character, and in vocabularies with byte-fallback tokens a whole run
    of those, because one bad byte makes the run bad.

    Example:
        >>> table = TokenTableData(
        ...     decoding="byte_level", strip_first_space=False, bytes=(b"\xc3", b"\xa9!"), kinds=(TokenKind.TEXT,) * 2
        ... )
        >>> stream = TokenStream(table)
        >>> [stream.append(0), stream.append(1), stream.flush()]
        ['', 'é!', '']
    """

    def __init__(self, table: TokenTableData, *, skip_special_tokens: bool = True) -> None:
        """Begins a text.

        Args:
            table: The tokenizer's :meth:`~onnx_genai.tokenizer.Tokenizer.token_table`.
            skip_special_tokens: Leave special tokens out.
        """
        self._table = table
        self._skips = skip_special_tokens
        self._run = bytearray()
        self._at_start = True
        self._begin()

    def append(self, token_id: int) -> str:
        """Text that became certain with this id; may be empty. Ids that do not exist give no text.

        Raises:
            InvalidArgumentError: ``token_id`` is no whole number of at least 0.
        """
        if isinstance(token_id, bool) or not hasattr(token_id, "__index__") or token_id < 0:
            raise InvalidArgumentError(f"token_id is {token_id!r}; allowed: a whole number of at least 0")
        table = self._table
        if token_id >= len(table.bytes):
            return ""
        kind = table.kinds[token_id]
        # A special token without text is an id that does not exist; such an id does not even end a run of bytes.
        if kind is TokenKind.SPECIAL and (self._skips or not table.bytes[token_id]):
            return ""
        at_start = self._at_start
        self._at_start = False
        if kind is TokenKind.BYTE and table.decoding == "byte_fallback":
            self._run += table.bytes[token_id]
            return ""
        data = self._take_run()
        if at_start and token_id in table.first:
            self._strips = False
            data += table.first[token_id]
        else:
            data += table.bytes[token_id]
        return self._stripped(self._decoder.decode(data))

    def flush(self) -> str:
        """The rest; bytes of an unfinished character become U+FFFD. The stream then begins a new text."""
        text = self._stripped(self._decoder.decode(self._take_run(), final=True))
        self._begin()
        return text

    def _begin(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True
        self._strips = self._table.strip_first_space

    def _take_run(self) -> bytes:
        """The run of byte tokens as UTF-8: all of it, or one U+FFFD a byte."""
        run = bytes(self._run)
        self._run.clear()
        try:
            run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd".encode() * len(run)
        return run

    def _stripped(self, text: str) -> str:
        if not self._strips or not text:
            return text
        self._strips = False
        return text.removeprefix(" ")
