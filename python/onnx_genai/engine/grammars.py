"""Compiled grammars for a tokenizer's vocabulary: :class:`GrammarCompiler`."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from onnx_genai import _core
from onnx_genai.engine.python_llguidance import PythonLlguidance
from onnx_genai.errors import InvalidArgumentError, NotFoundError, UnsupportedError

__all__ = ["GrammarCompiler", "GrammarSource", "LlguidanceInterface", "llguidance_interface"]

LlguidanceInterface = Literal["c", "python"]
"""How llguidance is called: by C functions of its extension module, or in Python, which is slower."""

_log = logging.getLogger("onnx_genai")

MAX_GRAMMARS = 32
"""A grammar takes up to 30 MB of memory."""


class GrammarSource(Protocol):
    """A grammar as text; ``grammar.GrammarSpec`` is one."""

    @property
    def kind(self) -> str: ...
    @property
    def source(self) -> str: ...


def llguidance_interface() -> LlguidanceInterface | None:
    """How grammars are enforced here; None if llguidance is not installed. The first call opens its module."""
    try:
        return _interface(find_llguidance())
    except UnsupportedError:
        return None


def find_llguidance() -> Path:
    """Returns the compiled module of the installed ``llguidance`` package; where it has none, where it would be.

    Raises:
        UnsupportedError: The package is not installed.
    """
    spec = importlib.util.find_spec("llguidance")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        raise UnsupportedError(
            "structured output needs the package llguidance; install it with: pip install llguidance"
        )
    found = [path for folder in folders for path in sorted(folder.glob("_lib*.so"))]
    return (found[0] if found else folders[0] / "_lib.so").resolve()


@cache
def _interface(library: Path) -> LlguidanceInterface:
    """What a compiled module offers; told in the log, once, if that is the slower way."""
    try:
        _core.load_llguidance(str(library))
    except (NotFoundError, UnsupportedError) as error:
        # As text: a log that keeps the error would keep the frames behind it, and so the model.
        _log.warning("grammars are enforced by llguidance's Python interface, which is slower: %s", str(error))
        return "python"
    return "c"


class GrammarCompiler:
    """Compiles grammars and keeps the last ones. Safe from any thread; the GIL is not held while compiling."""

    def __init__(
        self,
        *,
        tokens: _core.TokenTable,
        eos_token_ids: Sequence[int],
        tokenize: Callable[[str], list[int]] | None = None,
        interface: LlguidanceInterface | None = None,
    ) -> None:
        """Reads the vocabulary, which takes some 100 ms.

        Args:
            tokens: The token table that the model generates with.
            eos_token_ids: Tokens that may end an answer where the grammar may end.
            tokenize: Writes a text as it would be in the middle of a text. With it, what a grammar forces is written
                ahead; called from any thread, seldom, as its results are remembered.
            interface: How llguidance is called. None: by its C functions if it exports them, else in Python.

        Raises:
            UnsupportedError: llguidance is missing or, where that is asked for, does not export its C functions.
            PackageError: The vocabulary cannot be used.
        """
        library = find_llguidance()
        self.interface: LlguidanceInterface = interface or _interface(library)
        self._core = _core.GrammarCompiler(
            llguidance=str(library) if self.interface == "c" else PythonLlguidance(),
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
