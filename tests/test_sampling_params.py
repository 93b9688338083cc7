"""The names of `SamplingParams`; what values are allowed is in tests/engine/test_bad_input.py."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from onnx_genai import SamplingParams

FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_tokens", "SamplingParams has no max_tokens; here it is called max_new_tokens"),
        ("max_completion_tokens", "here it is called max_new_tokens"),
        ("min_tokens", "here it is called min_new_tokens"),
        ("stop_sequences", "here it is called stop"),
        ("num_return_sequences", "here it is called n"),
        ("temprature", "SamplingParams has no temprature; here it is called temperature"),
        ("do_sample", "temperature=0.0 is greedy"),
        ("frobnicate", f"SamplingParams has no frobnicate; it has {', '.join(FIELDS)}"),
    ],
)
def test_wrong_name_is_told_with_the_right_one(name: str, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        SamplingParams(temperature=0.0, **{name: 1})  # type: ignore[arg-type]

    assert said in str(caught.value)


def test_every_other_name_leads_to_a_field() -> None:
    for name in ("max_tokens", "typical", "best_of", "eos_token_id", "include_stop_str_in_output", "repeat_penalty"):
        with pytest.raises(TypeError) as caught:
            SamplingParams(**{name: 1})  # type: ignore[arg-type]
        assert str(caught.value).rpartition(" ")[2] in FIELDS


def test_value_without_a_name_is_told() -> None:
    positional: Any = SamplingParams
    with pytest.raises(TypeError, match=r"by name, for example SamplingParams\(max_new_tokens=100\)"):
        positional(100)


def test_signature_and_copies_are_those_of_the_fields() -> None:
    params = SamplingParams(max_new_tokens=3, stop="x")

    assert list(inspect.signature(SamplingParams).parameters) == FIELDS
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == copy.copy(params) == params
    assert dataclasses.replace(params, n=2) == SamplingParams(max_new_tokens=3, stop="x", n=2)
