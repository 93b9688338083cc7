"""Work beside an event loop, by threads that keep no program from ending: :class:`DaemonThreads`."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

__all__ = ["DaemonThreads", "closed", "is_busy"]

T = TypeVar("T")

_IDLE_SECONDS = 30.0
_END_SECONDS = 1.0
_EXIT_SECONDS = 5.0
_all: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()


def is_busy() -> bool:
    """Whether a thread of any :class:`DaemonThreads` still works; a program that ends now should not wait for it."""
    return any(each.num_busy for each in list(_all))


class DaemonThreads(ThreadPoolExecutor):
    """An executor that is shut down in bounded time, whatever its threads do.

    Python joins the threads of its own executors when a loop or the interpreter ends, and native work cannot be told
    to stop. Here what has not begun is cancelled, what runs gets ``end_seconds``, and is then left to itself.
    """

    # The base class is only a type here (asyncio asks for it): it starts threads in submit(), which is replaced.

    def __init__(self, max_threads: int, name: str, *, end_seconds: float = _END_SECONDS) -> None:
        super().__init__(max_threads, name)
        self._limit = max_threads
        self._name = name
        self._end_seconds = end_seconds
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._num_threads = 0
        self._num_idle = 0
        self._is_over = False
        self.num_busy = 0
        """Threads that work now."""
        _all.add(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As the base class.

        Raises:
            RuntimeError: It was shut down.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._is_over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append((future, partial(fn, *args, **kwargs)))
            if len(self._waiting) > self._num_idle and self._num_threads < self._limit:
                self._num_threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            else:
                self._changed.notify_all()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As the base class, but ``wait`` waits no longer than ``end_seconds``, and what has not begun is cancelled."""
        self._shut(self._end_seconds if wait else 0.0)

    def _shut(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._changed:
            self._is_over = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for future, _ in waiting:
            future.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self.num_busy, max(end - time.monotonic(), 0.0))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                self._changed.wait_for(lambda: self._waiting or self._is_over, _IDLE_SECONDS)
                self._num_idle -= 1
                if not self._waiting:
                    self._num_threads -= 1
                    return
                future, call = self._waiting.popleft()
                self.num_busy += 1
            try:
                _run(future, call)
            finally:
                del future, call  # a thread that waits holds nothing
                with self._changed:
                    self.num_busy -= 1
                    self._changed.notify_all()


async def closed(close: Callable[[], None]) -> None:
    """Calls ``close`` in a thread of its own: the threads of the loop may all be at work for those who are let down."""
    apart = DaemonThreads(1, "onnx-genai-close")
    try:
        await asyncio.get_running_loop().run_in_executor(apart, close)
    finally:
        apart.shutdown(wait=False)


def _run(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  raised again where the result is taken
        future.set_exception(error)
    else:
        future.set_result(result)


@atexit.register
def _end_all() -> None:
    """Native work that ends while the interpreter is torn down would crash it."""
    for each in list(_all):
        each._shut(_EXIT_SECONDS)
