"""Keeping control strings in what users wrote apart from those that the template writes.

A control string, such as ``<|im_start|>``, is text that a tokenizer turns into one special token. The guard puts marks
around those in user text before rendering, and afterwards says where they went.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Guard", "GuardedPrompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedPrompt:
    """A prompt, and which of its characters are control strings, or beginnings and ends of some, that users wrote."""

    text: str
    plain: tuple[tuple[int, int], ...]
    """Spans ``[start, end)`` in characters, in order: a control string that touches one is to be read as plain text."""


class Guard:
    """Marks for one rendering. One thread.

    The marks are random digits, so nobody can write them, and filters that change case or escape text keep them.
    """

    def __init__(self, control_texts: Iterable[str]) -> None:
        texts = sorted({text for text in control_texts if text}, key=lambda text: (-len(text), text))
        self._whole = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._heads = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._tails = frozenset(text[start:] for text in texts for start in range(1, len(text)))
        self._longest = len(texts[0]) if texts else 0
        self._open, self._close = (str(10**23 + secrets.randbelow(9 * 10**23)) for _ in range(2))
        self.has_marked = False

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with marks in its texts, but for what the assistant said and the fields ``role`` and ``type``."""
        if message["role"] == "assistant":
            return message
        return {key: value if key == "role" else self.value(value) for key, value in message.items()}

    def value(self, value: Any) -> Any:
        """A copy of a text, or of a list or object of texts, with marks."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key == "type" else self.value(item) for key, item in value.items()}
        return value

    def prompt(self, text: str) -> GuardedPrompt:
        """Takes the marks out of a rendered text."""
        pieces: list[str] = []
        plain: list[tuple[int, int]] = []
        size, start = 0, None
        for piece in re.split(f"({self._open}|{self._close})", text):
            if piece == self._open:
                start = size
            elif piece == self._close:
                # A template may have cut the text between the marks, and left only one of them.
                if start is not None and start < size:
                    plain.append((start, size))
                start = None
            else:
                pieces.append(piece)
                size += len(piece)
        return GuardedPrompt(text="".join(pieces), plain=tuple(plain))

    def _marked(self, text: str) -> str:
        spans = self._spans(text)
        self.has_marked = self.has_marked or bool(spans)
        for start, end in reversed(spans):
            text = f"{text[:start]}{self._open}{text[start:end]}{self._close}{text[end:]}"
        return text

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Control strings, and the beginning or end of one where a neighbouring text could complete it."""
        if self._whole is None:
            return []
        spans = [match.span() for match in self._whole.finditer(text)]
        begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
        for size in range(min(self._longest, end - begin), 0, -1):
            if text[begin : begin + size] in self._tails:
                spans.append((begin, begin + size))
                break
        for size in range(min(self._longest, end - begin), 0, -1):
            if text[end - size : end] in self._heads:
                spans.append((end - size, end))
                break
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(spans):
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        return joined
