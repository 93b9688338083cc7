"""Two tiny SentencePiece BPE vocabularies and what they make of some texts -> sentencepiece.json.

Needs sentencepiece; run from the repository root: ``python -m tests.golden.make_sentencepiece``.

``prefix`` puts a space before the text, as Llama does; ``plain`` does not and has user-defined pieces, as Gemma does.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece

OUT = Path(__file__).with_name("sentencepiece.json")

CORPUS = [
    "The river rises in the hills and runs to the sea.",
    "In spring the rain makes the river rise and the valley turns green.",
    "She sells sea shells; the shells she sells are seashells, surely.",
    "A baker bakes bread, and the bread the baker bakes is brown.",
    "  Two  spaces, three   spaces, and a tab\tare white space.",
    "Zahlen: 1 22 333 4444. Umlaute: äöü ÄÖÜ ß. Прямо и направо.",
    "def add(a, b):\n    return a + b\n",
]

TEXTS = [
    "the river",
    " the river",
    "The  baker\tbakes 123 shells.",
    "",
    " ",
    "   ",
    "a",
    "seashells\n\nsurely\n",
    "def add(a, b):\n    return a + b",
    "grün, größer, straße",
    "направо и прямо",
    "日本語 with bytes 😀",
    "\u00a0no-break\u2003em",
    "x" * 40,
    "▁already marked",
    "<tag> and </tag>",
]


def train(name: str, **options: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 8),
        model_writer=buffer,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())
    ids = range(model.vocab_size())
    user = set(options.get("user_defined_symbols", []))
    return {
        "tokens": [model.id_to_piece(index) for index in ids],
        "scores": [model.get_score(index) for index in ids],
        "types": [
            2
            if model.is_unknown(index)
            else 3
            if model.is_control(index)
            else 6
            if model.is_byte(index)
            else 4
            if model.id_to_piece(index) in user
            else 1
            for index in ids
        ],
        "cases": [{"text": text, "ids": model.encode(text)} for text in TEXTS],
    }


def main() -> None:
    golden = {
        "version": sentencepiece.__version__,
        "prefix": train("prefix", add_dummy_prefix=True),
        "plain": train("plain", add_dummy_prefix=False, user_defined_symbols=["<tag>", "</tag>", "\n\n", "▁▁▁"]),
    }
    OUT.write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
    print(OUT, OUT.stat().st_size, [len(golden[name]["tokens"]) for name in ("prefix", "plain")])


if __name__ == "__main__":
    main()
