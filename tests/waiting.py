"""How long a piece of work keeps other threads waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["lets_others_run"]

T = TypeVar("T")

_TRIES = 5


def lets_others_run(work: Callable[[], T]) -> T:
    """What ``work`` returns; fails the test if no other thread ever runs in one half of the time that it takes.

    A busy machine may stop all threads for a while, so one good try of several is enough.
    """
    for _ in range(_TRIES):
        value, pause, seconds = _longest_pause(work)
        if pause < seconds / 2:
            return value
    raise AssertionError(f"no other thread ran for {pause:.3f} of {seconds:.3f} seconds")


def _longest_pause(work: Callable[[], T]) -> tuple[T, float, float]:
    """What ``work`` returns, the longest time in which another thread did not run, and the whole time, in seconds."""
    pauses = [0.0]
    is_done = threading.Event()
    has_begun = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not is_done.is_set():
            has_begun.set()
            time.sleep(0.001)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    has_begun.wait()
    try:
        start = time.perf_counter()
        value = work()
        seconds = time.perf_counter() - start
    finally:
        is_done.set()
        ticker.join()
    return value, max(pauses), seconds
