"""Priorities, timeouts, limits of the queue: who runs first and who is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, Chunk, SamplingParams, errors
from tests.engine.processors import Gate, Log, Slow, settled
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary


def params(count: int, *processors: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True, logits_processors=processors)


def tokens_of(stream: Iterator[Chunk]) -> list[int]:
    return [token for chunk in stream for token in chunk.token_ids]


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa"), threads=1, max_num_seqs=1) as model:
        yield model


def test_waiting_requests_run_by_priority_then_by_arrival(llm: LLM) -> None:
    gate, log = Gate(), Log()
    first = llm.stream([1], params(1, gate))
    assert gate.is_reached.wait(60)

    waiting = [
        llm.stream([prompt], params(2, log), priority=priority)
        for prompt, priority in [(10, 0), (11, -3), (12, 5), (13, 0), (14, 5)]
    ]
    gate.open()
    for stream in [first, *waiting]:
        tokens_of(stream)

    assert log.first_ids == [12, 12, 14, 14, 10, 10, 13, 13, 11, 11]


def test_higher_priority_takes_the_place_of_a_running_request(llm: LLM) -> None:
    gate, log = Gate(), Log()
    low = llm.stream([20, 21], params(40, gate, log))
    assert gate.is_reached.wait(60)

    high = llm.stream([30], params(3, log), priority=1)
    gate.open()

    assert tokens_of(high) == checksum_generate([30], 3)
    assert tokens_of(low) == checksum_generate([20, 21], 40)
    assert log.first_ids.index(30) < 3
    assert log.first_ids.count(20) == 40
    assert llm.metrics()["num_preemptions"] >= 1


def test_preempted_request_goes_on_as_if_nothing_was(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1) as model:
        prompt = [i * 7 % 97 for i in range(40)]
        generation = model.engine.submit(prompt, params(60, Slow(0.001)))
        hits = 0
        chunks: list[Chunk] = []
        while not generation.done:
            chunks.extend(generation.poll(100))
            hits += model.engine.preempt(generation)

        assert tokens_of(iter(chunks)) == checksum_generate(prompt, 60)
        assert hits > 0
        assert model.metrics()["num_preemptions"] == hits
        assert not model.engine.preempt(generation)


def test_timeout_while_waiting_and_while_running_is_a_deadline_error(llm: LLM) -> None:
    before = llm.metrics()["num_expired_requests"]
    running = llm.stream([1], params(4000, Slow()))
    next(running)

    with pytest.raises(errors.DeadlineError):
        llm.generate([2], params(1), timeout=0.05)
    del running
    pieces: list[Chunk] = []
    with pytest.raises(errors.DeadlineError):
        pieces.extend(llm.stream([3], params(4000, Slow()), timeout=0.05))

    tokens = tokens_of(iter(pieces))
    assert tokens == checksum_generate([3], len(tokens))
    assert tokens
    assert settled(llm, lambda metrics: metrics["num_expired_requests"] == before + 2 and not metrics["num_running"])


def test_timeout_that_does_not_run_out_changes_nothing(llm: LLM) -> None:
    assert list(llm.generate([1, 2], params(5), timeout=60).token_ids) == checksum_generate([1, 2], 5)
    results = llm.generate([[1], [2]], params(5), timeout=60, priority=2)
    assert [list(each.token_ids) for each in results] == [checksum_generate([1], 5), checksum_generate([2], 5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 1.5}, "priority is 1.5"),
        ({"priority": True}, "priority is True"),
        ({"priority": 2**31}, "allowed: -2147483647..2147483647"),
        ({"timeout": 0}, "timeout is 0; allowed: seconds above 0"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": math.nan}, "timeout is nan"),
        ({"timeout": math.inf}, "timeout is inf"),
        ({"timeout": 1e300}, "at most 1e"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"timeout": True}, "timeout is True"),
        ({"cache_salt": None}, "cache_salt is None"),
        ({"cache_salt": b"x"}, "cache_salt is b'x'"),
        ({"cache_salt": "\ud800"}, "lone surrogate"),
        ({"cache_salt": "x" * 2000}, "2000 bytes; allowed: at most 1024"),
    ],
)
def test_wrong_option_of_a_request_is_refused(llm: LLM, options: dict[str, Any], words: str) -> None:
    for call in (llm.generate, llm.stream):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            call([1], params(1), **options)
        assert words in str(caught.value)
    with pytest.raises(errors.InvalidArgumentError):
        llm.generate([[1], [2]], params(1), **options)


def test_full_queue_refuses_one_more_and_loses_nothing(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1, max_num_seqs=1, max_queue=3) as model:
        gate = Gate()
        open_ones = [model.stream([i], params(2, gate)) for i in range(3)]
        assert gate.is_reached.wait(60)
        with pytest.raises(errors.QueueFullError, match="max_queue"):
            model.generate([9], params(1))
        gate.open()

        assert [tokens_of(stream) for stream in open_ones] == [checksum_generate([i], 2) for i in range(3)]
        assert list(model.generate([9], params(1)).token_ids) == checksum_generate([9], 1)


def test_list_may_be_longer_than_the_queue(checksum_package: Callable[..., Path]) -> None:
    prompts = [[i, i + 1] for i in range(20)]
    with LLM(checksum_package("gqa"), threads=1, max_num_seqs=2, max_queue=3) as model:
        results = model.generate(prompts, params(3))

        assert [list(result.token_ids) for result in results] == [checksum_generate(prompt, 3) for prompt in prompts]
        assert model.metrics()["num_requests"] == 20
