"""AsyncEmbedder: the same results, shared runs, cancelling and closing."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from onnx_genai import AsyncEmbedder
from onnx_genai.engine import EncoderEngine, EncoderText
from onnx_genai.errors import AbortedError, BackendError
from onnx_genai.package.encoder import read_encoder
from onnx_genai.pipelines.text_queue import TextQueue
from tests.embedding.conftest import WritePackage, pooled, text_of
from tests.models.encoder import EncoderFiles, EncoderStyle

TOLERANCE = 1e-5
WAIT_SECONDS = 60.0


def test_results_are_those_of_the_sync_twin(package: WritePackage) -> None:
    async def run() -> None:
        async with AsyncEmbedder(package()) as embedder:
            vectors = await embedder.embed([text_of(5), text_of(6, 7)])
            ranked = await embedder.rerank("w5", ["w30", "w5"])
            nothing = await embedder.embed([])

            np.testing.assert_allclose(vectors, [pooled((5,)), pooled((6, 7))], atol=TOLERANCE)
            assert [each.index for each in ranked] == [1, 0]
            assert nothing.shape == (0, 8)

    asyncio.run(run())


def test_many_tasks_share_runs(package: WritePackage) -> None:
    async def run() -> dict[str, float]:
        async with AsyncEmbedder(package()) as embedder:
            tasks = [embedder.embed(text_of(4 + number % 50)) for number in range(64)]
            vectors = await asyncio.gather(*tasks)
            for number, vector in enumerate(vectors):
                np.testing.assert_allclose(vector[0], pooled((4 + number % 50,)), atol=TOLERANCE)
            return embedder.metrics()

    metrics = asyncio.run(run())
    assert metrics["num_texts"] == 64
    assert metrics["num_runs"] <= 64


def test_several_event_loops_use_one_model(package: WritePackage) -> None:
    embedder = AsyncEmbedder(package())
    failures: list[BaseException] = []

    def loop(word: int) -> None:
        async def run() -> None:
            for _ in range(5):
                vectors = await embedder.embed(text_of(word))
                np.testing.assert_allclose(vectors[0], pooled((word,)), atol=TOLERANCE)

        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(10 + number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    asyncio.run(embedder.close())

    assert failures == []


def test_fault_of_one_text_does_not_fail_the_others(package: WritePackage) -> None:
    async def run() -> list[object]:
        async with AsyncEmbedder(package(EncoderStyle(broken_id=13))) as embedder:
            return await asyncio.gather(
                *(embedder.embed(text_of(word)) for word in (12, 13, 14, 15)), return_exceptions=True
            )

    results = asyncio.run(run())
    assert isinstance(results[1], BackendError)
    for word, result in zip((12, 14, 15), (results[0], *results[2:]), strict=True):
        np.testing.assert_allclose(result[0], pooled((word,)), atol=TOLERANCE)  # type: ignore[index]


class _HeldEngine:
    """An engine whose runs wait for a signal; counts what it was asked for."""

    width = 2

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)
        self.rounds: list[list[int]] = []

    def encode(self, texts: list[EncoderText], *, stop: object = None) -> np.ndarray:
        self.rounds.append([text.ids[0] for text in texts])
        self.entered.release()
        assert self.go.wait(WAIT_SECONDS)
        return np.array([[text.ids[0], len(text.ids)] for text in texts], np.float32)


def _texts(*firsts: int, size: int = 1) -> list[EncoderText]:
    return [EncoderText(ids=[first] * size) for first in firsts]


def test_round_takes_some_texts_of_every_caller() -> None:
    engine = _HeldEngine()
    queue = TextQueue(engine, max_tokens=8)  # type: ignore[arg-type]
    first = queue.submit(_texts(1))
    assert engine.entered.acquire(timeout=WAIT_SECONDS)
    many = queue.submit(_texts(*range(10, 30), size=2))
    few = queue.submit(_texts(2, 3))
    engine.go.set()

    np.testing.assert_array_equal(few.result(WAIT_SECONDS), [[2, 1], [3, 1]])
    np.testing.assert_array_equal(many.result(WAIT_SECONDS)[:, 0], np.arange(10, 30))
    np.testing.assert_array_equal(first.result(WAIT_SECONDS), [[1, 1]])
    queue.close()
    # 8 tokens for two callers: two texts of two tokens, and the two of one; then the caller with many has it all.
    assert sorted(engine.rounds[1]) == [2, 3, 10, 11]
    assert engine.rounds[2] == [12, 13, 14, 15]


def test_cancelled_caller_is_left_out_of_the_next_round() -> None:
    engine = _HeldEngine()
    queue = TextQueue(engine, max_tokens=2)  # type: ignore[arg-type]
    first = queue.submit(_texts(1))
    assert engine.entered.acquire(timeout=WAIT_SECONDS)
    dropped = queue.submit(_texts(2))
    kept = queue.submit(_texts(3))
    assert dropped.cancel()
    engine.go.set()

    np.testing.assert_array_equal(kept.result(WAIT_SECONDS), [[3, 1]])
    assert first.result(WAIT_SECONDS).shape == (1, 2)
    queue.close()
    assert engine.rounds == [[1], [3]]


def test_closing_fails_those_who_wait(package: WritePackage) -> None:
    engine = EncoderEngine.open(read_encoder(package(files=EncoderFiles())))
    queue = TextQueue(engine, max_tokens=64)
    queue.close()
    engine.close()

    with pytest.raises(AbortedError, match="the encoder is closed; open the model again"):
        queue.submit(_texts(1))


def test_cancelled_task_raises_and_the_model_goes_on(package: WritePackage) -> None:
    async def run() -> None:
        async with AsyncEmbedder(package()) as embedder:
            task = asyncio.ensure_future(embedder.embed([text_of(4, 5)] * 500))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            vectors = await embedder.embed(text_of(9))
            np.testing.assert_allclose(vectors[0], pooled((9,)), atol=TOLERANCE)

    asyncio.run(run())
