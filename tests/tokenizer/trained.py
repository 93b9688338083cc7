"""Four small tokenizers trained on a few sentences, one of each kind that packages have, and texts to try them on."""

from __future__ import annotations

import json
import random
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

__all__ = ["KINDS", "random_ids", "random_sequences", "random_text", "trained"]

CORPUS = [
    "The river rises in the hills, and it isn't long before it runs to the sea.",
    "We've seen shells there; they're brown, she's sure, and I'm not. Do not ask!",
    "  Two  spaces, three   spaces,\tand a tab\n\nare white space.",
    "Zahlen: 1 22 333 4444. Umlaute: äöü ÄÖÜ ß. Où ça? Là-bas, près de l'été.",
    "Прямо и направо, потом налево. Ελληνικά και λατινικά.",
    "東京の川は海へ流れる。你好，世界！ 안녕하세요 세계. नमस्ते दुनिया สวัสดีชาวโลก",
    "مرحبا بالعالم שלום עולם 😀🙂 👨‍👩‍👧 🏳️‍🌈 e\u0301a\u0308 def add(a, b): return a + b",
]
KINDS = ("byte_level", "metaspace_byte_fallback", "unigram", "word_piece")
_SPECIAL = ("<unk>", "<s>", "</s>", "<|im_end|>")
_PIECES = (
    *"aZéßñджΩאשمरส東京川안녕😀🙂",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u0000",
    "\u0007",
    "\u001b[0m",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u202e",
    "e\u0301",
    "a\u0308\u0323",
    "क्षि",
    "👨\u200d👩\u200d👧",
    "🏳️\u200d🌈",
    "👍🏽",
    "🇫🇷",
    "\U0010ffff",
    "\ufffd",
    "\ue000",
    "the ",
    " river",
    "isn't",
    " do not",
    " .",
    "!",
    "<s>",
    "<|im_end|>",
    "▁",
    "##a",
    "<0x41>",
    "return a + b",
    "東京の川",
    "направо",
)


@cache
def trained(kind: str) -> Tokenizer:
    """The tokenizer of a kind, with special tokens and one added token that is none."""
    if kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    elif kind == "metaspace_byte_fallback":
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1, right=0)])
        first = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=first, limit_alphabet=60, max_token_length=12, show_progress=False
        )
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    if kind == "metaspace_byte_fallback":
        # The trainer makes added tokens of all of these, but byte tokens are ordinary ones.
        document = json.loads(tokenizer.to_str())
        document["added_tokens"] = []
        tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    return tokenizer


def random_text(generator: random.Random) -> str:
    """Scripts, emoji sequences, combining marks, control characters, marks of vocabularies, any code point."""
    parts = []
    for _ in range(generator.randrange(1, 9)):
        if generator.random() < 0.15:
            code = generator.randrange(0x110000)
            parts.append("?" if 0xD800 <= code < 0xE000 else chr(code))
        else:
            parts.append(generator.choice(_PIECES))
    return "".join(parts)


def random_ids(tokenizer: Tokenizer, generator: random.Random) -> list[int]:
    """The ids of a random text, cut into and mixed with special tokens, unknown ids and runs of any tokens.

    In vocabularies with bytes the runs make invalid UTF-8: half characters, lone continuations, overlong forms.
    """
    ids: list[int] = tokenizer.encode(random_text(generator), add_special_tokens=False).ids
    size = tokenizer.get_vocab_size()
    for _ in range(generator.randrange(0, 4)):
        place = generator.randrange(len(ids) + 1)
        choice = generator.random()
        if choice < 0.35:
            ids.insert(place, tokenizer.token_to_id(generator.choice(_SPECIAL)))
        elif choice < 0.5 and ids:
            del ids[place : place + generator.randrange(1, 3)]
        elif choice < 0.6:
            ids.insert(place, size + generator.randrange(3))
        elif choice < 0.8:
            ids[place:place] = _bytes(tokenizer, generator)
        else:
            ids[place:place] = [generator.randrange(size) for _ in range(generator.randrange(1, 4))]
    return ids


@cache
def random_sequences(kind: str) -> list[list[int]]:
    """The ids of 5,000 random texts, the same at every call."""
    generator = random.Random(f"texts for {kind}")
    return [random_ids(trained(kind), generator) for _ in range(5000)]


def _bytes(tokenizer: Tokenizer, generator: random.Random) -> list[int]:
    """Tokens of bytes that are often no UTF-8; any tokens in a vocabulary without bytes."""
    broken = generator.choice(
        [b"\xc3(", b"\xed\xa0\x80", b"\xc0\x80", b"\xf0\x9f", b"\xff", b"\xe2\x80\x80\x80", b"\x80"]
    )
    names = [f"<0x{byte:02X}>" for byte in broken]
    if tokenizer.token_to_id("<0x00>") is None:
        names = [_BYTE_CHARACTERS[byte] for byte in broken]
    found = [tokenizer.token_to_id(name) for name in names]
    return [token_id for token_id in found if token_id is not None]


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_BYTE_CHARACTERS = _byte_characters()
