"""Threads beside an event loop that keep nothing from ending."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from onnx_genai.pipelines.background import DaemonThreads, closed, is_busy

PROGRAM = """
import asyncio, threading, time
from onnx_genai.pipelines.background import DaemonThreads

async def main():
    asyncio.get_running_loop().set_default_executor(DaemonThreads(2, "test"))
    for _ in range(4):
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0.05)

asyncio.run(main())
print("over", flush=True)
"""


def test_results_and_errors_come_back_and_no_more_threads_run_than_allowed() -> None:
    threads = DaemonThreads(3, "test")
    names: set[int] = set()
    running, most = 0, 0
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            names.add(threading.get_ident())
        time.sleep(0.002)
        with lock:
            running -= 1
        if number == 7:
            raise LookupError("seven")
        return number * number

    futures = [threads.submit(work, number) for number in range(60)]

    with pytest.raises(LookupError, match="seven"):
        futures[7].result(20)
    assert [future.result(20) for future in futures if future is not futures[7]] == [
        number * number for number in range(60) if number != 7
    ]
    assert 1 <= most <= 3
    assert len(names) <= 3
    threads.shutdown()
    assert threads.num_busy == 0
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(work, 1)


def test_a_shutdown_leaves_what_runs_and_cancels_what_waits() -> None:
    threads = DaemonThreads(1, "test", end_seconds=0.1)
    begun, free = threading.Event(), threading.Event()

    def stuck() -> str:
        begun.set()
        assert free.wait(20)
        return "late"

    running = threads.submit(stuck)
    waiting = threads.submit(stuck)
    assert begun.wait(20)
    assert is_busy()

    threads.shutdown()

    assert waiting.cancelled()
    assert not running.done()
    assert threads.num_busy == 1
    free.set()
    assert running.result(20) == "late"


def test_cancelled_work_is_not_begun() -> None:
    threads = DaemonThreads(1, "test")
    free = threading.Event()
    first = threads.submit(free.wait, 20)
    calls: list[int] = []
    second = threads.submit(calls.append, 1)
    third = threads.submit(calls.append, 2)

    assert second.cancel()
    free.set()
    third.result(20)

    assert first.result(20)
    assert calls == [2]


def test_closing_needs_none_of_the_loop_s_threads() -> None:
    free = threading.Event()
    calls: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        threads = DaemonThreads(1, "test")
        loop.set_default_executor(threads)
        stuck = loop.run_in_executor(None, free.wait, 20)
        await asyncio.wait_for(closed(lambda: calls.append("closed")), 20)
        assert not stuck.done()
        free.set()
        assert await stuck

    asyncio.run(main())
    assert calls == ["closed"]


def test_neither_a_loop_nor_the_interpreter_waits_for_stuck_threads() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
