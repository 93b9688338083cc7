"""Writes detokenizer.txt and detokenizer.json: token ids and the text that Hugging Face `tokenizers` makes of them.

Usage: python make_detokenizer.py [--output-dir FOLDER]

The tokenizers are built here, so that bytes and kind of every token are known. Both files hold the same; the text file
is for the C++ tests (bytes in hex, "-" for none):

    table NAME DECODING STRIP   byte_level or byte_fallback; 1 if one leading space is stripped
    token KIND BYTES            text, byte or special; ids count from 0
    first ID BYTES              what this token is instead when no other stands before it
    decode SKIP TEXT ID...      SKIP: 1 leaves special tokens out; TEXT: UTF-8
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

RANDOM_CASES = 120
EMOJI = "🙂".encode()
FAMILY = "👨‍👩‍👧".encode()


@dataclass(frozen=True)
class Token:
    kind: str
    content: bytes


@dataclass(frozen=True)
class Table:
    name: str
    decoding: str
    strips: bool
    tokens: list[Token]
    tokenizer: Tokenizer
    first: dict[int, bytes] = field(default_factory=dict)


def byte_characters() -> dict[int, str]:
    """The printable character that byte-level vocabularies write for each byte: GPT-2's table."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    if set(table.values()) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise AssertionError("the byte table differs from that of the tokenizers library")
    return table


def byte_level_table() -> Table:
    characters = byte_characters()
    pieces = [
        *[bytes([byte]) for byte in range(256)],
        b" the",
        b"END",
        EMOJI[:2],
        EMOJI[2:],
        b"ok" + EMOJI[:3],
        EMOJI[3:] + b"!",
        EMOJI[1:3],
        FAMILY,
        FAMILY[:7],
        FAMILY[7:],
        "né".encode(),
        "né".encode()[:2],
        b"\xc3(",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf5\x80",
    ]
    vocab = {"".join(characters[byte] for byte in piece): i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|a b|>", special=True)])
    tokenizer.add_tokens([AddedToken("tool call"), AddedToken("caf\u00e9")])
    added = [
        Token("special", b"<|end|>"),
        Token("special", b"<|a b|>"),  # a space stands for no byte: the text is taken as it is
        Token("text", b"tool call"),
        Token("text", b"caf\xe9"),  # every character stands for a byte: so the library takes it, and gives U+FFFD
    ]
    return Table("byte_level", "byte_level", False, [*[Token("text", p) for p in pieces], *added], tokenizer)


def byte_fallback_table(name: str, strips: bool) -> Table:
    texts = [" a", "a", "b", " ", "  ", "", "é", "你", " 你好", "🙂", "\u200d", "END", "EN", "D", "x y"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {text.replace(" ", "▁"): 256 + i for i, text in enumerate(texts)}
    vocab["<unk>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken(" two words")])
    tokens = [Token("byte", bytes([byte])) for byte in range(256)]
    tokens += [Token("text", text.encode()) for text in [*texts, "<unk>"]]
    tokens += [Token("special", b"<s>"), Token("special", b"</s>"), Token("text", b" two words")]
    return Table(name, "byte_fallback", strips, tokens, tokenizer)


def metaspace_table() -> Table:
    texts = ["▁a", "▁", "▁▁", "b", "▁c▁d", "", "你", "▁🙂", "e f"]
    vocab = {text: i for i, text in enumerate(texts)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="b"))
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokens = [Token("text", text.replace("▁", " ").encode()) for text in texts]
    first = {i: text.replace("▁", "").encode() for i, text in enumerate(texts) if "▁" in text}
    return Table("metaspace", "byte_level", False, [*tokens, Token("special", b"<s>")], tokenizer, first)


def id_lists(table: Table, rng: np.random.Generator) -> list[list[int]]:
    """Random ids, with bytes of real characters and of broken ones among them."""
    size = len(table.tokens)
    if size < 256:
        return [rng.integers(0, size + 1, int(rng.integers(0, 6))).tolist() for _ in range(RANDOM_CASES)]
    index = {token.content: i for i, token in enumerate(table.tokens) if len(token.content) == 1}
    interesting = [EMOJI, FAMILY, "é你".encode(), b"\xc3(", b"\xed\xa0\x80", b"\xc0\x80", b"\xf0\x9f", b"\xff", b" "]
    lists: list[list[int]] = [[], [size], [size + 7, 0x41]]
    lists += [[index[bytes([byte])] for byte in piece] for piece in interesting]
    while len(lists) < RANDOM_CASES:
        ids: list[int] = []
        for _ in range(int(rng.integers(1, 8))):
            choice = rng.random()
            if choice < 0.4:
                piece = interesting[int(rng.integers(len(interesting)))]
                ids += [index[bytes([byte])] for byte in piece[: int(rng.integers(1, len(piece) + 1))]]
            elif choice < 0.9:
                ids.append(int(rng.integers(256, size + 1)))  # size itself: an id that the tokenizer lacks
            else:
                ids.append(int(rng.integers(0, 256)))
        lists.append(ids)
    return lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().output_dir
    rng = np.random.default_rng(20261129)
    tables = [
        byte_level_table(),
        byte_fallback_table("llama", True),
        byte_fallback_table("gemma", False),
        metaspace_table(),
    ]
    lines: list[str] = []
    data: list[dict[str, object]] = []
    for table in tables:
        lines.append(f"table {table.name} {table.decoding} {int(table.strips)}")
        lines += [f"token {token.kind} {token.content.hex() or '-'}" for token in table.tokens]
        lines += [f"first {token_id} {content.hex() or '-'}" for token_id, content in table.first.items()]
        cases = []
        for ids in id_lists(table, rng):
            for skip in (True, False):
                text = table.tokenizer.decode(ids, skip_special_tokens=skip)
                lines.append(" ".join(["decode", str(int(skip)), text.encode().hex() or "-", *map(str, ids)]))
                cases.append({"skip_special_tokens": skip, "ids": ids, "text": text})
        data.append({"tokenizer": json.loads(table.tokenizer.to_str()), "name": table.name, "cases": cases})
    (folder / "detokenizer.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dumped = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    (folder / "detokenizer.json").write_text(dumped + "\n", encoding="utf-8")
    print(f"{len(lines)} lines")


if __name__ == "__main__":
    main()
