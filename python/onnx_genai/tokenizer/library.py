"""How the ``tokenizers`` library reads a tokenizer.json here."""

from __future__ import annotations

import tokenizers
from tokenizers.models import BPE

__all__ = ["read_tokenizer"]


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
