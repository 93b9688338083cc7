"""Search options: their names, defaults and limits, and what they are as :class:`~onnx_genai.SamplingParams`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import SamplingParams

__all__ = ["SearchOptions", "read_options"]

MAX_BATCH = 256
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options as ``GeneratorParams.set_search_options`` takes them."""

    batch_size: int = 1
    """Rows, 1..256."""
    chunk_size: int = 0
    """Taken and not used: prompts are always computed in chunks."""
    diversity_penalty: float = 0.0
    """Taken and not used."""
    do_sample: bool = False
    """False takes the most likely token."""
    early_stopping: bool = True
    """With beams: end when there are ``num_beams`` finished ones."""
    length_penalty: float = 1.0
    """With beams: a score is the sum of log-probabilities divided by (generated tokens) ** length_penalty."""
    max_length: int = 0
    """Prompt and output together; by default what the package suggests, else its context."""
    min_length: int = 0
    """Prompt and output together; no end token before."""
    no_repeat_ngram_size: int = 0
    """0 is off."""
    num_beams: int = 1
    """1 is off; at most 64."""
    num_return_sequences: int = 1
    """The best beams of a row that are returned; at most ``num_beams``."""
    past_present_share_buffer: bool = False
    """Taken and not used: the graph decides."""
    random_seed: int = -1
    """Below 0: another one each time."""
    repetition_penalty: float = 1.0
    """> 0; 1 is off."""
    temperature: float = 1.0
    """>= 0; 0 takes the most likely token."""
    top_k: int = 50
    """0 or below is off; counts only with ``do_sample``."""
    top_p: float = 0.0
    """In [0, 1]; 0 and 1 are off; counts only with ``do_sample``."""

    def __post_init__(self) -> None:
        self._whole("batch_size", 1, MAX_BATCH)
        self._whole("num_beams", 1, 64)
        self._whole("max_length", 1, _NO_LIMIT)
        self._whole("min_length", 0, _NO_LIMIT)
        self._whole("no_repeat_ngram_size", 0, _NO_LIMIT)
        self._real("temperature", 0.0)
        self._real("top_p", 0.0, 1.0)
        self._real("length_penalty", -math.inf)
        self._real("repetition_penalty", 0.0)
        if self.repetition_penalty == 0:
            raise InvalidArgumentError("repetition_penalty is 0; allowed: a number above 0, where 1 is off")
        if not 1 <= self.num_return_sequences <= self.num_beams:
            raise InvalidArgumentError(
                f"num_return_sequences is {self.num_return_sequences}; allowed: 1..{self.num_beams} (num_beams)"
            )
        if self.num_beams > 1 and self.do_sample:
            raise InvalidArgumentError(
                f"do_sample is True with num_beams={self.num_beams}; beam search draws nothing at random, so set one "
                "of them only"
            )

    @property
    def is_beam_search(self) -> bool:
        return self.num_beams > 1

    @property
    def draws(self) -> bool:
        """Whether random numbers choose."""
        return self.do_sample and self.temperature > 0

    def params(self, *, total: int, new: int, seed: int) -> SamplingParams:
        """A request for ``new`` more tokens of a row that has ``total``, as its next choice shall be made."""
        draws, beams = self.draws, self.is_beam_search
        return SamplingParams(
            max_new_tokens=new,
            min_new_tokens=min(max(self.min_length - total, 0), new),
            temperature=self.temperature if draws else 0.0,
            top_k=max(self.top_k, 0) if draws else 0,
            top_p=self.top_p if draws and self.top_p > 0 else 1.0,
            min_p=0.0,
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            seed=seed,
            n=self.num_return_sequences,
            num_beams=self.num_beams,
            length_penalty=self.length_penalty if beams else None,
            early_stopping=self.early_stopping if beams else None,
        )

    def changed(self, values: Mapping[str, object]) -> SearchOptions:
        """These options with others set.

        Raises:
            InvalidArgumentError: An unknown name, a wrong type, or a value out of range.
        """
        own: dict[str, Any] = {name: _converted(name, value) for name, value in values.items()}
        return replace(self, **own)

    def values(self) -> dict[str, bool | int | float]:
        """Name to value."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _whole(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise InvalidArgumentError(f"{name} is {value}; allowed: a whole number in {low}..{high}")

    def _real(self, name: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, name)
        if not math.isfinite(value) or not low <= value <= high:
            end = "" if high == math.inf else f" and <= {high:g}"
            raise InvalidArgumentError(f"{name} is {value}; allowed: a finite number >= {low:g}{end}")


def read_options(stated: Mapping[str, Any], *, max_length: int) -> SearchOptions:
    """Defaults of a package: the known keys of ``search`` in its genai_config.json.

    Args:
        stated: The keys; unknown ones and null are left out.
        max_length: What holds where they state none.

    Raises:
        InvalidArgumentError: A value is of a wrong type or out of range.
    """
    known = {each.name for each in fields(SearchOptions)}
    given = {name: value for name, value in stated.items() if name in known and value is not None}
    return SearchOptions(max_length=max_length).changed(given)


def _converted(name: str, value: object) -> bool | int | float:
    types = {each.name: each.type for each in fields(SearchOptions)}
    if name not in types:
        raise InvalidArgumentError(f"{name} is no search option; there are: {', '.join(types)}")
    kind = types[name]
    if kind == "bool":
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: True or False")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: a number")
    if kind == "float":
        return float(value)
    if not math.isfinite(value) or value != int(value):
        raise InvalidArgumentError(f"{name} is {value}; allowed: a whole number")
    return int(value)
