"""How one request is scheduled, and its sampling parameters with package defaults as the core takes them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnx_genai import _core
from onnx_genai.engine.adapters import AdapterSpans
from onnx_genai.engine.grammars import GrammarSource
from onnx_genai.errors import DeadlineError, InvalidArgumentError
from onnx_genai.package import GenerationDefaults
from onnx_genai.types import SamplingParams

__all__ = ["RequestOptions", "to_core_params"]

MAX_PRIORITY = 2**31 - 1
MAX_SALT_BYTES = 1024
MAX_TIMEOUT_SECONDS = 1e8
"""Three years; far below what the core's clock can hold."""

_COPIED = (
    "min_new_tokens",
    "typical_p",
    "top_a",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "xtc_probability",
    "xtc_threshold",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "include_stop",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
    "n",
    "num_beams",
    "logprobs",
    "top_logprobs",
)
_LISTS = (
    "dry_sequence_breakers",
    "suppress_tokens",
    "begin_suppress_tokens",
    "stop",
    "stop_token_ids",
    "visible_special_tokens",
)
_FROM_PACKAGE: tuple[tuple[str, float], ...] = (
    ("temperature", 1.0),
    ("top_k", 0),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0),
    ("length_penalty", 1.0),
)
_EARLY_STOPPING: dict[bool | str | None, _core.EarlyStopping] = {
    None: _core.EarlyStopping.heuristic,
    False: _core.EarlyStopping.heuristic,
    True: _core.EarlyStopping.first,
    "never": _core.EarlyStopping.never,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How one request is scheduled and cached, whatever it samples."""

    priority: int = 0
    """Higher runs first; a running request of lower priority makes room."""
    timeout: float | None = None
    """Seconds from submission to the last token, > 0; then the request fails with ``DeadlineError``. None: no limit."""
    cache_salt: str = ""
    """Only requests with the same salt share cached KV, and can tell by their speed what others have asked."""
    grammar: GrammarSource | None = None
    """What every answer must look like."""
    adapters: AdapterSpans = ()
    """With which LoRA adapters it runs; see :class:`~onnx_genai.engine.adapters.AdapterSet`."""
    grammar_prefix: Sequence[int] = ()
    """Ids of the grammar that the prompt ends with: answers go on with it behind them."""
    answer_prefix: Sequence[int] = ()
    """Of an encoder-decoder: ids that the answer begins with; it goes on behind them."""
    accept_equal_logits: bool = False
    """Logits that are all equal are no fault of the model: the most likely token is then the first one."""

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, (int, np.integer)):
            raise InvalidArgumentError(f"priority is {self.priority!r}; allowed: a whole number, higher runs first")
        if abs(int(self.priority)) > MAX_PRIORITY:
            raise InvalidArgumentError(f"priority is {self.priority}; allowed: -{MAX_PRIORITY}..{MAX_PRIORITY}")
        if self.timeout is not None:
            _check_timeout(self.timeout)
        if self.grammar is not None and not (hasattr(self.grammar, "kind") and hasattr(self.grammar, "source")):
            raise InvalidArgumentError(
                f"grammar is {type(self.grammar).__name__}; allowed: what the functions of onnx_genai.grammar return"
            )
        if len(self.grammar_prefix) and self.grammar is None:
            raise InvalidArgumentError("grammar_prefix needs a grammar; leave it out")
        if not isinstance(self.cache_salt, str):
            raise InvalidArgumentError(f"cache_salt is {self.cache_salt!r}; allowed: text")
        try:
            size = len(self.cache_salt.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"cache_salt has a lone surrogate at character {error.start}; allowed: text that UTF-8 can hold"
            ) from error
        if size > MAX_SALT_BYTES:
            raise InvalidArgumentError(f"cache_salt has {size} bytes; allowed: at most {MAX_SALT_BYTES}")

    def left(self, began: float) -> RequestOptions:
        """The same with what is left of ``timeout``, which runs since ``began`` (``time.perf_counter()``).

        Raises:
            DeadlineError: Nothing is left.
        """
        if self.timeout is None:
            return self
        seconds = round(self.timeout - (time.perf_counter() - began), 3)
        if seconds <= 0 < self.timeout:
            raise DeadlineError(
                f"the request was not ready to run within its timeout of {self.timeout:g} seconds; allow more time, or "
                "send a shorter prompt or a simpler grammar"
            )
        return dataclasses.replace(self, timeout=min(seconds, self.timeout))


def to_core_params(params: SamplingParams, defaults: GenerationDefaults) -> _core.SamplingParams:
    """Fills open fields from the package, then from the off values that ``SamplingParams`` documents."""
    core = _core.SamplingParams()
    core.max_new_tokens = params.max_new_tokens or 0
    for name in _COPIED:
        setattr(core, name, getattr(params, name))
    for name in _LISTS:
        setattr(core, name, list(getattr(params, name)))
    for name, off in _FROM_PACKAGE:
        value = getattr(params, name)
        if value is None:
            value = getattr(defaults, name)
        setattr(core, name, off if value is None else value)
    if params.num_beams > 1:
        core.temperature = 0.0  # whatever the package says: beams draw nothing at random
    early = params.early_stopping if params.early_stopping is not None else defaults.early_stopping
    core.early_stopping = _EARLY_STOPPING[early]
    core.bad_words = [list(word) for word in params.bad_words]
    core.logit_bias = list(params.logit_bias.items())
    core.forced_tokens = list(params.forced_tokens.items())
    return core


def _check_timeout(timeout: object) -> None:
    allowed = "seconds above 0, or None for no limit"
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)):
        raise InvalidArgumentError(f"timeout is {timeout!r}; allowed: {allowed}")
    if not 0.0 < timeout <= MAX_TIMEOUT_SECONDS:  # false for NaN as well
        raise InvalidArgumentError(f"timeout is {timeout}; allowed: {allowed}, at most {MAX_TIMEOUT_SECONDS:g}")
