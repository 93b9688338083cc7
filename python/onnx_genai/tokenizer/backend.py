"""The ``tokenizers`` library as it is used here.

Its calls for one text hold Python's lock from beginning to end; those for batches give it back, so long texts go that
way and other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers.models import BPE

__all__ = ["decoded", "encoded", "read_tokenizer"]

_LONG_TEXT = 2048
"""Characters from which a text goes the way of batches; shorter ones are done before another thread would run."""
_MANY_IDS = 1024


def read_tokenizer(text: str) -> tokenizers.Tokenizer:
    """A tokenizer from the text of a tokenizer.json; a BPE one keeps nothing of the texts that it reads.

    Since tokenizers 0.23 each thread keeps the words that it has split, up to 10,000 of each BPE tokenizer and 8 KB of
    each word, and frees them when the thread ends, not when the tokenizer does: a server's threads would hold what its
    clients have sent, and more with each model that is loaded. Splitting all words anew takes a quarter longer.

    Raises:
        Exception: The library cannot read it.
    """
    tokenizer = tokenizers.Tokenizer.from_str(text)
    if isinstance(tokenizer.model, BPE):
        # Not in 0.20.0, whose words go with their tokenizer.
        resize = getattr(tokenizer.model, "_resize_cache", None)
        if resize is not None:
            resize(0)
    return tokenizer


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
