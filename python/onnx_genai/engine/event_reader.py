"""Events of many requests for asyncio: :class:`EventReader` and what it fills, :class:`Inbox`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from onnx_genai import _core
from onnx_genai.errors import AbortedError, GenAIError, InvalidArgumentError

__all__ = ["EventReader", "Inbox", "stop_readers"]

# How long the thread stays after its last request. No polling: events and close() wake it at once.
_LINGER_MS = 1000
_JOIN_SECONDS = 10.0

_running: weakref.WeakSet[EventReader] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""A thread outlives its reader when it drops the last reference to an engine, which is then closed in it."""


class Inbox:
    """Events of one request, in the event loop that submitted it. Used in that loop only."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._events: deque[_core.Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, events: Sequence[_core.Event]) -> None:
        self._events.extend(events)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> _core.Event | None:
        """Returns the oldest event, when there is one; None after :meth:`wake`.

        Raises:
            InvalidArgumentError: Another task waits already, or this is another event loop.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidArgumentError(
                "a stream is read in another event loop than the one that started it; start it where it is read"
            )
        if self._waiter is not None:
            raise InvalidArgumentError("two tasks read one stream at once; give each task a stream of its own")
        if not self._events:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft() if self._events else None

    def clear(self) -> None:
        """Forgets what is there."""
        self._events.clear()

    def wake(self) -> None:
        """Lets :meth:`take` return without an event. Callable from any thread."""
        if self._waiter is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            self.loop.call_soon_threadsafe(self.put, ())


class EventReader:
    """One thread that waits for the events of all shared requests of an engine and hands them to their event loops.

    It starts with the first request and ends when there has been none for a moment. Thread-safe.
    """

    def __init__(self, core: _core.Engine) -> None:
        self._core = core
        self._pid = os.getpid()
        # Reentrant: garbage that is collected while it is held may hold a request, which is then forgotten.
        self._lock = threading.RLock()
        self._inboxes: dict[int, Inbox] = {}  # guarded by _lock
        self._thread: threading.Thread | None = None  # guarded by _lock; None when none runs

    def submit(self, inbox: Inbox, submit: Callable[[], int]) -> int:
        """Calls ``submit``, which returns a request's number, and sends that request's events to ``inbox``."""
        if os.getpid() != self._pid:
            return submit()  # refused after a fork, where the lock may be held by a thread that does not exist
        with self._lock:  # no event may come before its inbox is known
            request = submit()
            self._inboxes[request] = inbox
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onnx-genai-events", daemon=True)
                self._thread.start()
                _running.add(self)
                _threads.add(self._thread)
        return request

    def forget(self, request: int) -> None:
        """Aborts the request; nothing more comes into its inbox."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._inboxes.pop(request, None)
        self._core.drop(request)

    def stop(self) -> None:
        """Closes the engine and waits until its last events are on their way to their loops."""
        self._core.close()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except AbortedError:  # closed, and the last events were delivered
            with self._lock:
                self._thread = None

    def _step(self) -> bool:
        ready = self._core.wait_any(_LINGER_MS)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[int, Inbox, list[_core.Event]]]] = {}
        with self._lock:
            if not ready and not self._inboxes:
                self._thread = None
                return False
            for request, events in ready:
                inbox = self._inboxes.get(request)
                if inbox is None:
                    continue
                if events[-1].last:
                    del self._inboxes[request]
                by_loop.setdefault(inbox.loop, []).append((request, inbox, events))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the loop is closed, so nobody reads these any more
                for request, _, _ in batch:
                    with contextlib.suppress(GenAIError):
                        self.forget(request)
        return True


def stop_readers() -> None:
    """Stops all threads, for the end of the interpreter: later they could not take the GIL."""
    for reader in list(_running):
        with contextlib.suppress(GenAIError):  # opened before a fork, in another process
            reader.stop()
    for thread in list(_threads):
        thread.join(_JOIN_SECONDS)


def _deliver(batch: Sequence[tuple[int, Inbox, list[_core.Event]]]) -> None:
    for _, inbox, events in batch:
        inbox.put(events)
