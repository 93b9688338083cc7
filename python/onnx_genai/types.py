"""Plain public data: what a caller passes in (`SamplingParams`) and gets back (`Result`, `Chunk`)."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from onnx_genai.errors import InvalidArgumentError

__all__ = [
    "Backend",
    "ChatChunk",
    "Choice",
    "Chunk",
    "Decoder",
    "FinishReason",
    "KvDtype",
    "LogitsProcessor",
    "MemorySize",
    "RankedDocument",
    "RequestTimes",
    "Result",
    "Sampler",
    "SamplingParams",
    "TokenLogprob",
    "ToolCall",
    "Usage",
]

FinishReason = Literal["stop", "length", "abort", "error"]
"""Why a sequence ended: an EOS or stop id/string, a length limit, an abort, or an error of this sequence alone."""

Backend = Literal["auto", "ort", "native"]
"""Whose kernels compute quantized products: ONNX Runtime's, or ours; ``auto`` is ours where they are faster."""

Decoder = Literal["auto", "paged", "slot", "copy"]
"""Which decoder runs a graph; ``auto`` is the first of them that can."""

KvDtype = Literal["auto", "float32", "float16", "bfloat16", "int8"]
"""Element type of KV in the paged decoder; ``auto`` is that of the graph."""

MemorySize = str | int | float
"""``auto``, bytes, a fraction of what there is, or a size with a unit; see ``engine.limits``."""

MAX_CHOICES = 128
MAX_BEAMS = 64
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64

_OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "eos_token_id": "stop_token_ids",
    "num_return_sequences": "n",
    "best_of": "num_beams",
    "typical": "typical_p",
    "include_stop_str_in_output": "include_stop",
}
"""What other libraries call a field -> its name here."""

_MAX_INT = 2**63 - 1
_MAX_TOKEN_ID = 2**31 - 1
_ID_LISTS = (
    "stop_token_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "dry_sequence_breakers",
    "visible_special_tokens",
)


class LogitsProcessor(Protocol):
    """Changes logits rows in place; called once a step for all rows of the requests that carry the same object."""

    def process(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> None:
        """Changes ``logits`` in place and returns None.

        Args:
            token_ids: For each row an int32 array of the prompt and generated ids so far.
            logits: float32 ``[rows, vocab]``, writable. ``-inf`` forbids a token; NaN and ``+inf`` are errors.

        An exception ends the requests of these rows with that error; other requests go on.
        """


class Sampler(Protocol):
    """Picks one id a row after the whole chain of processors; called once a step for its rows."""

    def sample(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> Sequence[int]:
        """Returns one id in ``[0, vocab)`` for each row.

        Args:
            token_ids: For each row an int32 array of the prompt and generated ids so far.
            logits: float32 ``[rows, vocab]`` after all processors (filtered tokens are ``-inf``).
        """


class _InitSignature:
    """What ``help`` and editors show of a class whose ``__new__`` takes anything."""

    def __get__(self, _instance: object, owner: type) -> inspect.Signature:
        whole = inspect.signature(owner.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled. Defaults mean "off"; ``temperature=0`` is greedy.

    ``None`` in a field marked *package* takes the package's generation default, then the value in brackets.
    Definitions and order of the processors: ``docs/sampling.md``.
    """

    max_new_tokens: int | None = None
    """Tokens to make at most, >= 1; None fills the context window."""
    min_new_tokens: int = 0
    """EOS and stop ids are forbidden until this many tokens are made; at most ``max_new_tokens``."""
    temperature: float | None = None
    """>= 0; 0 is greedy (argmax, ties to the lowest id). *package* [1.0]."""
    top_k: int | None = None
    """Keep the k highest logits (ties at the border survive); 0 is off. *package* [0]."""
    top_p: float | None = None
    """Keep the smallest set with probability sum >= p, in (0, 1]; 1 is off. *package* [1.0]."""
    min_p: float | None = None
    """Keep tokens with p >= min_p * p_max, in [0, 1]; 0 is off. *package* [0.0]."""
    typical_p: float = 1.0
    """Locally typical sampling, in (0, 1]; 1 is off. Source: Meister et al. 2022."""
    top_a: float = 0.0
    """Keep tokens with p >= top_a * p_max**2, in [0, 1]; 0 is off."""
    mirostat: Literal[0, 2] = 0
    """2 is mirostat version 2; 0 is off. Source: Basu et al. 2021."""
    mirostat_tau: float = 5.0
    """Target surprise in bits, > 0."""
    mirostat_eta: float = 0.1
    """Learning rate, in (0, 1]."""
    xtc_probability: float = 0.0
    """Chance in [0, 1] that XTC acts at a step; 0 is off."""
    xtc_threshold: float = 0.1
    """XTC drops all tokens with p >= threshold but the least likely of them, in (0, 0.5]."""
    repetition_penalty: float | None = None
    """> 0; logits of seen tokens (prompt and output) are divided if positive, else multiplied; 1 is off.
    *package* [1.0]."""
    frequency_penalty: float = 0.0
    """In [-2, 2]; subtracted once for each time the token was generated."""
    presence_penalty: float = 0.0
    """In [-2, 2]; subtracted if the token was generated."""
    dry_multiplier: float = 0.0
    """>= 0; DRY repetition penalty; 0 is off."""
    dry_base: float = 1.75
    """>= 1; growth of the DRY penalty for each token of match beyond the allowed length."""
    dry_allowed_length: int = 2
    """>= 1; repeats up to this length are free."""
    dry_sequence_breakers: tuple[int, ...] = ()
    """Ids that end a DRY match."""
    no_repeat_ngram_size: int | None = None
    """Forbid repeating an n-gram of this size (prompt and output); 0 is off. *package* [0]."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these ids; -100 or lower practically forbids, -inf forbids."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Id sequences that may not be completed."""
    suppress_tokens: tuple[int, ...] = ()
    """Ids that are never made."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Ids that may not be the first generated token."""
    forced_tokens: Mapping[int, int] = field(default_factory=dict)
    """Output position (0 = first generated) to the id that must stand there."""
    stop: tuple[str, ...] | str = ()
    """Strings that end the text; not part of it unless ``include_stop``."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence besides EOS."""
    include_stop: bool = False
    """Keep the matched stop string in the text."""
    ignore_eos: bool = False
    """EOS ids do not end the sequence."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text (they stay in ``token_ids``)."""
    visible_special_tokens: tuple[int, ...] = ()
    """Special tokens that stay in the text all the same, such as the marks of tool calls."""
    seed: int | None = None
    """In [0, 2**64); the same request with the same seed gives the same tokens in any batch. None draws one."""
    n: int = 1
    """Independent completions of one prompt, 1..128; the prompt is computed once. With ``num_beams``: how many of the
    best beams are returned, best first, at most ``num_beams``."""
    num_beams: int = 1
    """Beam search with this many beams, 2..64; 1 is off. Beams are greedy: no temperature, filter or random number
    takes part. Source: transformers ``num_beams``."""
    length_penalty: float | None = None
    """The score of a beam is its sum of log-probabilities divided by (generated tokens) ** length_penalty. *package*
    [1.0]."""
    early_stopping: bool | Literal["never"] | None = None
    """When beam search ends: True as soon as there are ``num_beams`` finished beams, False when no running one is
    likely to beat them, "never" when none can. *package* [False]."""
    logprobs: bool = False
    """Return the log-probability of each generated token (log-softmax of the model's own logits)."""
    top_logprobs: int = 0
    """Also return this many most likely alternatives, 0..20; needs ``logprobs``."""
    logits_processors: tuple[LogitsProcessor, ...] = ()
    """Called after the built-in penalties and before temperature."""
    sampler: Sampler | None = None
    """Replaces the built-in choice at the end of the chain."""

    __signature__ = _InitSignature()

    def __new__(cls, *values: Any, **named: Any) -> SamplingParams:
        """Says which name is right where one is wrong; ``__init__`` takes the values."""
        wrong = next((name for name in named if name not in cls.__dataclass_fields__), None)
        if values or wrong is not None:
            raise TypeError(_wrong_name(wrong, list(cls.__dataclass_fields__)))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._check_sequences()
        self._check_numbers()
        for name in ("include_stop", "ignore_eos", "skip_special_tokens", "logprobs"):
            _check_bool(name, getattr(self, name))
        if self.top_logprobs and not self.logprobs:
            raise InvalidArgumentError(f"top_logprobs is {self.top_logprobs} but logprobs is False; set logprobs=True")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InvalidArgumentError(
                f"min_new_tokens is {self.min_new_tokens}; allowed: at most max_new_tokens, which is "
                f"{self.max_new_tokens}"
            )
        self._check_beams()
        self._check_stop()
        self._check_ids()

    def _check_sequences(self) -> None:
        """Makes tuples of what may be given as lists."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", *_ID_LISTS, "bad_words", "logits_processors"):
            value = getattr(self, name)
            if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
                raise InvalidArgumentError(f"{name} is {value!r}; allowed: a list or tuple")
            object.__setattr__(self, name, tuple(value))

    def _check_numbers(self) -> None:
        _check_int("max_new_tokens", self.max_new_tokens, low=1, optional=True)
        _check_int("min_new_tokens", self.min_new_tokens, low=0)
        _check_real("temperature", self.temperature, low=0.0, optional=True)
        _check_int("top_k", self.top_k, low=0, optional=True)
        _check_real("top_p", self.top_p, low=0.0, high=1.0, low_open=True, optional=True)
        _check_real("min_p", self.min_p, low=0.0, high=1.0, optional=True)
        _check_real("typical_p", self.typical_p, low=0.0, high=1.0, low_open=True)
        _check_real("top_a", self.top_a, low=0.0, high=1.0)
        if isinstance(self.mirostat, bool) or self.mirostat not in (0, 2):
            raise InvalidArgumentError(f"mirostat is {self.mirostat!r}; allowed: 0 (off) or 2 (version 2)")
        _check_real("mirostat_tau", self.mirostat_tau, low=0.0, low_open=True)
        _check_real("mirostat_eta", self.mirostat_eta, low=0.0, high=1.0, low_open=True)
        _check_real("xtc_probability", self.xtc_probability, low=0.0, high=1.0)
        _check_real("xtc_threshold", self.xtc_threshold, low=0.0, high=0.5, low_open=True)
        _check_real("repetition_penalty", self.repetition_penalty, low=0.0, low_open=True, optional=True)
        _check_real("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        _check_real("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _check_real("dry_multiplier", self.dry_multiplier, low=0.0)
        _check_real("dry_base", self.dry_base, low=1.0)
        _check_int("dry_allowed_length", self.dry_allowed_length, low=1)
        _check_int("no_repeat_ngram_size", self.no_repeat_ngram_size, low=0, optional=True)
        _check_int("seed", self.seed, low=0, high=2**64 - 1, optional=True)
        _check_int("n", self.n, low=1, high=MAX_CHOICES)
        _check_int("top_logprobs", self.top_logprobs, low=0, high=MAX_LOGPROBS)

    def _check_beams(self) -> None:
        _check_int("num_beams", self.num_beams, low=1, high=MAX_BEAMS)
        _check_real("length_penalty", self.length_penalty, optional=True)
        if self.early_stopping not in (None, "never") and not isinstance(self.early_stopping, (bool, np.bool_)):
            raise InvalidArgumentError(
                f'early_stopping is {self.early_stopping!r}; allowed: False, True, "never", or None'
            )
        if self.num_beams == 1:
            return
        if self.n > self.num_beams:
            raise InvalidArgumentError(
                f"n is {self.n} with num_beams={self.num_beams}; allowed: at most num_beams, whose best n are returned"
            )
        if self.temperature:
            raise InvalidArgumentError(
                f"temperature is {self.temperature} with num_beams={self.num_beams}; allowed: 0 or None, beam search "
                "draws nothing at random"
            )
        if self.sampler is not None:
            raise InvalidArgumentError(
                f"sampler is set with num_beams={self.num_beams}; beam search chooses by itself, so leave one of them "
                "out"
            )

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidArgumentError(f"stop has {len(self.stop)} strings; allowed: at most {MAX_STOP_STRINGS}")
        for index, text in enumerate(self.stop):
            if not isinstance(text, str) or not text:
                raise InvalidArgumentError(f"stop[{index}] is {text!r}; allowed: a string that is not empty")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InvalidArgumentError(
                    f"stop[{index}] is {text!r}, with a lone surrogate at character {error.start}; allowed: text that "
                    "UTF-8 can hold"
                ) from error

    def _check_ids(self) -> None:
        """What does not depend on the vocabulary; the engine checks the rest."""
        for name in _ID_LISTS:
            for token in getattr(self, name):
                _check_int(name, token, low=0, high=_MAX_TOKEN_ID)
        for index, word in enumerate(self.bad_words):
            if isinstance(word, (str, bytes)) or not isinstance(word, Sequence) or not word:
                raise InvalidArgumentError(
                    f"bad_words[{index}] is {word!r}; allowed: a list of token ids that is not empty"
                )
            for token in word:
                _check_int(f"bad_words[{index}]", token, low=0, high=_MAX_TOKEN_ID)
        _check_mapping("logit_bias", self.logit_bias)
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias key", token, low=0, high=_MAX_TOKEN_ID)
            if isinstance(bias, (float, np.floating)) and bias == -math.inf:
                continue
            _check_real(f"logit_bias[{token}]", bias, allowed="a finite float32 number, or -inf")
        _check_mapping("forced_tokens", self.forced_tokens)
        for position, token in self.forced_tokens.items():
            _check_int("forced_tokens key", position, low=0)
            _check_int(f"forced_tokens[{position}]", token, low=0, high=_MAX_TOKEN_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Where the time of one request went, in seconds, as its engine saw it."""

    queued: float
    """From submission to the first step that ran a token of it."""
    prefill: float
    """From there to its first new token; 0 if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    """Over all choices."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was really reused."""
    times: RequestTimes | None = field(default=None, compare=False, repr=False)
    """None where nothing of it ran."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class TokenLogprob(NamedTuple):
    """Log-probability of one generated token.

    A tuple, unlike its neighbours: a server makes several for each token, in a third of the time.
    """

    token_id: int
    token: str
    """Text of this token alone; incomplete UTF-8 shows as U+FFFD, see ``token_bytes``."""
    token_bytes: bytes
    logprob: float
    """Natural log."""
    top: tuple[TokenLogprob, ...] = ()
    """Most likely tokens, best first; their own ``top`` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool in an answer."""

    index: int
    """0, 1, ... in the order of the answer."""
    id: str
    """To be repeated in the tool's result message."""
    name: str
    arguments: str
    """JSON text of an object."""

    def as_message(self) -> dict[str, Any]:
        """The call as an entry of an assistant message's ``tool_calls``."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One completion."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    """The stop string or id that ended it; None for EOS and other reasons."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    score: float | None = None
    """With beam search: the sum of log-probabilities divided by (generated tokens) ** length_penalty."""
    reasoning: str | None = None
    """After a chat: what the model thought before it answered; None if it did not. Not part of ``text``."""
    tool_calls: tuple[ToolCall, ...] = ()
    """After a chat: the calls of the answer. Not part of ``text``."""
    unfinished_call: str = ""
    """After a chat that was cut: the text of a call that was begun. It is no part of ``text``, and no call."""
    malformed_calls: int = 0
    """After a chat: how many pieces of ``text`` began like a call and were none, or were not ended by the model."""
    parsed: Any = None
    """After a chat with a ``response_format``: the object that ``text`` stands for; None if it was cut off."""

    @property
    def message(self) -> dict[str, Any]:
        """The answer as an assistant's message, to go on with."""
        content = self.text if self.text or not self.tool_calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_message() for call in self.tool_calls]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished request; ``text``, ``token_ids``, ... are those of the first choice."""

    choices: tuple[Choice, ...]
    usage: Usage
    prompt_token_ids: tuple[int, ...] = ()
    budget_cap: tuple[int, int] | None = None
    """(asked, granted) new tokens when memory did not allow what was asked."""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return self.choices[0].logprobs

    @property
    def message(self) -> dict[str, Any]:
        return self.choices[0].message

    @property
    def reasoning(self) -> str | None:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls

    @property
    def parsed(self) -> Any:
        return self.choices[0].parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a stream. The texts of one choice's chunks join to the whole text."""

    index: int
    """Choice that the piece belongs to."""
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    """Set on the last chunk of a choice only."""
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    usage: Usage | None = None
    """Set on the last chunk of the request."""
    budget_cap: tuple[int, int] | None = None
    """Set on the last chunk of the request; see :class:`Result`."""
    score: float | None = None
    """Set on the last chunk of a choice with beam search; see :class:`Choice`."""


def _wrong_name(name: str | None, known: Sequence[str]) -> str:
    if name is None:
        return "SamplingParams takes its values by name, for example SamplingParams(max_new_tokens=100)"
    if name == "do_sample":
        return "SamplingParams has no do_sample; temperature=0.0 is greedy, and any other temperature samples"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    right = _OTHER_NAMES.get(name) or (near[0] if near else None)
    if right is None:
        return f"SamplingParams has no {name}; it has {', '.join(known)}"
    return f"SamplingParams has no {name}; here it is called {right}"


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgumentError(f"{name} is {value!r} ({type(value).__name__}); allowed: True or False")


def _check_int(name: str, value: object, *, low: int, high: int = _MAX_INT, optional: bool = False) -> None:
    if value is None and optional:
        return
    allowed = f"a whole number >= {low}" if high == _MAX_INT else f"a whole number in {low}..{high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidArgumentError(f"{name} is {value!r} ({type(value).__name__}); allowed: {allowed}")
    if not low <= value <= high:
        below = " and < 2**63" if high == _MAX_INT and value > high else ""
        raise InvalidArgumentError(f"{name} is {value}; allowed: {allowed}{below}")


def _check_real(
    name: str,
    value: object,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    optional: bool = False,
    allowed: str | None = None,
) -> None:
    """The core computes in float32, so the value must be in range there as well."""
    if value is None and optional:
        return
    left = f" {'>' if low_open else '>='} {low:g}"
    allowed = allowed or f"a finite number{left}" + ("" if high == math.inf else f" and <= {high:g}")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise InvalidArgumentError(f"{name} is {value!r} ({type(value).__name__}); allowed: {allowed}")
    try:
        number = float(value)
    except OverflowError:  # an int without bound
        number = math.inf
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(number))
    if not math.isfinite(number) or not low <= number <= high or (low_open and number <= low):
        raise InvalidArgumentError(f"{name} is {value}; allowed: {allowed}")
    if not math.isfinite(rounded) or (low_open and rounded <= low):
        raise InvalidArgumentError(f"{name} is {value}, which is {rounded:g} in float32; allowed: {allowed}")


def _check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: a mapping")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChunk:
    """A piece of a streamed chat answer; the pieces of a choice join to those of a :class:`Choice`."""

    index: int
    """Which choice."""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that are complete with this piece."""
    unfinished_call: str = ""
    """On the last piece of a choice: the text of a call that was begun and not ended, which is no content."""
    malformed_calls: int = 0
    """On the last piece of a choice: how many pieces of its content began like a call, ended, and were none."""
    finish_reason: FinishReason | None = None
    """Set on the last piece of a choice."""
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] = ()
    """Tokens that this piece came with; text may come later than its tokens."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    usage: Usage | None = None
    """Set on the last piece of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDocument:
    """A document with how well it fits a query."""

    index: int
    """Its place in the list that was given."""
    score: float
    """Higher fits better: 0..1 of a reranker, a cosine of an embedding model."""
    document: str
