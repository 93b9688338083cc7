"""Small tokenizers built in code: one of every decoder that a package may hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["byte_level", "documents", "metaspace_fallback", "tokenizer_json", "word_level"]

SPECIAL = ("<s>", "</s>", "<|im_end|>")


def tokenizer_json(
    model: Mapping[str, Any],
    decoder: Mapping[str, Any] | None,
    *,
    special: Sequence[tuple[int, str]] = (),
    plain_added: Sequence[tuple[int, str]] = (),
    **parts: Any,
) -> str:
    """A tokenizer.json text."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": text, "special": True, **flags} for i, text in special]
    added += [{"id": i, "content": text, "special": False, **flags} for i, text in plain_added]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: int(str(token["id"]))),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    document.update(parts)
    return json.dumps(document)


def _bpe(tokens: Sequence[str], **options: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [], **options}


def byte_alphabet() -> list[str]:
    """GPT-2's character for each of the 256 bytes, by byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in kept}
    spare = (chr(0x100 + n) for n in range(256))
    return [table[byte] if byte in table else next(spare) for byte in range(256)]


def byte_level(**parts: Any) -> str:
    """All bytes, some words, halves of an emoji, an added token outside the byte alphabet, specials, and an id hole."""
    alphabet = byte_alphabet()

    def word(data: bytes) -> str:
        return "".join(alphabet[byte] for byte in data)

    emoji = "😀".encode()
    tokens = [*alphabet, word(b"Hello"), word(b" world"), word(b"x" + emoji[:2]), word(emoji[2:] + b"END")]
    base = len(tokens)
    special = [(base + i, text) for i, text in enumerate(SPECIAL)]
    plain = [(base + 3, "<think>"), (base + 4, "日本 token"), (base + 5, "éé")]
    model = _bpe(tokens)
    model["vocab"][word(b"far away")] = 269
    return tokenizer_json(
        model,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        special=special,
        plain_added=plain,
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        **parts,
    )


def metaspace_fallback(*, strip: bool = True) -> str:
    """SentencePiece-like: marks for spaces, byte-fallback tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "▁▁", "▁a", "b", "▁▁c", "d▁e", "日", "<0xZZ>", "<0x1>", " raw"]
    stages: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        stages.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return tokenizer_json(
        _bpe(tokens, unk_token="<unk>", byte_fallback=True),
        {"type": "Sequence", "decoders": stages},
        special=[(0, "<unk>"), (1, "<s>"), (2, "</s>")],
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    )


def word_level(decoder: Mapping[str, Any] | None = None) -> str:
    """Words; without a decoder they are joined by a space."""
    tokens = ["<unk>", "a", "b", " c", "▁d", "e▁▁f", "▁", "##g", ".", "▁.", "n't", "", "h</w>", "##", "'", "▁▁i"]
    vocab = {token: i for i, token in enumerate(tokens)} | {"far": 19}
    return tokenizer_json(
        {
            "type": "WordLevel",
            "vocab": vocab,
            "unk_token": "<unk>",
        },
        decoder,
        special=[(0, "<unk>"), (17, "<eos>")],
        pre_tokenizer={"type": "Whitespace"},
    )


def documents() -> dict[str, str]:
    """Name to tokenizer.json of every kind whose table is exact."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "split": True}
    return {
        "byte_level": byte_level(),
        "byte_level_in_sequence": byte_level().replace(
            '"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}',
            '"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel", "add_prefix_space": true, '
            '"trim_offsets": true, "use_regex": true}]}',
        ),
        "byte_fallback": metaspace_fallback(),
        "byte_fallback_without_strip": metaspace_fallback(strip=False),
        "no_decoder": word_level(),
        "metaspace_always": word_level({**metaspace, "prepend_scheme": "always"}),
        "metaspace_first": word_level({**metaspace, "prepend_scheme": "first"}),
        "metaspace_never": word_level({**metaspace, "prepend_scheme": "never"}),
        "word_piece": word_level({"type": "WordPiece", "prefix": "##", "cleanup": True}),
        "word_piece_without_cleanup": word_level({"type": "WordPiece", "prefix": "##", "cleanup": False}),
        "replace_and_strip": word_level(
            {
                "type": "Sequence",
                "decoders": [
                    {"type": "Strip", "content": "▁", "start": 1, "stop": 0},
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": "--"},
                    {"type": "Fuse"},
                ],
            }
        ),
    }
