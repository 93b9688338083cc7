"""The lists of log-probabilities in plain completions: :class:`LegacyLogprobs`."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from onnx_genai.server.wire import finite_logprob
from onnx_genai.types import TokenLogprob

__all__ = ["LegacyLogprobs"]


class LegacyLogprobs:
    """Makes the lists of one choice, piece by piece."""

    def __init__(self, top: int, offset: int = 0) -> None:
        """``offset`` is the number of characters that stand before the first token."""
        self._top = top
        self._offset = offset
        # Characters are counted as they become whole, since one may be several tokens.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, entries: Sequence[TokenLogprob | str]) -> dict[str, Any]:
        """The lists for these tokens; a plain text is a token that has no log-probability."""
        value: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            value["text_offset"].append(self._offset)
            if isinstance(entry, str):
                value["tokens"].append(entry)
                value["token_logprobs"].append(None)
                value["top_logprobs"].append(None)
                self._offset += len(entry)
                continue
            value["tokens"].append(_text(entry))
            value["token_logprobs"].append(finite_logprob(entry.logprob))
            value["top_logprobs"].append(
                {_text(other): finite_logprob(other.logprob) for other in entry.top} if self._top else None
            )
            self._offset += len(self._decoder.decode(entry.token_bytes))
        return value


def _text(entry: TokenLogprob) -> str:
    """The token; one that is no whole character shows its bytes, so that different tokens stay different."""
    try:
        return entry.token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
