"""How byte-level BPE vocabularies split text before merging, by the name in ``tokenizer.ggml.pre``.

The patterns are those of the published ``tokenizer.json`` files of the models.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT", "PRE_TOKENIZERS", "PreTokenizer"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}|{_SIGNS}|{_SPACES}"
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SIGNS_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SIGNS_SLASH}|{_SPACES}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """One way to split."""

    pattern: str | None = None
    """Pieces are the matches of this pattern; None: the pattern of GPT-2."""
    single_digits: bool = False
    """Each digit is a piece of its own, before the pattern."""
    ignore_merges: bool = False
    """A piece that is a token is taken whole, even if merging would not reach it."""
    compose: bool = False
    """Text is brought to Unicode NFC first."""
    add_bos: bool = False
    """The begin token is added when the file does not say."""


DEFAULT = PreTokenizer()
"""GPT-2; also taken, with a warning, for names that are not known."""

_LLAMA_BPE = PreTokenizer(pattern=_LLAMA3, ignore_merges=True, add_bos=True)
_CL100K = PreTokenizer(pattern=_LLAMA3)
_QWEN = PreTokenizer(pattern=_QWEN2, compose=True)
_DIGITS = PreTokenizer(single_digits=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": DEFAULT,
    "phi-2": DEFAULT,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama-bpe": _LLAMA_BPE,
    "falcon3": _LLAMA_BPE,
    "smaug-bpe": _CL100K,
    "dbrx": _CL100K,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "stablelm2": PreTokenizer(pattern=_QWEN2),
    "tekken": PreTokenizer(pattern=_TEKKEN, ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer(pattern=_GPT4O),
    "llama4": PreTokenizer(pattern=_GPT4O),
}
