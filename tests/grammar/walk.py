"""Random texts of a grammar, without a model: a walk over the allowed tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from onnx_genai import _core, grammar
from onnx_genai.engine import grammars
from onnx_genai.engine.grammars import GrammarCompiler
from onnx_genai.tokenizer import Tokenizer
from tests.tokenizer import tokenizers_in_code

EOS = "</s>"


def vocabulary() -> tuple[Tokenizer, GrammarCompiler, list[bytes]]:
    """A byte-level tokenizer with specials, and its compiler."""
    return _vocabulary(grammars.find_llguidance())


@cache
def _vocabulary(_library: Path) -> tuple[Tokenizer, GrammarCompiler, list[bytes]]:
    tokenizer = Tokenizer(tokenizers_in_code.byte_level())
    tokens = tokens_of(tokenizer)
    compiler = GrammarCompiler(tokens=tokens, eos_token_ids=[tokenizer.special_tokens[EOS]])
    return tokenizer, compiler, list(tokenizer.token_table().bytes)


def tokens_of(tokenizer: Tokenizer) -> _core.TokenTable:
    table = tokenizer.token_table()
    return _core.TokenTable(
        byte_fallback=False,
        strip_first_space=table.strip_first_space,
        bytes=table.bytes,
        kinds=table.kinds,
        first=table.first,
    )


def special_tokens() -> Mapping[str, int]:
    return vocabulary()[0].special_tokens


def allowed(matcher: _core.Matcher) -> list[int]:
    bits = np.unpackbits(matcher.bitmask().view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def walk(spec: grammar.GrammarSpec, seed: int, *, steps: int = 400) -> str | None:
    """A text that the grammar allows, as a random model would write it; None if it does not end in ``steps`` tokens.

    Behind the first tokens, tokens that close something are preferred, so that walks end.
    """
    tokenizer, compiler, texts = vocabulary()
    eos = tokenizer.special_tokens[EOS]
    source = random.Random(seed)
    matcher = compiler.compile(spec).matcher()
    written: list[int] = []
    for step in range(steps):
        tokens = allowed(matcher)
        assert tokens, "the grammar allows nothing"
        assert (eos in tokens) == matcher.can_end
        if eos in tokens and (len(tokens) == 1 or step > 25 or source.random() < 0.3):
            return b"".join(texts[token] for token in written).decode("utf-8")
        tokens = [token for token in tokens if token != eos]
        closing = [token for token in tokens if texts[token] in (b'"', b"}", b"]", b")", b"<", b"`", b"/", b"0")]
        token = source.choice(closing if step > 25 and closing and source.random() < 0.8 else tokens)
        matcher.accept([token])
        written.append(token)
        forced = matcher.forced_tokens()
        if forced:
            matcher.accept(forced)
            written.extend(forced)
    return None


def accepts(spec: grammar.GrammarSpec, text: str) -> bool:
    """Whether the grammar allows the text as a whole, byte by byte (special tokens of the text as tokens)."""
    tokenizer, compiler, _ = vocabulary()
    matcher = compiler.compile(spec).matcher()
    for token in tokenizer.encode(text, add_special_tokens=False):
        if token not in allowed(matcher):
            return False
        matcher.accept([token])
    return matcher.can_end


def object_schema(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
