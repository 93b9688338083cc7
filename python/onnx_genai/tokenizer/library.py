"""The calls of the tokenizers library that take long for long texts, made so that other threads run meanwhile.

Its calls for one text hold Python's lock from beginning to end; those for batches give it back.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

__all__ = ["decoded", "encoded"]

_LONG_TEXT = 2048
"""Characters from which a text goes the way of batches; shorter ones are done before another thread would run."""
_MANY_IDS = 1024


def encoded(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Token ids of a text, with nothing added."""
    if len(text) < _LONG_TEXT:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    else:
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def decoded(tokenizer: tokenizers.Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Text of token ids."""
    if len(ids) < _MANY_IDS:
        text: str = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    else:
        text = tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]
    return text
