"""User-written logits processors and samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from onnx_genai import LLM, SamplingParams, errors
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

Rows = Sequence[npt.NDArray[np.int32]]
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa"), threads=1) as model:
        yield model


class Only:
    """Allows one id, and remembers what it saw."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.calls: list[list[list[int]]] = []

    def process(self, token_ids: Rows, logits: Logits) -> None:
        self.calls.append([row.tolist() for row in token_ids])
        assert logits.shape == (len(token_ids), 97)
        keep = logits[:, self.token].copy()
        logits[:] = -np.inf
        logits[:, self.token] = keep


class Lowest:
    def sample(self, token_ids: Rows, logits: Logits) -> Sequence[int]:
        finite = np.where(np.isfinite(logits), logits, np.inf)
        return [int(i) for i in finite.argmin(axis=1)]


class Raises:
    def process(self, token_ids: Rows, logits: Logits) -> None:
        raise ZeroDivisionError("user code")


class Returns:
    def process(self, token_ids: Rows, logits: Logits) -> None:
        return logits  # type: ignore[return-value]


class WritesNan:
    def process(self, token_ids: Rows, logits: Logits) -> None:
        logits[0, 0] = np.nan


class SamplesOutside:
    def sample(self, token_ids: Rows, logits: Logits) -> Sequence[int]:
        return [97] * len(token_ids)


def params(*processors: object, sampler: object | None = None, temperature: float = 0) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=4,
        temperature=temperature,
        ignore_eos=True,
        logits_processors=processors,  # type: ignore[arg-type]
        sampler=sampler,  # type: ignore[arg-type]
        seed=1,
    )


def test_processor_sees_the_history_and_decides(llm: LLM) -> None:
    only = Only(42)

    result = llm.generate([1, 2, 3], params(only))

    assert result.token_ids == (42,) * 4
    assert only.calls == [[[1, 2, 3, *[42] * made]] for made in range(4)]


def test_one_processor_of_several_requests_is_called_once_a_step(llm: LLM) -> None:
    only = Only(42)

    results = llm.generate([[1], [2], [3]], params(only))

    assert [result.token_ids for result in results] == [(42,) * 4] * 3
    assert len(only.calls) < 12
    assert sum(map(len, only.calls)) == 12


def test_sampler_replaces_the_choice_after_the_filters(llm: LLM) -> None:
    result = llm.generate([1, 2], SamplingParams(max_new_tokens=1, temperature=1, top_k=3, sampler=Lowest()))

    assert result.token_ids[0] == (checksum_generate([1, 2], 1)[0] + 2) % 97


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (params(Raises()), "Raises raised ZeroDivisionError"),
        (params(Returns()), "return None"),
        (params(WritesNan()), "NaN"),
        (params(sampler=SamplesOutside()), "97; allowed: 0..96"),
        (params(object()), "no method process"),
        (params(sampler=object()), "no method sample"),
    ],
)
def test_faulty_hook_ends_only_its_own_request(llm: LLM, own: SamplingParams, words: str) -> None:
    other = llm.stream([5, 6], SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True))

    with pytest.raises(errors.InvalidArgumentError, match=words):
        llm.generate([1, 2], own)

    assert [token for chunk in other for token in chunk.token_ids] == checksum_generate([5, 6], 20)
