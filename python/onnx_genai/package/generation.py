"""Generation defaults of a package, from whichever file states them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onnx_genai.package.fields import Fields
from onnx_genai.package.model import GenerationDefaults

__all__ = ["defaults_from"]

# Valid in other runtimes, without a meaning here or covered by request parameters.
_KNOWN = frozenset(
    {"_from_model_config", "transformers_version", "diversity_penalty"}
    | {"num_return_sequences", "min_length", "min_new_tokens", "batch_size", "past_present_share_buffer"}
    | {"random_seed", "chunk_size", "blank_penalty", "overrides"}
)


def defaults_from(
    fields: Fields | None, path: Path, warnings: list[str], *, report_unknown: bool = True
) -> GenerationDefaults | None:
    """Reads the keys of a ``generation``, ``search`` or generation_config.json object.

    A value of the right type but out of range is left out with a warning: a poor default must not keep a model from
    loading. Returns None for None.

    Raises:
        PackageError: A key has the wrong type.
    """
    if fields is None:
        return None
    inner = fields.sub("defaults")
    if inner is not None:
        fields = inner
    do_sample = fields.flag("do_sample")
    temperature = _ranged(fields, "temperature", 0.0, float("inf"), warnings)
    if do_sample is False:
        temperature = 0.0
    elif do_sample and temperature is None:
        temperature = 1.0
    num_beams = fields.whole("num_beams")
    if num_beams is not None and num_beams > 1:
        warnings.append(
            f"{fields.where('num_beams')} is {num_beams}; beam search is used only where a request asks for it "
            f"(num_beams={num_beams})"
        )
    top_p = _ranged(fields, "top_p", 0.0, 1.0, warnings)
    penalty = _ranged(fields, "repetition_penalty", 0.0, float("inf"), warnings)
    top_k = fields.whole("top_k")
    ngram = fields.whole("no_repeat_ngram_size")
    defaults = GenerationDefaults(
        source=str(path),
        do_sample=do_sample,
        temperature=temperature,
        top_k=None if top_k is None else max(top_k, 0),  # -1 also means "all" in the wild
        top_p=_positive(fields, "top_p", top_p, warnings),
        min_p=_ranged(fields, "min_p", 0.0, 1.0, warnings),
        repetition_penalty=_positive(fields, "repetition_penalty", penalty, warnings),
        no_repeat_ngram_size=None if ngram is None else max(ngram, 0),
        length_penalty=_ranged(fields, "length_penalty", -1e6, 1e6, warnings),
        early_stopping=_early_stopping(fields, warnings),
        max_new_tokens=_length(fields, "max_new_tokens"),
        max_length=_length(fields, "max_length"),
    )
    if report_unknown:
        warnings.extend(fields.unknown(_KNOWN))
    return defaults


def _ranged(fields: Fields, key: str, low: float, high: float, warnings: list[str]) -> float | None:
    value = fields.number(key)
    if value is None or low <= value <= high:
        return value
    warnings.append(f"{fields.where(key)} is {value:g}, outside {low:g}..{high:g}; it is ignored")
    return None


def _positive(fields: Fields, key: str, value: float | None, warnings: list[str]) -> float | None:
    if value != 0.0:
        return value
    warnings.append(f"{fields.where(key)} is 0, which forbids every token; it is ignored")
    return None


def _length(fields: Fields, key: str) -> int | None:
    value = fields.whole(key)
    return value if value is not None and value > 0 else None


def _early_stopping(fields: Fields, warnings: list[str]) -> bool | Literal["never"] | None:
    """True, False or "never"; the JSON of other libraries has all three."""
    value = fields.raw("early_stopping")
    if value is None or isinstance(value, bool):
        return value
    if value == "never":
        return "never"
    warnings.append(f'{fields.where("early_stopping")} is {value!r}, not true, false or "never"; it is ignored')
    return None
