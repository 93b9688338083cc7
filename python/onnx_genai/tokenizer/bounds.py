"""How few tokens a text can have: what is longer than a prompt may be is refused before it is tokenised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from onnx_genai.tokenizer.table import byte_alphabet

__all__ = ["TokenBound"]

_NFC_SHRINKS_BY = 3
"""Composed forms of Unicode have at least a third of the UTF-8 bytes of what they are composed from."""
_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace", "Prepend"})
"""Steps before a model that drop no text."""
_NEVER = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
"""Bytes that UTF-8 does not have."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    """What a tokenizer can do with a text at best."""

    bytes_per_token: int
    """UTF-8 bytes that one token stands for at most."""
    lost: bytes = b""
    """Bytes that the vocabulary does not have, so that they become no token."""

    def least_tokens(self, text: str) -> int:
        """Tokens that a text has at least. Linear, and many times faster than tokenising."""
        data = text.encode("utf-8")
        kept = len(data.translate(None, self.lost)) if self.lost else len(data)
        return -(-kept // self.bytes_per_token)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> TokenBound | None:
        """The bound of a tokenizer.

        Returns:
            None where text can vanish (a normalizer, an unknown token, a token that takes the blanks beside it), or
            where that cannot be told.
        """
        model, vocab = tokenizer.model, tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder().values()
        if not isinstance(model, tokenizers.models.BPE) or any(token.lstrip or token.rstrip for token in added):
            return None
        if model.continuing_subword_prefix or model.end_of_word_suffix:
            return None
        steps = [*_steps(tokenizer.normalizer), *_steps(tokenizer.pre_tokenizer)]
        shrinks_by = 1
        for step in steps:
            factor = _shrinks_by(step)
            if factor is None:
                return None
            shrinks_by *= factor
        longest = max((len(token.content.encode("utf-8")) for token in added), default=1)
        if any(step.get("type") == "ByteLevel" for step in steps):
            lost = _lost_bytes(vocab)
            if lost and shrinks_by > 1:  # composing may make a byte that is lost
                return None
            # Each character of the vocabulary is a byte.
            return cls(max(longest, *map(len, vocab)) * shrinks_by, lost)
        if not model.byte_fallback or any(f"<0x{byte:02X}>" not in vocab for byte in range(256)):
            return None
        return cls(max(longest, *(len(token.encode("utf-8")) for token in vocab)) * shrinks_by)


def _steps(component: Any) -> list[Mapping[str, Any]]:
    """The JSON of a normalizer or pre-tokenizer, sequences laid out flat."""
    return [] if component is None else _flat(json.loads(component.__getstate__()))


def _flat(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if step.get("type") != "Sequence":
        return [step]
    return [each for inner in step.get("normalizers") or step.get("pretokenizers") or () for each in _flat(inner)]


def _shrinks_by(step: Mapping[str, Any]) -> int | None:
    """How many bytes of text become one at most; None if text can vanish."""
    kind = step.get("type")
    if kind in _KEEPING:
        return 1
    if kind == "NFC":
        return _NFC_SHRINKS_BY
    if kind in ("Split", "Punctuation"):
        return None if step.get("behavior") == "Removed" else 1
    if kind == "Replace":
        old, new = step.get("pattern", {}).get("String"), step.get("content", "")
        keeps = bool(old) and len(new.encode("utf-8")) >= len(old.encode("utf-8"))
        return 1 if keeps else None
    return None


def _lost_bytes(vocab: Mapping[str, int]) -> bytes:
    """Bytes of UTF-8 whose character of the GPT-2 byte alphabet is no token."""
    return bytes(byte for byte, each in enumerate(byte_alphabet()) if each not in vocab and byte not in _NEVER)
