"""A storm of requests that come, go, fail and change their minds: all answers right, all memory free at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnx_genai import AsyncLLM, SamplingParams, errors
from tests.engine.processors import settled
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

NUM_REQUESTS = 2000
AT_ONCE = 100


class FailsLate:
    def process(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> None:
        if any(len(row) % 5 == 0 for row in token_ids):
            raise ValueError("user code")


class Storm:
    """One request after another, each of a random kind."""

    def __init__(self, model: AsyncLLM, seed: int) -> None:
        self._model = model
        self._draw = random.Random(seed)
        self._shared = [[self._draw.randrange(97) for _ in range(64)] for _ in range(4)]
        self.answered = 0

    async def one(self) -> None:
        prompt = self._prompt()
        count = self._draw.randrange(1, 25)
        kind = self._draw.choice(
            ["plain", "plain", "stream", "leave", "cancel", "timeout", "fail", "n", "beams", "session"]
        )
        options = {"priority": self._draw.choice([0, 0, 0, 1, 5]), "cache_salt": self._draw.choice(["", "", "x"])}
        await getattr(self, f"_{kind}")(prompt, count, options)
        self.answered += 1

    def _prompt(self) -> list[int]:
        shared = self._draw.choice(self._shared)
        own = [self._draw.randrange(97) for _ in range(self._draw.randrange(1, 20))]
        return shared[: self._draw.randrange(65)] + own

    async def _plain(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        result = await self._model.generate(prompt, greedy(count), **options)
        assert list(result.token_ids) == checksum_generate(prompt, count)

    async def _stream(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        stream = self._model.stream(prompt, greedy(count), **options)
        assert [token async for chunk in stream for token in chunk.token_ids] == checksum_generate(prompt, count)

    async def _leave(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        tokens: list[int] = []
        async for chunk in self._model.stream(prompt, greedy(100), **options):
            tokens += chunk.token_ids
            if len(tokens) >= count:
                break
        assert tokens == checksum_generate(prompt, len(tokens))

    async def _cancel(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self._model.generate(prompt, greedy(200), **options))
        await asyncio.sleep(self._draw.random() * 0.02)
        task.cancel()
        await asyncio.wait([task])

    async def _timeout(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        try:
            result = await self._model.generate(
                prompt, greedy(count), timeout=self._draw.random() * 0.05 + 1e-3, **options
            )
        except errors.DeadlineError:
            return
        assert list(result.token_ids) == checksum_generate(prompt, count)

    async def _fail(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        params = SamplingParams(max_new_tokens=10, temperature=0, ignore_eos=True, logits_processors=(FailsLate(),))
        with pytest.raises(errors.InvalidArgumentError, match="user code"):
            await self._model.generate(prompt, params, **options)

    async def _n(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        params = SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True, n=3)
        result = await self._model.generate(prompt, params, **options)
        assert [list(choice.token_ids) for choice in result.choices] == [checksum_generate(prompt, count)] * 3

    async def _beams(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        params = SamplingParams(max_new_tokens=count, num_beams=3, n=2, ignore_eos=True)
        result = await self._model.generate(prompt, params, **options)
        assert [len(choice.token_ids) for choice in result.choices] == [count, count]
        assert result.choices[0].score is not None
        assert result.choices[1].score is not None
        assert result.choices[0].score >= result.choices[1].score

    async def _session(self, prompt: list[int], count: int, options: dict[str, Any]) -> None:
        session = self._model.session(cache_salt=options["cache_salt"])
        session.append(prompt)
        await session.generate(greedy(count))
        child = session.fork()
        length = self._draw.randrange(1, child.num_tokens + 1)
        child.rewind(length)
        text = list(child.tokens)
        assert list((await child.generate(greedy(5))).token_ids) == checksum_generate(text, 5)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vram_limit": "128KiB", "host_ram_limit": "256KiB", "max_num_batched_tokens": 33},
        {"vram_limit": "128KiB", "host_ram_limit": "160KiB", "disk_limit": "512KiB"},
        {"prefix_cache": False, "vram_limit": "128KiB", "host_ram_limit": "128KiB"},
        {"decoder": "slot", "max_num_seqs": 8},
        {"decoder": "slot", "host_ram_limit": "256KiB"},
        {"decoder": "copy", "max_num_seqs": 8},
    ],
    ids=["plain", "warm", "cold", "no_cache", "slot", "slot_small", "copy"],
)
def test_storm_ends_with_right_answers_and_nothing_held(
    options: dict[str, Any], checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    if "disk_limit" in options:
        options = {**options, "disk_folder": tmp_path}

    async def main() -> None:
        async with AsyncLLM(checksum_package("gqa", context_length=400), threads=1, **options) as model:
            storm = Storm(model, seed=len(options))
            left = iter(range(NUM_REQUESTS))

            async def work() -> None:
                for _ in left:
                    await storm.one()

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            assert await asyncio.to_thread(settled, model, is_idle)
            metrics = model.metrics()
            assert metrics["num_finished_requests"] == metrics["num_requests"] >= storm.answered

    asyncio.run(asyncio.wait_for(main(), 300))


def is_idle(metrics: dict[str, float]) -> bool:
    return not metrics["num_running"] and not metrics["num_waiting"] and not metrics["kv_hot_used_blocks"]
