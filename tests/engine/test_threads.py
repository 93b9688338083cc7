"""Many threads, abandoned streams, exit, memory: the boundary under load."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onnx_genai import LLM, SamplingParams, _core, errors
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

MIB = 1024 * 1024


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)


def test_eight_threads_each_get_their_own_answers(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1) as model, ThreadPoolExecutor(8) as pool:

        def work(thread: int) -> bool:
            return all(
                list(model.generate([thread, i], greedy(5 + i)).token_ids) == checksum_generate([thread, i], 5 + i)
                for i in range(10)
            )

        assert all(pool.map(work, range(8)))


def test_several_models_live_and_die_in_any_order(checksum_package: Callable[..., Path]) -> None:
    models = [LLM(checksum_package(style), threads=1) for style in ("gqa", "concat", "static")]

    for model in (models[1], models[0], models[2]):
        assert list(model.generate([4, 5], greedy(4)).token_ids) == checksum_generate([4, 5], 4)
        model.close()


def test_abandoned_stream_frees_its_request(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1, max_num_seqs=1) as model:
        for _ in range(3):
            for _chunk in model.stream([1, 2], greedy(4000)):
                break
        gc.collect()

        assert list(model.generate([1, 2], greedy(3)).token_ids) == checksum_generate([1, 2], 3)
        deadline = time.monotonic() + 5
        while model.metrics()["num_running"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert model.metrics()["num_running"] == 0


def test_close_from_another_thread_ends_a_waiting_reader(checksum_package: Callable[..., Path]) -> None:
    model = LLM(checksum_package("gqa"), threads=1)
    failure: list[BaseException] = []

    def read() -> None:
        try:
            for _ in model.stream([1, 2], greedy(4000)):
                pass
        except errors.GenAIError as error:
            failure.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.05)
    model.close()
    reader.join(timeout=10)

    assert not reader.is_alive()
    assert not failure or "closed" in str(failure[0])


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "raise SystemExit(0)", "model.close()", "del model"])
def test_interpreter_ends_quietly_with_a_model_open(ending: str, checksum_package: Callable[..., Path]) -> None:
    program = f"""
        import sys
        from onnx_genai import LLM, SamplingParams
        model = LLM({str(checksum_package("gqa"))!r}, threads=1)
        stream = model.stream([1, 2], SamplingParams(max_new_tokens=4000, temperature=0, ignore_eos=True))
        next(stream)
        {ending}
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("order", ["import onnxruntime\nimport onnx_genai", "import onnx_genai\nimport onnxruntime"])
def test_onnxruntime_module_may_be_imported_before_or_after(order: str, checksum_package: Callable[..., Path]) -> None:
    program = f"""
{order}
from onnx_genai import LLM, SamplingParams
folder = {str(checksum_package("gqa"))!r}
with LLM(folder, threads=1) as model:
    model.generate([1, 2], SamplingParams(max_new_tokens=2))
onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer keeps freed memory")
def test_resident_memory_is_flat_over_generations_and_loads(checksum_package: Callable[..., Path]) -> None:
    folder = checksum_package("gqa")

    def generate(model: LLM, count: int) -> None:
        for i in range(count):
            model.generate([1 + i % 90, 2], greedy(8))

    with LLM(folder, threads=1) as model:
        generate(model, 100)
        before = _core.resident_set_bytes()
        generate(model, 500)
        assert _core.resident_set_bytes() - before < 4 * MIB
    for _ in range(5):
        LLM(folder, threads=1).close()
    before = _core.resident_set_bytes()
    for _ in range(30):
        LLM(folder, threads=1).close()
    assert _core.resident_set_bytes() - before < 8 * MIB


def test_close_by_a_thread_that_came_after_the_first_close_does_nothing(checksum_package: Callable[..., Path]) -> None:
    # The system gives the ids of threads that have ended to new ones; such a thread is not the engine's own.
    model = LLM(checksum_package("gqa"), threads=1)
    model.close()
    failures: list[Exception] = []

    def close() -> None:
        try:
            model.close()
        except errors.GenAIError as error:
            failures.append(error)

    for _ in range(50):
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()

    assert failures == []
