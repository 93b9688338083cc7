"""Prompts for filling in the middle, in vocabularies that mark where a text begins."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Reference

from onnx_genai.tokenizer import Tokenizer, find_fim_marks
from tests.tokenizer import tokenizers_in_code

MARKS = ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>")


@pytest.fixture(params=["first", "always"])
def metaspace(request: pytest.FixtureRequest) -> Tokenizer:
    """As SentencePiece writes: a text begins with U+2581."""
    tokens = ["<unk>", "\u2581", "a", ")", "\n", "(", "x", "\u2581x"]
    reference = Reference(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[("\u2581", "x")], unk_token="<unk>")
    )
    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=request.param)
    reference.decoder = decoders.Metaspace(prepend_scheme=request.param)
    reference.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in MARKS])
    return Tokenizer(reference.to_str())


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (")", [")"]),
        ("x", ["x"]),
        (" x", ["\u2581x"]),
        ("\na", ["\n", "a"]),
        ("", []),
        ("\u2581<SUF>", ["\u2581", "<unk>", "<unk>", "<unk>", "<unk>", "<unk>"]),
    ],
)
def test_text_inside_another_has_no_space_in_front(metaspace: Tokenizer, text: str, inside: list[str]) -> None:
    assert [metaspace.id_to_token(token) for token in metaspace.encode_inside(text)] == inside


def test_prefix_begins_a_text_and_suffix_does_not(metaspace: Tokenizer) -> None:
    marks = find_fim_marks(metaspace.added_tokens)
    assert marks is not None

    ids = marks.prompt_ids("x(", ")", tokenizer=metaspace)

    pre, suf, mid = MARKS
    assert [metaspace.id_to_token(token) for token in ids] == [pre, "\u2581x", "(", suf, ")", mid]


def test_byte_level_texts_are_the_same_everywhere() -> None:
    tokenizer = Tokenizer(tokenizers_in_code.byte_level())
    for text in ("x", " x", "\n\nprint(2)", "\u00e9'", ""):
        assert tokenizer.encode_inside(text) == tokenizer.encode(text, False, special_tokens="text")
