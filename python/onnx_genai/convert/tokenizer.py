"""Makes ``tokenizer.json`` from the vocabulary in a GGUF file.

Two kinds are known: byte-level BPE (``gpt2``), and SentencePiece BPE (``llama``; Gemma says so too), whose merges are
found again from the scores of its pieces. Format of ``tokenizer.json``: the Hugging Face tokenizers library.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_genai.convert.gguf_file import GgufFile
from onnx_genai.convert.pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from onnx_genai.errors import PackageError, UnsupportedError

__all__ = ["Vocabulary", "read_vocabulary", "tokenizer_json"]

Json = dict[str, object]

KINDS = ("gpt2", "llama")
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Values of ``tokenizer.ggml.token_type`` that need more than a row in the vocabulary."""

SPACE = "\u2581"
"""Stands for a space in SentencePiece vocabularies."""

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
)
"""Control tokens that end an answer besides the one that the file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokenizer part of a GGUF file."""

    kind: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    pre: PreTokenizer
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """The first is the file's own; the others end a turn."""
    unk_id: int | None
    pad_id: int | None
    add_bos: bool
    add_eos: bool
    space_prefix: bool
    strip_after_special: bool
    """White space after a control token belongs to it (Phi-3)."""
    chat_template: str | None
    warnings: tuple[str, ...]


def read_vocabulary(file: GgufFile, rows: int) -> Vocabulary:
    """Reads the tokenizer metadata.

    Args:
        file: The open file.
        rows: Rows of the embedding; the vocabulary may be shorter, not longer.

    Raises:
        UnsupportedError: A kind of tokenizer that is not known.
        PackageError: Arrays that are missing, do not fit each other, or hold values of the wrong type.
    """
    prefix = "tokenizer.ggml."
    kind = file.text(prefix + "model")
    if kind not in KINDS:
        raise UnsupportedError(f"{file.path}: tokenizer.ggml.model is {kind!r}; known: {', '.join(KINDS)}")
    tokens = _strings(file, prefix + "tokens")
    if not 0 < len(tokens) <= rows:
        raise PackageError(f"{file.path}: {len(tokens)} tokens for an embedding of {rows} rows; expected 1..{rows}")
    warnings: list[str] = []
    pre = _pre_tokenizer(file, warnings) if kind == "gpt2" else DEFAULT
    sentencepiece = kind == "llama"
    special = {
        name: _id(file, f"{prefix}{name}_token_id", len(tokens), default if sentencepiece else None)
        for name, default in {"bos": 1, "eos": 2, "unknown": 0, "padding": None, "eot": None, "eom": None}.items()
    }
    types = _numbers(file, prefix + "token_type", len(tokens)) or (1.0,) * len(tokens)
    ends = [special["eos"], special["eot"], special["eom"]]
    known = {token: index for index, token in enumerate(tokens) if types[index] in (CONTROL, USER_DEFINED)}
    ends += [known.get(text) for text in END_OF_TURN]
    return Vocabulary(
        kind=kind,
        tokens=tokens,
        types=tuple(int(value) for value in types),
        scores=_numbers(file, prefix + "scores", len(tokens)),
        merges=_merges(file, tokens, warnings) if kind == "gpt2" else (),
        pre=pre,
        bos_id=special["bos"],
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        unk_id=special["unknown"],
        pad_id=special["padding"],
        add_bos=file.boolean(prefix + "add_bos_token", sentencepiece or pre.add_bos) and special["bos"] is not None,
        add_eos=file.boolean(prefix + "add_eos_token", False) and special["eos"] is not None,
        space_prefix=file.boolean(prefix + "add_space_prefix", sentencepiece),
        strip_after_special=sentencepiece and file.text("general.architecture") == "phi3",
        chat_template=file.text("tokenizer.chat_template", "") or None,
        warnings=tuple(warnings),
    )


def tokenizer_json(vocabulary: Vocabulary) -> Json:
    """The content of ``tokenizer.json``."""
    byte_level = vocabulary.kind == "gpt2"
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": _normalizer(vocabulary),
        "pre_tokenizer": _pre_tokenizer_json(vocabulary.pre) if byte_level else None,
        "post_processor": _post_processor(vocabulary),
        "decoder": _BYTE_LEVEL_DECODER if byte_level else _sentencepiece_decoder(vocabulary),
        "model": _model(vocabulary),
    }


def special_text(vocabulary: Vocabulary, token_id: int | None) -> str | None:
    """Text of a special token, or None."""
    return None if token_id is None else vocabulary.tokens[token_id]


# Reading ------------------------------------------------------------------------------------------------------------


def _strings(file: GgufFile, key: str) -> tuple[str, ...]:
    values = file.items(key)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise PackageError(f"{file.path}: {key}[{index}] is {value!r}; expected a string")
    return tuple(str(value) for value in values)


def _numbers(file: GgufFile, key: str, count: int) -> tuple[float, ...]:
    values = file.items(key)
    if values and len(values) != count:
        raise PackageError(f"{file.path}: {key} has {len(values)} entries; expected one a token ({count})")
    numbers = []
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise PackageError(f"{file.path}: {key}[{index}] is {value!r}; expected a number")
        numbers.append(float(value))
    return tuple(numbers)


def _id(file: GgufFile, key: str, count: int, default: int | None) -> int | None:
    if key not in file.metadata:
        return default if default is not None and default < count else None
    value = file.integer(key)
    if value >= count:
        raise PackageError(f"{file.path}: {key} is {value}; expected an id below {count}")
    return value if value >= 0 else None


def _pre_tokenizer(file: GgufFile, warnings: list[str]) -> PreTokenizer:
    name = file.text("tokenizer.ggml.pre", "")
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    said = f"tokenizer.ggml.pre is {name!r}" if name else "tokenizer.ggml.pre is missing"
    warnings.append(
        f"{said}, which is not known ({', '.join(PRE_TOKENIZERS)}); text is split as for gpt-2, so some prompts may "
        "give other tokens than the model was trained on"
    )
    return DEFAULT


def _merges(file: GgufFile, tokens: tuple[str, ...], warnings: list[str]) -> tuple[tuple[str, str], ...]:
    """Pairs in the order of their rank; a space inside a token can stand at its begin only."""
    present = set(tokens)
    merges = []
    dropped = 0
    for index, text in enumerate(_strings(file, "tokenizer.ggml.merges")):
        cut = text.find(" ", 1)
        if cut < 0:
            raise PackageError(f"{file.path}: tokenizer.ggml.merges[{index}] is {text!r}; expected two tokens")
        left, right = text[:cut], text[cut + 1 :]
        if left in present and right in present and left + right in present:
            merges.append((left, right))
        else:
            dropped += 1
    if dropped:
        warnings.append(f"{dropped} merges name tokens that are not in the vocabulary and were left out")
    return tuple(merges)


# Writing ------------------------------------------------------------------------------------------------------------

_BYTE_LEVEL_DECODER: Json = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _added_tokens(vocabulary: Vocabulary) -> list[Json]:
    """Tokens that are found in the text as a whole, before anything else."""
    added = []
    ends = {vocabulary.bos_id, *vocabulary.eos_ids}
    for index, (content, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        special = kind in (CONTROL, UNKNOWN)
        if not special and kind != USER_DEFINED:
            continue
        added.append(
            {
                "id": index,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": vocabulary.strip_after_special and special and kind == CONTROL and content not in _NO_STRIP,
                # User-defined SentencePiece pieces are written with the sign for a space, so they are looked for in
                # the normalised text; with a space prefix their own text would be changed, too.
                "normalized": not special and vocabulary.kind == "llama" and not vocabulary.space_prefix,
                "special": special or index in ends,
            }
        )
    return added


_NO_STRIP = ("<s>", "<unk>", "<|endoftext|>")


def _normalizer(vocabulary: Vocabulary) -> Json | None:
    if vocabulary.kind == "gpt2":
        return {"type": "NFC"} if vocabulary.pre.compose else None
    replace: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if not vocabulary.space_prefix:
        return replace
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}


def _pre_tokenizer_json(pre: PreTokenizer) -> Json:
    byte_level: Json = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": pre.pattern is None,
    }
    steps: list[Json] = []
    if pre.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if pre.pattern is not None:
        steps.append({"type": "Split", "pattern": {"Regex": pre.pattern}, "behavior": "Isolated", "invert": False})
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level]} if steps else byte_level


def _post_processor(vocabulary: Vocabulary) -> Json | None:
    """Adds the begin and end tokens that the model wants around a text."""
    bos = special_text(vocabulary, vocabulary.bos_id) if vocabulary.add_bos else None
    eos = special_text(vocabulary, vocabulary.eos_ids[0]) if vocabulary.add_eos else None
    if bos is None and eos is None:
        return None

    def around(sequence: str, type_id: int) -> list[Json]:
        items: list[Json] = [{"Sequence": {"id": sequence, "type_id": type_id}}]
        if bos is not None:
            items.insert(0, {"SpecialToken": {"id": bos, "type_id": type_id}})
        if eos is not None:
            items.append({"SpecialToken": {"id": eos, "type_id": type_id}})
        return items

    ids = {bos: vocabulary.bos_id, eos: vocabulary.eos_ids[0] if eos is not None else None}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (bos, eos) if text is not None
        },
    }


def _sentencepiece_decoder(vocabulary: Vocabulary) -> Json:
    steps: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _model(vocabulary: Vocabulary) -> Json:
    sentencepiece = vocabulary.kind == "llama"
    ids: dict[str, int] = {}
    for index, token in enumerate(vocabulary.tokens):
        # The format has one id a text; a repeated text keeps its first id and the later id gets a name of its own.
        ids[token if token not in ids else f"{token}\x00{index}"] = index
    unknown = special_text(vocabulary, vocabulary.unk_id)
    merges = _score_merges(vocabulary, ids) if sentencepiece else vocabulary.merges
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown if sentencepiece else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": sentencepiece,
        "byte_fallback": sentencepiece,
        "ignore_merges": vocabulary.pre.ignore_merges,
        "vocab": ids,
        "merges": [list(pair) for pair in merges],
    }


def _score_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Merges of a SentencePiece BPE vocabulary.

    SentencePiece joins the neighbours whose union is the piece of the highest score; every way to cut a piece into two
    pieces is therefore a merge, ranked by the score of the union.
    """
    ranked = []
    scores = vocabulary.scores or tuple(-float(index) for index in range(len(vocabulary.tokens)))
    for index, (piece, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind != 1:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[index], -cut, left, right))
    ranked.sort(key=lambda item: item[:2])
    return [(left, right) for _, _, left, right in ranked]
