"""Request parameters and package defaults to the core's parameters."""

from __future__ import annotations

from onnx_genai import _core
from onnx_genai.package import GenerationDefaults
from onnx_genai.types import SamplingParams

__all__ = ["to_core_params"]

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
    "logprobs",
    "top_logprobs",
)
_LISTS = ("dry_sequence_breakers", "suppress_tokens", "begin_suppress_tokens", "stop", "stop_token_ids")
_FROM_PACKAGE: tuple[tuple[str, float], ...] = (
    ("temperature", 1.0),
    ("top_k", 0),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0),
)


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
    core.bad_words = [list(word) for word in params.bad_words]
    core.logit_bias = list(params.logit_bias.items())
    core.forced_tokens = list(params.forced_tokens.items())
    return core
