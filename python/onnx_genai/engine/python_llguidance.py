"""llguidance by its Python interface, where its C functions are missing: :class:`PythonLlguidance`.

What the core asks for is in ``cpp/genai/grammar/llguidance.h``. Copies of an ``LLMatcher`` have their lexer in common,
which matters in two ways: masks of one grammar are computed one after another, and when the lexer reaches a limit for
one of them it has for all. So a matcher whose lexer was spoilt goes on with a new one of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from onnx_genai.errors import UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["PythonLlguidance"]

_NO_FORCING = 'start: @answer\n%llguidance {"no_forcing": true}'


class PythonLlguidance:
    """Makes tokenizers."""

    def __init__(self) -> None:
        """Raises UnsupportedError if the package cannot be imported."""
        try:
            import llguidance
        except ImportError as error:
            raise UnsupportedError(
                f"structured output needs the package llguidance, which cannot be imported ({error}); install it with: "
                "pip install --upgrade llguidance"
            ) from error
        self._llguidance = llguidance

    def make_tokenizer(
        self, tokens: list[bytes], eos_ids: list[int], tokenize: Callable[[str], list[int]] | None
    ) -> _Tokenizer:
        """Raises ValueError when the vocabulary cannot be used."""
        vocabulary = _Vocabulary(tokens, eos_ids[0], tokenize)
        made = self._llguidance.LLTokenizer(cast(Any, vocabulary), eos_token=eos_ids)
        vocabulary.tokens = []  # llguidance has its own
        return _Tokenizer(made, has_tokenize=tokenize is not None)


class _Vocabulary:
    """What ``LLTokenizer`` reads, and calls for texts."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos_id: int, tokenize: Callable[[str], list[int]] | None) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_id
        self.special_token_ids: list[int] = []  # marked in their bytes
        self._tokenize = tokenize

    def __call__(self, text: str) -> list[int]:
        return [] if self._tokenize is None else self._tokenize(text)


class _Tokenizer:
    def __init__(self, made: LLTokenizer, *, has_tokenize: bool) -> None:
        self._made = made
        self._has_tokenize = has_tokenize

    def new_matcher(self, kind: str, source: str, max_items_in_row: int) -> _Matcher:
        from llguidance import LLMatcher, LLParserLimits

        try:
            text = _grammar(kind, source, forces=self._has_tokenize)
        except (ValueError, RecursionError) as error:
            return cast(_Matcher, _Refused(str(error)))
        limits = LLParserLimits(max_items_in_row=max_items_in_row, verbose_errors=False)
        compiled = _Compiled(lambda: LLMatcher(self._made, text, log_level=0, limits=limits))
        return _Matcher(compiled, compiled.matcher(), [])


def _grammar(kind: str, source: str, *, forces: bool) -> str:
    """The text that ``LLMatcher`` takes, in which tokens are forced or not. Raises ValueError for what is no JSON."""
    if kind == "json_schema":
        json.loads(source, parse_int=float)  # it is taken as it is, so it must be one value
        answer = f'"json_schema": {source}'
    else:
        if kind == "regex":
            from llguidance import regex_to_lark

            source = f"start: /{regex_to_lark(source, '')}/"
        answer = f'"lark_grammar": {json.dumps(source)}'
    if forces:
        return f'{{"grammars": [{{{answer}}}]}}'
    return f'{{"grammars": [{{"lark_grammar": {json.dumps(_NO_FORCING)}}}, {{"name": "answer", {answer}}}]}}'


class _Compiled:
    """A grammar with a lexer of its own, which the matchers of it share."""

    def __init__(self, compile_anew: Callable[[], LLMatcher]) -> None:
        self._compile_anew = compile_anew
        self._first = compile_anew()
        self.is_spoilt = False

    def matcher(self) -> LLMatcher:
        """One at the beginning."""
        return self._first.deep_copy()

    def look_if_spoilt(self) -> bool:
        """Whether no matcher goes on any more, not even one at the beginning."""
        if not self.is_spoilt:
            copy = self._first.deep_copy()
            copy.compute_bitmask()
            self.is_spoilt = copy.is_error()
        return self.is_spoilt

    def again(self) -> _Compiled:
        return _Compiled(self._compile_anew)


class _Matcher:
    """One thread at a time, but for ``clone``."""

    __slots__ = ("_place", "_tokens")

    def __init__(self, compiled: _Compiled, llg: LLMatcher, tokens: list[int]) -> None:
        self._place = compiled, llg  # read and written as one
        self._tokens = tokens

    def error(self) -> str | None:
        _, llg = self._place
        return llg.get_error() if llg.is_error() else None

    def compute_mask(self, address: int, num_bytes: int) -> bool:
        return self._run(lambda llg: _computes_mask(llg, address, num_bytes))

    def consume(self, tokens: list[int]) -> bool:
        if not self._run(lambda llg: llg.consume_tokens(tokens)):
            return False
        self._tokens += tokens
        return True

    def rollback(self, count: int) -> bool:
        if not self._run(lambda llg: llg.rollback(count)):
            return False
        del self._tokens[len(self._tokens) - count :]
        return True

    def forced_tokens(self) -> list[int]:
        return self._place[1].compute_ff_tokens()

    def is_accepting(self) -> bool:
        return self._place[1].is_accepting()

    def is_stopped(self) -> bool:
        return self._place[1].is_stopped()

    def clone(self) -> _Matcher:
        compiled, llg = self._place
        if compiled.is_spoilt and not llg.is_error() and self._begin_anew():
            compiled, llg = self._place
        return _Matcher(compiled, llg.deep_copy(), self._tokens.copy())

    def _run(self, step: Callable[[LLMatcher], bool]) -> bool:
        """Whether a step goes well, if need be with a new lexer in place of one that another matcher spoilt."""
        compiled, llg = self._place
        if step(llg):
            return True
        return compiled.look_if_spoilt() and self._begin_anew() and step(self._place[1])

    def _begin_anew(self) -> bool:
        """Comes to the same place with a lexer of its own; False if it cannot."""
        compiled = self._place[0].again()
        llg = compiled.matcher()
        if not llg.consume_tokens(self._tokens):
            return False
        self._place = compiled, llg
        return True


def _computes_mask(llg: LLMatcher, address: int, num_bytes: int) -> bool:
    llg.unsafe_compute_mask_ptr(address, num_bytes)
    return not llg.is_error()


class _Refused:
    """In place of a matcher that there is none of: it is only asked why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def error(self) -> str:
        return self._why
