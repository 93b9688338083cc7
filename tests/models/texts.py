"""Small tokenizers built in code."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["BYTE_LEVEL_SPECIALS", "byte_level_tokenizer", "word_level_tokenizer"]

BYTE_LEVEL_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2 of `byte_level_tokenizer`."""


def word_level_tokenizer(vocab_size: int) -> Tokenizer:
    """Words split at white space: ``<eos>`` 0, ``<bos>`` 1, ``<unk>`` 2, then ``w3`` .. ; decodes joined by spaces."""
    specials = ["<eos>", "<bos>", "<unk>"]
    words = [*specials, *(f"w{index}" for index in range(len(specials), vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
    return tokenizer


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE as in GPT-2: `BYTE_LEVEL_SPECIALS`, byte b as id 3 + b, then some merges.

    Every text can be encoded, and a character of several bytes is several tokens unless a merge joins them.
    """
    alphabet = _byte_alphabet()
    merges = [
        ("t", "h"),
        ("th", "e"),
        (alphabet[ord(" ")], "the"),
        ("E", "N"),
        ("EN", "D"),
        ("l", "l"),
        ("e", "ll"),
        ("o", "!"),
        # The first two bytes of many emoji: a token that is no character by itself.
        (alphabet[0xF0], alphabet[0x9F]),
    ]
    vocab = {word: index for index, word in enumerate(BYTE_LEVEL_SPECIALS)}
    for letter in alphabet:
        vocab[letter] = len(vocab)
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in BYTE_LEVEL_SPECIALS])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The printable letter that stands for each byte. Source: `bytes_to_unicode` of GPT-2."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = []
    shifted = 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + shifted))
            shifted += 1
    return letters
