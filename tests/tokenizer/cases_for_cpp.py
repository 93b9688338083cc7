"""The random texts of all kinds of tokenizers in the form that the C++ detokenizer's test reads."""

from __future__ import annotations

from pathlib import Path

from onnx_genai.tokenizer import Tokenizer
from tests.tokenizer.trained import KINDS, random_sequences, trained

__all__ = ["write_cases"]


def write_cases(path: Path) -> None:
    """Tables, ids and what the tokenizers library decodes; ``tests/golden/make_detokenizer.py`` has the format.

    Each of the 5,000 texts a kind comes with and without special tokens, and one in ten also cut after every token.
    """
    lines: list[str] = []
    for kind in KINDS:
        reference = trained(kind)
        table = Tokenizer(reference.to_str(), config={}).token_table()
        lines.append(f"table {kind} {table.decoding} {int(table.strip_first_space)}")
        pairs = zip(table.kinds, table.bytes, strict=True)
        lines += [f"token {token_kind.name.lower()} {data.hex() or '-'}" for token_kind, data in pairs]
        lines += [f"first {token_id} {data.hex() or '-'}" for token_id, data in table.first.items()]
        sequences = random_sequences(kind)
        sequences = sequences + [ids[:end] for ids in sequences[::10] for end in range(len(ids))]
        for skip in (True, False):
            texts = reference.decode_batch(sequences, skip_special_tokens=skip)
            lines += [
                " ".join(["decode", str(int(skip)), text.encode().hex() or "-", *map(str, ids)])
                for ids, text in zip(sequences, texts, strict=True)
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
