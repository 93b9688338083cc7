"""Pieces of Lark source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

__all__ = ["literal", "regex_of", "text_with_tokens"]


def literal(text: str) -> str:
    """A text as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def regex_of(pattern: str) -> str:
    """A regular expression between slashes."""
    return (
        "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.DOTALL).replace("\n", r"\n") + "/"
    )


def text_with_tokens(text: str, special: Mapping[str, int]) -> str:
    """A text as a sequence of strings and special tokens: a special token is no text to the grammar.

    Returns "" for an empty text.
    """
    marks = sorted((mark for mark in special if mark and mark in text), key=len, reverse=True)
    if not marks:
        return literal(text) if text else ""
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
    return " ".join(f"<[{special[piece]}]>" if piece in special else literal(piece) for piece in pieces if piece)
