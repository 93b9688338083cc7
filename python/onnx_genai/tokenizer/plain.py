"""Encoding text whose control strings stay text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from onnx_genai.tokenizer.backend import encoded, read_tokenizer

__all__ = ["PlainEncoder"]


class PlainEncoder:
    """A tokenizer in which special tokens have secret names, so that no text holds one by itself.

    Where a control string is to count, its secret name is put in its place; all other text is split as the tokenizer
    splits text in which no special token is known, in its whole context. Immutable; safe from any thread.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special: Mapping[str, int]) -> None:
        """Takes the tokenizer, and text to id of its special tokens. Cost: the tokenizer is read once more."""
        nonce = secrets.token_hex(8)
        # Private-use characters at both ends, hexadecimal between: no normalizer changes that.
        self._names = {text: f"\ue000{nonce}{index:x}\ue001" for index, text in enumerate(special)}
        document = json.loads(tokenizer.to_str())
        self._tokenizer = read_tokenizer(json.dumps(_renamed(document, self._names)))
        texts = sorted(self._names, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None
        # Ids that are no part of the model's vocabulary are given out anew when a tokenizer is read.
        wanted = {self._names.get(token.content, token.content): token_id for token_id, token in _added(tokenizer)}
        found = {name: self._tokenizer.token_to_id(name) for name in wanted}
        self._ids = {found[name]: token_id for name, token_id in wanted.items() if found[name] != token_id}

    def encode(self, text: str, plain: Sequence[tuple[int, int]]) -> list[int]:
        """Token ids; control strings that touch a span ``[start, end)`` of ``plain`` are text. Nothing is added."""
        if self._control is not None:
            spans = iter(sorted(plain))
            span = next(spans, None)
            pieces: list[str] = []
            place = 0
            for match in self._control.finditer(text):
                while span is not None and span[1] <= match.start():
                    span = next(spans, None)
                if span is None or span[0] >= match.end():
                    pieces += (text[place : match.start()], self._names[match.group()])
                    place = match.end()
            text = "".join([*pieces, text[place:]])
        ids = encoded(self._tokenizer, text)
        return [self._ids.get(token_id, token_id) for token_id in ids]


def _added(tokenizer: tokenizers.Tokenizer) -> list[tuple[int, tokenizers.AddedToken]]:
    return sorted(tokenizer.get_added_tokens_decoder().items())


def _renamed(document: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer.json without what is put around a text, in which the special tokens have other names."""
    document.update(post_processor=None, truncation=None, padding=None)
    for token in document["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = document["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if isinstance(model.get("merges"), list):
        model["merges"] = [merge for merge in model["merges"] if not _makes_special(merge, names)]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return document


def _makes_special(merge: Any, names: Mapping[str, str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
