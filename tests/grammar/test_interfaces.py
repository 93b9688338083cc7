"""llguidance called by its C functions and in Python: both say the same at every place of a grammar."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from onnx_genai import _core, grammar
from onnx_genai.engine.grammars import GrammarCompiler
from onnx_genai.errors import GenAIError, InvalidArgumentError, PackageError
from onnx_genai.grammar.tool_calls import SYNTAX
from onnx_genai.tokenizer import Tokenizer
from tests.grammar.test_spec import SCHEMAS
from tests.grammar.test_tool_calls import TOOLS
from tests.grammar.walk import object_schema, special_tokens, tokens_of
from tests.tokenizer import tokenizers_in_code

pytestmark = pytest.mark.boundary

RECORD = object_schema(
    name={"type": "string", "maxLength": 6}, kind={"enum": ["alpha", "beta"]}, ok={"type": "boolean"}
)


def specs() -> dict[str, grammar.GrammarSpec]:
    found = {f"schema {number}": grammar.json_schema(schema) for number, schema in enumerate([*SCHEMAS, RECORD])}
    for form in sorted(SYNTAX):
        spec = grammar.tool_call_grammar(form, TOOLS)
        assert spec is not None
        found[f"calls {form}"] = spec
    auto = grammar.tool_call_grammar("hermes", TOOLS, mode="auto")
    assert auto is not None
    tag = {"begin": "<s>f=", "schema": {"type": "integer"}, "end": "<|im_end|>"}
    return found | {
        "auto calls": auto,
        "object": grammar.json_object(),
        "regex": grammar.regex(r"Hello world|(a/[0-9]{2}|é|\\/\")+"),
        "regex of signs": grammar.regex(r"[^x\s]{2,5}\d+"),
        "choice": grammar.choice(["yes", "no", 'say "é"\n']),
        "lark": grammar.lark('start: ("Hello" | "a" b)+ "END"\nb: /[0-9]/ | "(" b ")"\n'),
        "lark with a special token": grammar.lark('start: "Hello" <s> /[a-z]+/ <|im_end|>'),
        "tags": grammar.structural_tags([tag], ["<s>"], special=special_tokens()),
        "reasoning": grammar.after_reasoning(
            grammar.json_schema(RECORD), start="<s>", end="<|im_end|>", inside=False, special=special_tokens()
        ),
    }


SPECS = specs()
TOKENIZERS = {
    "byte level": tokenizers_in_code.byte_level(),
    "byte fallback": tokenizers_in_code.metaspace_fallback(),
}


def both(
    tokens: _core.TokenTable, eos: Sequence[int], tokenize: Callable[[str], list[int]] | None = None
) -> tuple[GrammarCompiler, GrammarCompiler]:
    made = [
        GrammarCompiler(tokens=tokens, eos_token_ids=eos, tokenize=tokenize, interface=interface)
        for interface in ("c", "python")
    ]
    return made[0], made[1]


def compilers(kind: str, *, forces: bool, eos: Sequence[int] | None = None) -> tuple[GrammarCompiler, GrammarCompiler]:
    tokenizer = Tokenizer(TOKENIZERS[kind])

    def tokenize(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    if eos is None:
        eos = [tokenizer.special_tokens["</s>"]]
    return both(tokens_of(tokenizer), eos, tokenize if forces else None)


@pytest.fixture(scope="module", params=[True, False], ids=["forced", "unforced"])
def byte_level(request: pytest.FixtureRequest) -> tuple[GrammarCompiler, GrammarCompiler]:
    return compilers("byte level", forces=request.param)


def state(matcher: _core.Matcher) -> tuple[list[int], list[int], bool, bool]:
    can_end, must_end = matcher.can_end, matcher.must_end
    return matcher.bitmask().tolist(), [] if must_end else matcher.forced_tokens(), can_end, must_end


def allowed(bitmask: Sequence[int]) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.unpackbits(np.asarray(bitmask, dtype=np.uint32).view(np.uint8), bitorder="little"))


def walk_together(pair: tuple[GrammarCompiler, GrammarCompiler], spec: grammar.GrammarSpec, seed: int) -> int:
    """Compares wherever a random answer comes by, which also goes back; returns at how many places."""
    draw = random.Random(seed)
    matchers = [compiler.compile(spec).matcher() for compiler in pair]
    depth = places = 0
    for _ in range(60):
        seen = [state(matcher) for matcher in matchers]
        assert seen[0] == seen[1]
        places += 1
        bitmask, forced, _, must_end = seen[0]
        if depth and draw.random() < 0.15:
            count = draw.randint(1, min(depth, 3))
            for matcher in matchers:
                matcher.rollback(count)
            depth -= count
            continue
        if must_end:
            break
        tokens = forced or [int(draw.choice(allowed(bitmask)))]
        for matcher in matchers:
            matcher.accept(tokens)
        depth += len(tokens)
    return places


@pytest.mark.parametrize("name", SPECS)
def test_masks_forced_tokens_and_ends_are_equal(byte_level: tuple[GrammarCompiler, GrammarCompiler], name: str) -> None:
    assert sum(walk_together(byte_level, SPECS[name], seed) for seed in range(6)) > 6


@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("eos", [[], [2], [2, 0, 9]])
def test_other_tokenizers_and_end_tokens_are_equal(forces: bool, eos: list[int]) -> None:
    pair = compilers("byte fallback", forces=forces, eos=eos)

    for name in ("schema 2", "regex", "object", "lark"):
        assert walk_together(pair, SPECS[name], 1) > 3


@pytest.mark.parametrize("size", [31, 32, 33, 63, 64, 65])
def test_no_made_up_end_token_is_in_a_bitmask(size: int) -> None:
    texts = [bytes([0x61 + number % 26]) * (1 + number // 26) for number in range(size)]
    table = _core.TokenTable(byte_fallback=False, strip_first_space=False, bytes=texts, kinds=[0] * size, first={})
    pair = both(table, [])

    masks = [compiler.compile(grammar.regex("a|[a-z]+")).matcher().bitmask().tolist() for compiler in pair]

    assert masks[0] == masks[1]
    assert allowed(masks[0]).tolist() == list(range(size))


@pytest.mark.parametrize(
    "spec",
    [
        grammar.GrammarSpec(kind="json_schema", source="{"),
        grammar.GrammarSpec(kind="json_schema", source='true}], "max_tokens": 3, "x": [{"y": 1'),
        grammar.GrammarSpec(kind="json_schema", source="[" * 100_000),
        grammar.GrammarSpec(kind="json_schema", source='{"type": "strng"}'),
        grammar.regex("(a"),
        grammar.regex("(?=a)b"),
        grammar.lark("start: nothing"),
        grammar.lark('start: "a'),
    ],
    ids=lambda spec: f"{spec.kind} {spec.source[:20]}",
)
def test_what_is_refused_is_refused_by_both(
    byte_level: tuple[GrammarCompiler, GrammarCompiler], spec: grammar.GrammarSpec
) -> None:
    told = []
    for compiler in byte_level:
        with pytest.raises(InvalidArgumentError, match=r"is refused: ") as caught:
            compiler.compile(spec)
        told.append(str(caught.value))
    if "expected" not in told[0].lower() and "json_schema" not in spec.kind:
        assert told[0] == told[1]


def test_steps_that_are_not_allowed_are_errors_of_both(byte_level: tuple[GrammarCompiler, GrammarCompiler]) -> None:
    told = []
    for compiler in byte_level:
        matcher = compiler.compile(grammar.regex("ab")).matcher()
        matcher.accept([ord("a")])
        with pytest.raises(GenAIError) as caught:
            matcher.accept([ord("z")])
        told.append(str(caught.value))
        with pytest.raises(GenAIError, match="cannot"):
            matcher.bitmask()
        with pytest.raises(GenAIError, match="cannot be rolled back"):
            matcher.rollback(1)
    assert told[0] == told[1]


def test_begun_grammars_are_equal(byte_level: tuple[GrammarCompiler, GrammarCompiler]) -> None:
    written = [ord(letter) for letter in "12"]
    states = []
    for compiler in byte_level:
        begun = compiler.compile(grammar.regex("[0-9]{2}[a-f]{2}")).begun(written)
        states.append([state(begun.matcher()) for _ in range(2)])
        with pytest.raises(InvalidArgumentError, match="does not allow the tokens"):
            compiler.compile(grammar.regex("[a-f]{2}")).begun(written)
    assert states[0] == states[1]


def test_ways_to_an_end_are_equal(byte_level: tuple[GrammarCompiler, GrammarCompiler]) -> None:
    table = tokens_of(Tokenizer(TOKENIZERS["byte level"]))
    closing = _core.Closing(tokens=table)
    for name in SPECS:
        draw = random.Random(name)
        matchers = [compiler.compile(SPECS[name]).matcher() for compiler in byte_level]
        for _ in range(6):
            ends = [closing.find_end(matcher, 40) for matcher in matchers]
            assert ends[0] == ends[1]
            choices = allowed(matchers[0].bitmask().tolist())
            token = int(draw.choice(choices))
            for matcher in matchers:
                if not matcher.must_end:
                    matcher.accept([token])


def test_a_lexer_that_one_answer_spoils_is_that_answers_own() -> None:
    """Copies of llguidance's Python matchers have a lexer in common, whose work has a limit."""
    pair = compilers("byte level", forces=True)
    hard = grammar.regex("(.{1,300}a.{1,300}b){1,300}x")
    for compiler in pair:
        compiled = compiler.compile(hard)
        good, bad = compiled.matcher(), compiled.matcher()
        good.accept([ord("a")])
        spoil(bad)
        good.bitmask()
        good.accept([ord("b")])
        again = compiled.matcher()
        again.bitmask()
        again.accept([ord("a")])
        assert state(again)[0] == state(compiler.compile(hard).matcher())[0]


def spoil(matcher: _core.Matcher) -> None:
    """Goes on until the grammar becomes too complex."""
    draw = random.Random(1)

    def go_on() -> None:
        for _ in range(3000):
            matcher.accept([ord(draw.choice("abcd"))])
            matcher.bitmask()

    with pytest.raises(InvalidArgumentError, match="cannot go on: lexer error"):
        go_on()


def test_a_vocabulary_that_cannot_be_used_is_a_fault_of_the_package() -> None:
    empty = _core.TokenTable(byte_fallback=False, strip_first_space=False, bytes=[], kinds=[], first={})
    for interface in ("c", "python"):
        with pytest.raises(PackageError, match="tokenizer"):
            GrammarCompiler(tokens=empty, eos_token_ids=[0], interface=interface)  # type: ignore[arg-type]


def test_a_tokenizer_that_raises_cannot_write_what_is_forced() -> None:
    tokenizer = Tokenizer(TOKENIZERS["byte level"])

    def fail(text: str) -> list[int]:
        raise ZeroDivisionError(text)

    told = []
    for compiler in both(tokens_of(tokenizer), [tokenizer.special_tokens["</s>"]], fail):
        assert compiler.compile(grammar.regex("[a-z]+")).matcher().forced_tokens() == []
        with pytest.raises(InvalidArgumentError, match="no token of the vocabulary can come next") as caught:
            compiler.compile(grammar.choice(["Hello world"]))
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_many_threads_walk_and_compile_at_once() -> None:
    """Matchers wait for the GIL and for each other's lexer, the cache for neither."""
    pair = compilers("byte level", forces=True)
    stop = threading.Event()

    def hold_the_gil() -> None:
        while not stop.is_set():
            sum(range(2000))
            assert pair[1].num_cached <= 32

    holder = threading.Thread(target=hold_the_gil)
    holder.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            jobs = [
                pool.submit(walk_together, pair, spec, seed)
                for seed in range(24)
                for spec in (SPECS["schema 2"], grammar.choice([f"first {seed}", f"second {seed}"]))
            ]
            assert all(job.result(timeout=300) for job in jobs)
    finally:
        stop.set()
        holder.join()
