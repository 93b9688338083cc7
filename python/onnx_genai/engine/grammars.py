"""Compiled grammars for a tokenizer's vocabulary: :class:`GrammarCompiler`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from onnx_genai import _core
from onnx_genai.errors import InvalidArgumentError, UnsupportedError

__all__ = ["GrammarCompiler", "GrammarSource", "find_llguidance"]

MAX_GRAMMARS = 32
"""A grammar takes up to 30 MB of memory."""


class GrammarSource(Protocol):
    """A grammar as text; ``grammar.GrammarSpec`` is one."""

    @property
    def kind(self) -> str: ...
    @property
    def source(self) -> str: ...


def find_llguidance() -> Path:
    """Returns the compiled module of the installed ``llguidance`` package, which exports its C functions.

    Raises:
        UnsupportedError: It is not installed.
    """
    spec = importlib.util.find_spec("llguidance")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("_lib*.so")):
            return path.resolve()
    raise UnsupportedError("structured output needs the package llguidance; install it with: pip install llguidance")


class GrammarCompiler:
    """Compiles grammars and keeps the last ones. Safe from any thread; the GIL is not held while compiling."""

    def __init__(
        self,
        *,
        tokens: _core.TokenTable,
        eos_token_ids: Sequence[int],
        tokenize: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Reads the vocabulary, which takes some 100 ms.

        Args:
            tokens: The token table that the model generates with.
            eos_token_ids: Tokens that may end an answer where the grammar may end.
            tokenize: Writes a text as it would be in the middle of a text. With it, what a grammar forces is written
                ahead; called from any thread, seldom, as its results are remembered.

        Raises:
            UnsupportedError: llguidance is missing or does not export its C functions.
            PackageError: The vocabulary cannot be used.
        """
        self._core = _core.GrammarCompiler(
            library=str(find_llguidance()),
            tokens=tokens,
            eos_ids=list(eos_token_ids),
            tokenize=tokenize,
            max_grammars=MAX_GRAMMARS,
        )

    def compile(self, grammar: GrammarSource) -> _core.Grammar:
        """Returns the compiled grammar.

        Raises:
            InvalidArgumentError: The grammar is wrong, too large, or uses what cannot be enforced; the text names it.
        """
        try:
            grammar.source.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"the grammar has the lone surrogate {grammar.source[error.start]!r}; allowed: text that UTF-8 can hold"
            ) from error
        return self._core.compile(grammar.kind, grammar.source)

    @property
    def num_cached(self) -> int:
        """Compiled grammars that are kept."""
        return self._core.num_cached
