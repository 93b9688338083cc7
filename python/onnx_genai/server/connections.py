"""Connections whose other end does nothing: :class:`ConnectionGuard` closes them. One event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["ConnectionGuard"]

_MAX_HEAD_BYTES = 256 << 10
"""Of a request line and its headers. The parser in C takes any number of them."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ConnectionGuard:
    """Looks at all connections of a server now and then.

    Times are counted in looks, so that a connection loses nothing while the event loop itself gets no time.
    Closed are connections on which no whole head of a request has come for ``head_timeout`` seconds since they were
    opened or the head began, or one that is too large. Reset are those whose reader has taken nothing of what lies
    ready for ``slow_reader_timeout`` seconds: a plain close would wait for that reader and keep the descriptor.
    """

    def __init__(self, *, head_timeout: float, slow_reader_timeout: float) -> None:
        self._pause = min(head_timeout / 4, slow_reader_timeout / 4, 5.0)
        self._head_looks = math.ceil(head_timeout / self._pause)
        self._reader_looks = math.ceil(slow_reader_timeout / self._pause)
        self._open: set[_Guarded] = set()

    def protocol(self, **arguments: Any) -> asyncio.Protocol:
        """Makes the protocol of one connection; takes and passes on what uvicorn gives."""
        return _Guarded(cast("Callable[..., Any]", AutoHTTPProtocol)(**arguments), self._open)

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            for connection in list(self._open):
                connection.look(self._head_looks, self._reader_looks)


class _Guarded(asyncio.Protocol):
    """Hands everything on to the HTTP protocol and notes what the guard has to know."""

    def __init__(self, inner: Any, opened: set[_Guarded]) -> None:
        self._inner = inner
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._head_looks: int | None = None
        """Looks that saw it wait for the head of a request; None: no head has begun."""
        self._head_bytes = 0
        """Bytes of the head that has begun, and what came with its start."""
        self._left = 0
        """Bytes that the reader had not taken at the last look."""
        self._left_looks = 0
        """Looks that saw as many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._head_looks = 0
        self._opened.add(self)
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._opened.discard(self)
        self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes > _MAX_HEAD_BYTES:
            return
        self._inner.data_received(data)
        if self._is_serving:
            self._head_looks = None
            self._head_bytes = 0
            return
        self._head_looks = self._head_looks or 0
        if getattr(self._cycle, "more_body", False):
            return  # the rest of a body that was answered early
        self._head_bytes += len(data)
        transport = self._transport
        if self._head_bytes > _MAX_HEAD_BYTES and transport is not None and not transport.is_closing():
            transport.write(_TOO_LARGE)
            transport.close()

    def eof_received(self) -> bool | None:
        ends: bool | None = self._inner.eof_received()
        return ends

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def look(self, head_looks: int, reader_looks: int) -> None:
        """Ends the connection if its other end was idle at more looks than these."""
        transport = self._transport
        if transport is None:
            return
        left = transport.get_write_buffer_size()
        self._left_looks = self._left_looks + 1 if left and left == self._left else 0
        self._left = left
        if self._left_looks > reader_looks:
            transport.abort()
            return
        if self._is_serving:  # perhaps a pipelined request, whose turn came without new data
            self._head_looks = None
        if self._head_looks is None:
            return
        self._head_looks += 1
        if self._head_looks <= head_looks or transport.is_closing():
            return
        if self._head_bytes:
            transport.write(_LATE)
        transport.close()

    @property
    def _cycle(self) -> Any:
        """State of the last request that uvicorn has, or None."""
        return getattr(self._inner, "cycle", None)

    @property
    def _is_serving(self) -> bool:
        cycle = self._cycle
        return cycle is not None and not cycle.response_complete
