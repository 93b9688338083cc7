"""The tokenizer.json that is made of GGUF metadata."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from onnx_genai.convert import import_gguf
from onnx_genai.convert.gguf_file import GgufFile
from onnx_genai.convert.pretokenizers import PRE_TOKENIZERS
from onnx_genai.convert.tokenizer import Vocabulary, read_vocabulary, tokenizer_json
from onnx_genai.errors import PackageError, UnsupportedError
from tests.convert.tiny import TINY, Tiny, write_gguf

GOLDEN = Path(__file__).parents[1] / "golden" / "sentencepiece.json"

TEXTS = [
    "Hello world",
    "  two  spaces and\ttabs\n\n\nlines \r\n end ",
    "I'm sure WE'LL see; don't",
    "1234567 and 3.14159 or 007",
    "größer straße ÀÉ naïve",
    "Привет мир مرحبا नमस्ते 日本語、中文",
    "😀👩‍👩‍👧 emoji",
    "HelloWorld fooBar XMLParser",
    "def f(x):\n\treturn x**2 // 3\n",
    "",
    " ",
    "\n",
]


def write(
    path: Path,
    model: str,
    tokens: list[str],
    types: list[int],
    *,
    arch: str = "llama",
    pre: str | None = None,
    merges: list[str] | None = None,
    scores: list[float] | None = None,
    **keys: Any,
) -> Path:
    """A GGUF file with a tokenizer and no tensors."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path, rows: int = 100000) -> Vocabulary:
    with GgufFile(path) as file:
        return read_vocabulary(file, rows)


def load(path: Path) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(read(path))))


# Byte-level BPE -----------------------------------------------------------------------------------------------------


def trained(splitter: Any) -> Tokenizer:
    """A byte-level BPE tokenizer of the tokenizers library itself, trained on the texts above."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    return tokenizer


def as_gguf(path: Path, tokenizer: Tokenizer, pre: str | None, **keys: Any) -> Path:
    content = json.loads(tokenizer.to_str())
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    types = [3 if index < 3 else 1 for index in range(len(vocab))]
    return write(path, "gpt2", [text for text, _ in vocab], types, pre=pre, merges=merges, **keys)


def digits_and_bytes() -> Any:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(steps)


@pytest.mark.parametrize(
    ("pre", "splitter"),
    [
        ("gpt-2", lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
        ("smollm", digits_and_bytes),
    ],
)
def test_byte_level_tokenizer_comes_back_as_it_was(pre: str, splitter: Any, tmp_path: Path) -> None:
    original = trained(splitter())

    made = load(as_gguf(tmp_path / "t.gguf", original, pre))

    rng = random.Random(3)
    starts = (32, 65, 97, 228, 1071, 12354, 128512)
    mixed = "".join(chr(rng.choice(starts) + rng.randint(0, 20)) for _ in range(30))
    for text in [*TEXTS, mixed, "<|im_start|>user\nhi<|im_end|>\n"]:
        assert made.encode(text).ids == original.encode(text).ids
        assert made.decode(made.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_loses_no_text(pre: str, tmp_path: Path) -> None:
    made = load(as_gguf(tmp_path / "t.gguf", trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), pre))

    for text in TEXTS:
        assert made.decode(made.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        # Digits: three at a time from the left, one by one, or as they come.
        ("llama-bpe", "a 12345", ["a", "Ġ", "123", "45"]),
        ("qwen2", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("smollm", "a 12", ["a", "Ġ", "1", "2"]),
        ("gpt-2", "a 123", ["a", "Ġ123"]),
        # Contractions whatever their case, or only in lower case.
        ("qwen2", "WE'LL", ["WE", "'LL"]),
        ("gpt-2", "WE'LL", ["WE", "'", "LL"]),
        # A capital begins a new word.
        ("gpt-4o", "fooBar", ["foo", "Bar"]),
        ("tekken", "fooBar", ["foo", "Bar"]),
        ("llama-bpe", "fooBar", ["fooBar"]),
        # A contraction stays with its word.
        ("gpt-4o", "don't", ["don't"]),
        ("llama-bpe", "don't", ["don", "'t"]),
        # Line ends go with the signs before them; the last space goes with the word after it.
        ("llama-bpe", "x;\n\n  y", ["x", ";ĊĊ", "Ġ", "Ġy"]),
    ],
)
def test_text_is_split_as_the_published_pattern_says(pre: str, text: str, pieces: list[str], tmp_path: Path) -> None:
    path = as_gguf(tmp_path / "t.gguf", trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), pre)

    splitter = load(path).pre_tokenizer

    assert splitter is not None
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("pre", ["made-up", None])
def test_unknown_pre_tokenizer_is_a_warning_and_the_default(pre: str | None, tmp_path: Path) -> None:
    vocabulary = read(as_gguf(tmp_path / "t.gguf", trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), pre))

    assert vocabulary.pre == PRE_TOKENIZERS["gpt-2"]
    (warning,) = vocabulary.warnings
    assert "tokenizer.ggml.pre" in warning
    assert "smollm" in warning


def test_qwen_text_is_composed_first(tmp_path: Path) -> None:
    made = load(as_gguf(tmp_path / "t.gguf", trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), "qwen2"))

    assert made.encode("e\u0301").ids == made.encode("\u00e9").ids


def test_whole_token_is_taken_before_merges_where_the_model_does_so(tmp_path: Path) -> None:
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "ab", "abc"]
    path = {
        pre: write(tmp_path / f"{pre}.gguf", "gpt2", tokens, [1] * len(tokens), pre=pre, merges=["a b"])
        for pre in ("llama-bpe", "qwen2")
    }

    assert load(path["llama-bpe"]).encode("abc").tokens == ["abc"]
    assert load(path["qwen2"]).encode("abc").tokens == ["ab", "c"]


def test_begin_and_end_tokens_are_added_when_the_file_says_so(tmp_path: Path) -> None:
    original = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    keys = {"bos_token_id": 1, "eos_token_id": 2}

    def ids(**more: Any) -> list[int]:
        path = as_gguf(tmp_path / "t.gguf", original, "gpt-2", **keys, **more)
        found: list[int] = load(path).encode("a").ids
        return found

    plain = original.encode("a").ids
    assert ids() == plain
    assert ids(add_bos_token=True) == [1, *plain]
    assert ids(add_bos_token=True, add_eos_token=True) == [1, *plain, 2]


def test_begin_token_is_the_default_of_llama_3(tmp_path: Path) -> None:
    original = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))

    path = as_gguf(tmp_path / "t.gguf", original, "llama-bpe", bos_token_id=1)

    assert load(path).encode("a").ids[0] == 1
    assert load(path).encode("a", add_special_tokens=False).ids[0] != 1


def test_merge_of_a_token_that_is_not_there_is_left_out_with_a_warning(tmp_path: Path) -> None:
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "ab"]
    path = write(tmp_path / "t.gguf", "gpt2", tokens, [1] * len(tokens), pre="gpt-2", merges=["a b", "ab zz"])

    vocabulary = read(path)

    assert vocabulary.merges == (("a", "b"),)
    assert "1 merges name tokens that are not in the vocabulary" in vocabulary.warnings[0]


def test_repeated_token_keeps_the_first_id(tmp_path: Path) -> None:
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "ab", "ab"]
    path = write(tmp_path / "t.gguf", "gpt2", tokens, [1] * len(tokens), pre="gpt-2", merges=["a b"])

    made = load(path)

    assert made.encode("ab").ids == [len(tokens) - 2]
    assert made.get_vocab_size() == len(tokens)


# SentencePiece ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", ["prefix", "plain"])
def test_sentencepiece_vocabulary_gives_the_ids_of_sentencepiece(
    name: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    data = golden[name]
    path = write(
        tmp_path / "t.gguf",
        "llama",
        data["tokens"],
        data["types"],
        scores=data["scores"],
        add_bos_token=False,
        add_space_prefix=name == "prefix",
    )

    made = load(path)

    for case in data["cases"]:
        assert made.encode(case["text"]).ids == case["ids"], case["text"]
        if "▁" not in case["text"]:
            assert made.decode(case["ids"], skip_special_tokens=False) == case["text"]


def test_sentencepiece_adds_begin_and_space_by_default(golden: dict[str, Any], tmp_path: Path) -> None:
    data = golden["prefix"]
    path = write(tmp_path / "t.gguf", "llama", data["tokens"], data["types"], scores=data["scores"])

    made = load(path)

    (expected,) = [case["ids"] for case in data["cases"] if case["text"] == "the river"]
    assert made.encode("the river").ids == [1, *expected]


@pytest.mark.parametrize(("arch", "rest"), [("phi3", "x"), ("llama", "\n\nx")])
def test_white_space_after_a_control_token_belongs_to_it_in_phi3(
    arch: str, rest: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    data = golden["plain"]
    tokens, types = [*data["tokens"], "<|user|>"], [*data["types"], 3]
    scores = [*data["scores"], 0.0]
    path = write(tmp_path / "t.gguf", "llama", tokens, types, scores=scores, arch=arch, add_space_prefix=False)

    ids = load(path).encode("<|user|>\n\nx", add_special_tokens=False).ids

    made = load(path)
    assert ids[0] == len(tokens) - 1
    assert made.decode(ids[1:]) == rest


# Metadata -----------------------------------------------------------------------------------------------------------


def test_end_tokens_are_the_files_own_then_those_that_end_a_turn(tmp_path: Path) -> None:
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>", "<|im_end|>", "<|eom|>", "<|eot_id|>"]
    types = [1] * 256 + [3, 3, 3, 1]
    path = write(tmp_path / "t.gguf", "gpt2", tokens, types, pre="gpt-2", merges=[], eos_token_id=256, eot_token_id=258)

    # 259 has the text of an end token but is an ordinary token.
    assert read(path).eos_ids == (256, 258, 257)


@pytest.mark.parametrize(
    ("keys", "kind", "said"),
    [
        ({"model": "bert"}, UnsupportedError, "tokenizer.ggml.model is 'bert'; known: gpt2, llama"),
        ({"types": [1, 1]}, PackageError, r"token_type has 2 entries; expected one a token \(3\)"),
        ({"merges": ["ab"]}, PackageError, r"merges\[0\] is 'ab'; expected two tokens"),
        ({"eos_token_id": 3}, PackageError, "eos_token_id is 3; expected an id below 3"),
        ({"rows": 2}, PackageError, "3 tokens for an embedding of 2 rows; expected 1..2"),
    ],
)
def test_broken_tokenizer_metadata_is_named(
    keys: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"model": "gpt2", "types": [1, 1, 1], "merges": []} | keys
    rows = options.pop("rows", 100)
    path = write(tmp_path / "t.gguf", tokens=["a", "b", "c"], **options)

    with pytest.raises(kind, match=said):
        read(path, rows)


def test_package_files_name_the_special_tokens_and_the_template(tmp_path: Path) -> None:
    def tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
        tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "<|im_end|>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * 256 + [3, 3])
        writer.add_token_merges([])
        writer.add_bos_token_id(256)
        writer.add_eos_token_id(257)
        writer.add_pad_token_id(257)
        writer.add_chat_template("{{ messages[0].content }}")
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)

    source = write_gguf(tmp_path / "m.gguf", Tiny(arch="qwen2", vocab=300, biases=True), tokenizer=tokenizer)

    import_gguf(source, tmp_path / "out")

    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == "{{ messages[0].content }}"
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|endoftext|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text(encoding="utf-8"))
    assert generation == {
        "bos_token_id": 256,
        "eos_token_id": [257, 256],
        "pad_token_id": 257,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 20,
    }


def test_token_ids_fit_the_tiny_models(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", TINY["llama"])

    import_gguf(source, tmp_path / "out")

    made = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert made.token_to_id("<|im_end|>") == TINY["llama"].vocab - 1
