"""Numbers with their nouns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_genai.words import counted

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "onnx_genai"
NOUNS = "tokens|turns|threads|prompts|heads|layers|nodes|tensors|pages|requests|answers|cores|tools"


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (0, "token", None, "0 tokens"),
        (1, "token", None, "1 token"),
        (2, "token", None, "2 tokens"),
        (1_000_000, "token", None, "1000000 tokens"),
        (1, "entry", "entries", "1 entry"),
        (3, "entry", "entries", "3 entries"),
        (1.0, "core", None, "1 core"),
        (1.5, "core", None, "1.5 cores"),
    ],
)
def test_noun_fits_its_number(number: float, noun: str, plural: str | None, text: str) -> None:
    assert counted(number, noun, plural) == text


def test_no_message_of_the_command_line_counts_by_itself() -> None:
    # Behind "of", and for limits that are never one, the plural is right whatever the number is.
    by_hand = re.compile(rf"\{{(?!UNKNOWN_LIMIT_TOKENS|needed|count_text|rate:)[^{{}}]*\}} ({NOUNS})\b")

    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((PACKAGE / "cli").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if by_hand.search(line)
    ]

    assert found == []
