"""Fields of all requests that generate text, and the :class:`~onnx_genai.SamplingParams` that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError
from onnx_genai.server.schemas.base import ListOf, RequestModel
from onnx_genai.types import SamplingParams

__all__ = ["GenerationRequest", "StreamOptions", "check_stop_lengths"]

MAX_STOP_CHARACTERS = 1024

_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)
_WITH_DEFAULT = (
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
    "dry_sequence_breakers",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
)


class StreamOptions(RequestModel):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = None


def _fails_fast(given: Any) -> Any:
    """Ends at the first entry that is no number: one error for each of millions would fill the memory."""
    if isinstance(given, dict):
        wrong = next((key for key, value in given.items() if type(value) not in (int, float)), None)
        if wrong is not None:
            raise ValueError(f"the value of {wrong!r:.40} is no number")
    return given


class GenerationRequest(RequestModel):
    """What chat and plain completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1)
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_a: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: ListOf[int] | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_fails_fast)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-1000, le=1000)
    cache_salt: str | None = None
    timeout: float | None = Field(None, gt=0)
    """Seconds; at most the server's own limit."""

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options is not None and self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Raises ApiError for ``stream_options`` without a stream."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options is only allowed with stream: true", param="stream_options", code="invalid_value"
            )

    def time_limit(self, limits: Limits) -> float | None:
        """Seconds that the request may take."""
        given = [each for each in (self.timeout, limits.request_timeout) if each is not None]
        return min(given) if given else None

    def sampling(self, limits: Limits, **more: Any) -> SamplingParams:
        """The sampling parameters; ``more`` sets and overrides some.

        Raises:
            ApiError: A bound of the server is exceeded.
            InvalidArgumentError: A value is out of range.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in _SAME_NAME}
        for name in _WITH_DEFAULT:
            if getattr(self, name) is not None:
                values[name] = getattr(self, name)
        # Both -1 and 0 are in use for "off".
        values["top_k"] = 0 if self.top_k == -1 else self.top_k
        values["seed"] = None if self.seed is None else self.seed % 2**64
        values["n"] = self.n or 1
        values["stop"] = self._stops(limits)
        values["include_stop"] = bool(self.include_stop_str_in_output)
        values["min_new_tokens"] = self.min_tokens or 0
        values["logit_bias"] = self._biases(limits)
        values["max_new_tokens"] = self.max_tokens
        values.update(more)
        self._check_bounds(limits, values["max_new_tokens"])
        return SamplingParams(**values)

    def _stops(self, limits: Limits) -> tuple[str, ...]:
        stops = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        _check_count("stop", len(stops), limits.max_stop)
        check_stop_lengths("stop", stops)
        _check_count("stop_token_ids", len(self.stop_token_ids or ()), limits.max_stop)
        return stops

    def _biases(self, limits: Limits) -> dict[int, float]:
        given = self.logit_bias or {}
        _check_count("logit_bias", len(given), limits.max_logit_bias)
        biases: dict[int, float] = {}
        for key, value in given.items():
            if not (key.isascii() and key.isdecimal() and len(key) <= 10):
                raise ApiError(
                    400,
                    f"logit_bias has the key {key!r:.40}; allowed: token ids as text",
                    param="logit_bias",
                    code="invalid_value",
                )
            biases[int(key)] = value
        return biases

    def _check_bounds(self, limits: Limits, max_new_tokens: int | None) -> None:
        cap = limits.max_output_tokens
        if cap is not None and max_new_tokens is not None and max_new_tokens > cap:
            raise ApiError(
                400,
                f"max_tokens is {max_new_tokens}; this server allows at most {cap}",
                param="max_tokens",
                code="invalid_value",
            )
        _check_count("n", self.n or 1, limits.max_choices)


def check_stop_lengths(name: str, stops: Sequence[str]) -> None:
    """Raises ApiError for a stop string that is longer than any answer needs."""
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_CHARACTERS:
        raise ApiError(
            400,
            f"{name} has a text of {longest} characters; allowed: {MAX_STOP_CHARACTERS}",
            param=name,
            code="invalid_value",
        )


def _check_count(name: str, count: int, limit: int) -> None:
    if count > limit:
        noun = f"{name} is {count}" if name == "n" else f"{name} has {count} entries"
        raise ApiError(400, f"{noun}; this server allows at most {limit}", param=name, code="invalid_value")
