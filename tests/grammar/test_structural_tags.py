"""Free text with tagged pieces whose marks are special tokens."""

from __future__ import annotations

import pytest

from onnx_genai import grammar
from onnx_genai.errors import InvalidArgumentError
from tests.grammar.walk import accepts, special_tokens

pytestmark = [pytest.mark.boundary, pytest.mark.usefixtures("interface")]


def test_structural_tags_of_special_tokens() -> None:
    special = special_tokens()
    tag = {"begin": "<s>f=", "schema": {"type": "integer"}, "end": "<|im_end|>"}
    spec = grammar.structural_tags([tag], ["<s>"], special=special)
    assert accepts(spec, "free text")
    assert accepts(spec, "so <s>f=1<|im_end|> and <s>f=23<|im_end|> done")
    assert not accepts(spec, "so <s>")
    assert not accepts(spec, "so <s>g")
    assert not accepts(spec, 'so <s>f="x"<|im_end|>')
    assert not accepts(spec, "so <s>f=1<s>f=1<|im_end|>")
    assert not accepts(spec, "so <|im_end|>")
    behind = grammar.structural_tags([{**tag, "begin": "call <s>"}], ["call "], special=special)
    assert accepts(behind, "a call <s>1<|im_end|> b")
    assert not accepts(behind, "a call b")
    for begin, trigger in (("<s>f=", "<s"), ("<s>f=", "<s>f"), ("a<s>", "a<s>"), ("a<s>", "a<")):
        with pytest.raises(InvalidArgumentError, match="special token '<s>'"):
            grammar.structural_tags([{**tag, "begin": begin}], [trigger], special=special)
