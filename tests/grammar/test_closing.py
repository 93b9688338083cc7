"""Short ends of what was begun under a grammar, wherever it stands."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from onnx_genai import _core, grammar
from tests.grammar.test_spec import SCHEMAS
from tests.grammar.walk import EOS, allowed, tokens_of, vocabulary

pytestmark = pytest.mark.usefixtures("interface")


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_an_end_is_found_from_everywhere_and_validates(schema: dict[str, Any]) -> None:
    tokenizer, compiler, texts = vocabulary()
    eos = tokenizer.special_tokens[EOS]
    ends = _core.Closing(tokens=tokens_of(tokenizer))
    grammar_of_schema = compiler.compile(grammar.json_schema(schema))
    for seed in range(6):
        draw = random.Random(seed)
        matcher = grammar_of_schema.matcher()
        written: list[int] = []
        for _ in range(40):
            end = ends.find_end(matcher, 200)
            assert end is not None, b"".join(texts[token] for token in written)
            text = b"".join(texts[token] for token in [*written, *end]).decode("utf-8")
            Draft202012Validator(schema).validate(json.loads(text))
            if end:
                assert len(ends.find_end(matcher, len(end)) or ()) == len(end)
            choices = [token for token in allowed(matcher) if token != eos]
            if not choices:
                break
            written.append(draw.choice(choices))
            matcher.accept(written[-1:])
