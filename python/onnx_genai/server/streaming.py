"""Server-sent events: written as they come, with heartbeats, an end when the client leaves, errors in the stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onnx_genai.errors import AbortedError
from onnx_genai.server.errors import ApiError, ClientGone, api_error, error_body, late
from onnx_genai.server.live import LiveRequest, wait_for_hang_up

__all__ = ["ChoiceEvents", "EventStream", "ReleasingEvent", "data_event"]

_END = object()
_HEARTBEAT = b": keep-alive\n\n"
_TURN_SECONDS = 0.002
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
"""Made once, and not for every event."""


def data_event(value: Any, name: str | None = None) -> bytes:
    """One event: ``value`` as JSON on one line."""
    data = _JSON.encode(value)
    head = f"event: {name}\n" if name is not None else ""
    return f"{head}data: {data}\n\n".encode()


class ChoiceEvents:
    """Events that differ in their choice only: what stands around it is written once, and not for every token."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """``before`` and ``after`` are the fields around ``choices``; there is one before it."""
        self._head = f'data: {_JSON.encode(before)[:-1]},"choices":['
        self._tail = f"],{_JSON.encode(after)[1:]}\n\n" if after else "]}\n\n"

    def of(self, choice: Mapping[str, Any]) -> bytes:
        """As ``data_event({**before, "choices": [choice], **after})``."""
        return f"{self._head}{_JSON.encode(choice)}{self._tail}".encode()


def _openai_error(error: ApiError) -> bytes:
    return data_event(error_body(error))


class ReleasingEvent(bytes):
    """An event before which the request gives its place back: who reads it may send the next request at once."""


class _SlowReader(Exception):  # noqa: N818  never raised
    """The reader took nothing for too long; there is no way to tell it."""


class EventStream(Response):
    """A streamed answer. The events come from an async generator of bytes, one whole event each.

    :meth:`begin` must be awaited before it is returned from a route: it waits for the first event, so that a request
    that fails at once is answered with the status of its error.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        request: Request,
        live: LiveRequest,
        resources: AsyncExitStack,
        heartbeat: float,
        slow_reader_timeout: float,
        report: Callable[[Exception], ApiError] = api_error,
        error_event: Callable[[ApiError], bytes] = _openai_error,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background: BackgroundTask | None = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        self._events = events
        self._live = live
        self._resources = resources
        self._heartbeat = heartbeat or None
        self._slow_reader_timeout = slow_reader_timeout
        self._report = report
        self._error_event = error_event
        self._gone = asyncio.ensure_future(wait_for_hang_up(request))
        self._first: asyncio.Task[object] = asyncio.ensure_future(_next(events))
        self._send_began: float | None = None
        self._last_send = 0.0

    def init_headers(self, headers: Any = None) -> None:
        """As the base class, without a content length."""
        self.body = b""
        super().init_headers(headers)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def begin(self) -> EventStream:
        """Waits for the first event, but no longer than for one heartbeat, or than the request may take.

        Raises:
            Exception: The request failed before anything was sent.
            ClientGone: The client hung up.
            DeadlineError: The time of the request is over.
        """
        waits = [each for each in (self._heartbeat, self._live.time_left) if each is not None]
        try:
            await asyncio.wait(
                {self._first, self._gone}, timeout=min(waits, default=None), return_when=asyncio.FIRST_COMPLETED
            )
            if self._first.done():
                self._first.result()
            elif self._gone.done():
                raise ClientGone
            elif self._is_late():
                raise late(self._live.time_limit)
        except BaseException as error:
            if isinstance(error, Exception):
                self._live.note_failure(error)
            await self._close()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump: asyncio.Task[None] | None = None
        aborted = asyncio.ensure_future(self._live.aborted.wait())
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._last_send = time.perf_counter()
            pump = asyncio.ensure_future(self._pump(send))
            failure = await self._watch(pump, aborted, send)
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            facts = scope.setdefault("state", {}).setdefault("log", {})
            if isinstance(failure, (ClientGone, _SlowReader)):
                facts["error"] = "client_gone" if isinstance(failure, ClientGone) else "slow_reader"
                return
            last = b""
            if failure is not None:
                error = self._report(failure)
                facts["error"] = error.code
                self._live.note_failure(failure)
                await self._events.aclose()
                await self._resources.aclose()
                last = self._error_event(error)
            await asyncio.wait_for(
                send({"type": "http.response.body", "body": last, "more_body": False}), self._slow_reader_timeout
            )
        except (OSError, asyncio.TimeoutError):
            return  # the connection broke, or its reader is stuck
        finally:
            aborted.cancel()
            if pump is not None:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
            facts = scope.setdefault("state", {}).setdefault("log", {})
            facts.setdefault("completion_tokens", self._live.completion_tokens)
            await self._close()

    async def _pump(self, send: Send) -> None:
        """Writes the events; waits for the reader in between."""
        event = await self._first
        turn_began = time.perf_counter()
        while isinstance(event, bytes):
            if isinstance(event, ReleasingEvent):
                await self._resources.aclose()
            await self._write(send, event)
            if self._last_send - turn_began > _TURN_SECONDS:
                # Neither call has to wait when events and room are there; others must have their turn nevertheless.
                await asyncio.sleep(0)
                turn_began = time.perf_counter()
            event = await _next(self._events)

    async def _watch(self, pump: asyncio.Task[None], aborted: asyncio.Future[Any], send: Send) -> Exception | None:
        """Waits for the end of the stream; returns what went wrong."""
        while True:
            await asyncio.wait(
                {pump, self._gone, aborted}, timeout=self._next_look(), return_when=asyncio.FIRST_COMPLETED
            )
            if pump.done():
                error = pump.exception()
                return error if isinstance(error, Exception) else None
            if self._gone.done():
                return ClientGone()
            if aborted.done():
                return AbortedError("the server is shutting down; send the request to another one, or later")
            if self._is_late():
                return late(self._live.time_limit)
            now = time.perf_counter()
            if self._send_began is not None:
                if now - self._send_began >= self._slow_reader_timeout:
                    return _SlowReader()
            elif self._heartbeat is not None and now - self._last_send >= self._heartbeat:
                await self._write(send, _HEARTBEAT)

    def _next_look(self) -> float:
        waits = [self._slow_reader_timeout / 2]
        if self._heartbeat is not None:
            waits.append(max(self._last_send + self._heartbeat - time.perf_counter(), 0.001))
        if not self._first.done() and self._live.time_left is not None:
            waits.append(self._live.time_left)
        return min(waits) if self._send_began is None else min(self._slow_reader_timeout / 4, 1.0)

    def _is_late(self) -> bool:
        """The time is over before anything came; of what has begun the engine keeps the time."""
        return not self._first.done() and self._live.time_left == 0.0

    async def _write(self, send: Send, data: bytes) -> None:
        self._send_began = time.perf_counter()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._send_began = None
        self._last_send = time.perf_counter()

    async def _close(self) -> None:
        self._gone.cancel()
        self._first.cancel()
        await asyncio.gather(self._first, self._gone, return_exceptions=True)
        await self._events.aclose()
        await self._resources.aclose()


async def _next(events: AsyncGenerator[bytes, None]) -> object:
    return await anext(events, _END)
