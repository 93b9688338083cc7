"""User-written logits processors and samplers."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnx_genai import LLM, Chunk, SamplingParams, errors
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


class Samples:
    """Returns what the test wants."""

    def __init__(self, ids: Any) -> None:
        self.ids = ids

    def sample(self, token_ids: Rows, logits: Logits) -> Sequence[int]:
        assert logits.shape[1] == 97
        return self.ids  # type: ignore[no-any-return]


class Calls:
    """Calls something at its first step."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function: Callable[[], object] | None = function

    def process(self, token_ids: Rows, logits: Logits) -> None:
        function, self.function = self.function, None
        if function is not None:
            function()


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
    in_hook, all_submitted = threading.Event(), threading.Event()

    def wait() -> None:
        in_hook.set()
        all_submitted.wait(10)

    first = llm.stream([9], params(Calls(wait)))  # holds the engine until all others are there
    in_hook.wait(10)
    streams = [llm.stream([token], params(only)) for token in (1, 2, 3)]
    all_submitted.set()

    assert [[token for chunk in stream for token in chunk.token_ids] for stream in streams] == [[42] * 4] * 3
    assert [len(rows) for rows in only.calls] == [3] * 4
    assert sum(len(chunk.token_ids) for chunk in first) == 4


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


@pytest.mark.parametrize("ids", [[3.0], [True], ["3"], "3", {3}, [None], None, 3, [2**40], np.ones(1, np.float32)])
def test_sampler_that_returns_no_whole_numbers_is_refused(llm: LLM, ids: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="sampler returned"):
        llm.generate([1, 2], params(sampler=Samples(ids)))


@pytest.mark.parametrize("ids", [[3], (3,), np.array([3]), [np.int32(3)]])
def test_sampler_may_return_any_sequence_of_ints(llm: LLM, ids: Any) -> None:
    assert llm.generate([1, 2], params(sampler=Samples(ids))).token_ids == (3,) * 4


def test_hooks_do_not_see_the_padding_of_the_vocabulary(checksum_package: Callable[..., Path]) -> None:
    only = Only(42)  # asserts the width
    with LLM(checksum_package("concat_padded_vocab"), threads=1) as model:
        assert model.generate([1, 2], params(only)).token_ids == (42,) * 4
        with pytest.raises(errors.InvalidArgumentError, match=r"100; allowed: 0\.\.96"):
            model.generate([1, 2], params(sampler=Samples([100])))


@pytest.mark.parametrize("call", ["generate", "close"])
def test_hook_that_would_wait_for_its_own_model_is_refused(call: str, checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1) as model:
        calls = {"generate": lambda: model.generate([1], params()), "close": model.close}
        with pytest.raises(errors.InvalidArgumentError, match="same model"):
            model.generate([1, 2], params(Calls(calls[call])))

        assert list(model.generate([1, 2], params()).token_ids) == checksum_generate([1, 2], 4)


def test_hook_may_start_a_request_and_another_thread_take_it(llm: LLM) -> None:
    streams: list[Iterator[Chunk]] = []
    calls = Calls(lambda: streams.append(llm.stream([5, 6], params())))

    llm.generate([1, 2], params(calls))

    assert [token for chunk in streams[0] for token in chunk.token_ids] == checksum_generate([5, 6], 4)


def test_close_while_a_hook_starts_a_request_does_not_hang(checksum_package: Callable[..., Path]) -> None:
    model = LLM(checksum_package("gqa"), threads=1)
    in_hook, closing = threading.Event(), threading.Event()
    seen: list[Exception] = []

    def submit_late() -> None:
        in_hook.set()
        closing.wait(10)
        time.sleep(0.1)  # until close() waits for the engine thread
        try:
            model.stream([1], params())
        except errors.AbortedError as error:
            seen.append(error)

    stream = model.stream([1, 2], params(Calls(submit_late)))
    in_hook.wait(10)
    closing.set()
    closer = threading.Thread(target=model.close, daemon=True)
    closer.start()
    closer.join(20)

    assert not closer.is_alive()
    assert len(seen) == 1
    with pytest.raises(errors.AbortedError):
        list(stream)


def test_model_whose_last_reference_a_hook_held_is_freed(checksum_package: Callable[..., Path]) -> None:
    class Holds:
        def __init__(self, model: LLM) -> None:
            self.model = model

        def process(self, token_ids: Rows, logits: Logits) -> None:
            pass

    model = LLM(checksum_package("gqa"), threads=1)
    gone = threading.Event()
    weakref.finalize(model, gone.set)
    stream = model.stream(
        [1, 2], SamplingParams(max_new_tokens=4000, ignore_eos=True, logits_processors=(Holds(model),))
    )
    next(stream)

    del model, stream  # the request is now what holds the model, and the engine thread drops it

    assert gone.wait(20)
