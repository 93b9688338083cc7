"""What a generator refuses: tokens, calls, options, and what does not exist here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from tests.compat.calls import generator
from tests.models.checksum import VOCAB_SIZE

pytestmark = pytest.mark.boundary


@pytest.fixture(scope="module")
def model(checksum_package: Callable[..., Path]) -> Iterator[og.Model]:
    with og.Model(str(checksum_package("gqa"))) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("batch", "tokens", "words"),
    [
        (1, [], "rows"),
        (2, [1, 2, 3], "batch_size=2"),
        (2, np.array([1, 2, 3, 4]), r"\[2, n\]"),
        (1, [[1, 2], [3, 4]], "batch_size=1"),
        (1, np.array([[1, 2], [3, 4]]), r"\[1, n\]"),
        (2, [[1], []], "not empty"),
        (1, [1.0], "an int"),
        (1, np.array([1.0]), "float64"),
        (1, [VOCAB_SIZE], r"97; allowed: 0\.\.96"),
        (1, [-1], "-1; allowed"),
        (1, "12", "str"),
        (2, np.array([[0, 0], [1, 2]]), "row 0 has no token"),
        (1, np.zeros((1, 0), np.int32), "shape"),
    ],
)
def test_wrong_tokens_are_refused_and_nothing_is_added(batch: int, tokens: Any, words: str, model: og.Model) -> None:
    made = generator(model, batch_size=batch, max_length=10)
    with pytest.raises(errors.InvalidArgumentError, match=words):
        made.append_tokens(tokens)
    assert made.token_count() == 0


def test_wrong_calls_are_refused(model: og.Model) -> None:
    made = generator(model, max_length=4)
    for call in (made.generate_next_token, made.get_next_tokens, made.get_logits):
        with pytest.raises(errors.InvalidArgumentError, match=r"append_tokens|generate_next_token"):
            call()
    assert not made.is_done()
    made.append_tokens([5, 6])
    for index in (1, -1, 2**40, True, "0", 0.0):
        with pytest.raises(errors.InvalidArgumentError, match=r"allowed: 0\.\.0"):
            made.get_sequence(index)  # type: ignore[arg-type]
    for length in (3, -1, 1.0):
        with pytest.raises(errors.InvalidArgumentError, match=r"allowed: 0\.\.2"):
            made.rewind_to(length)  # type: ignore[arg-type]
    with pytest.raises(errors.ContextOverflowError, match="max_length, which is 4"):
        made.append_tokens([1, 2, 3])
    for logits in (np.zeros((1, 5), np.float32), np.zeros((1, VOCAB_SIZE), np.int32)):
        with pytest.raises(errors.InvalidArgumentError, match=r"\[1, 1, 97\]"):
            made.set_logits(logits)
    with pytest.raises(errors.InvalidArgumentError, match="attention_mask"):
        made.append_tokens([7], attention_mask=[1, 1])
    assert made.get_sequence(0).tolist() == [5, 6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 2}, "top_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": 3.5}, "whole number"),
        ({"max_length": 5000}, "allowed: at most 4096"),
        ({"do_sample": 1}, "True or False"),
        ({"early_stopping": 1}, "True or False"),
        ({"num_beams": 2, "do_sample": True}, "do_sample"),
        ({"num_return_sequences": 2}, r"allowed: 1\.\.1"),
        ({"bogus": 1}, "there are: batch_size"),
        ({"top_k": 98}, "at most 97"),
        ({"batch_size": "2"}, "a number"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_set(options: dict[str, Any], words: str, model: og.Model) -> None:
    params = og.GeneratorParams(model)
    before = params.get_search_options()
    with pytest.raises(errors.InvalidArgumentError, match=words):
        params.set_search_options(**options)
    assert params.get_search_options() == before


def test_what_does_not_exist_yet_says_so(model: og.Model) -> None:
    made = generator(model, max_length=8)
    calls: list[Callable[[], object]] = [
        lambda: og.Images.open("a.png"),
        lambda: og.Audios.open_bytes(b""),
        lambda: og.MultiModalProcessor(model),
        lambda: og.StreamingProcessor(model),
        lambda: og.Engine(model),
        model.create_multimodal_processor,
        lambda: made.set_model_input("x", np.zeros(1)),
        lambda: made.set_runtime_option("enable_profiling", "1"),
        lambda: og.register_execution_provider_library("a", "b"),
        lambda: og.set_current_gpu_device_id(1),
    ]
    for call in calls:
        with pytest.raises(errors.UnsupportedError, match="not available"):
            call()
