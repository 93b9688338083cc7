"""HTTP by h11, and :class:`ConnectionGuard`, which closes connections whose other end does nothing. One event loop.

h11 always, also where uvicorn would find the faster httptools: with that parser uvicorn does not notice that a client
has hung up behind a pipelined request, takes heads and trailers without bound, trailers for headers, and the body of a
request that would like to upgrade for the next request.
"""

from __future__ import annotations

import asyncio
import json
import math
import select
import sys
from http import HTTPStatus
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from onnx_genai.server.errors import ApiError, error_body

__all__ = ["ConnectionGuard"]

_MAX_HEAD_BYTES = 256 << 10
"""Of a request line and its headers."""
_MAX_EVENT_BYTES = 2 * _MAX_HEAD_BYTES
"""What h11 holds of a head that is not whole: more, so that the bound above is the one that counts."""


def _refusal(status: int, code: str, message: str) -> bytes:
    """A whole answer to what is no request, after which the connection is closed."""
    body = json.dumps(error_body(ApiError(status, message, code=code))).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


_TOO_LARGE = _refusal(
    431,
    "head_too_large",
    f"The head of the request is larger than {_MAX_HEAD_BYTES >> 10} KiB; send fewer or shorter headers.",
)
_LATE = _refusal(408, "head_timeout", "The head of the request did not arrive in time; send it at once.")


class ConnectionGuard:
    """Looks at all connections of a server now and then.

    Times are counted in looks, so that a connection loses nothing while the event loop itself gets no time.
    Closed are connections on which no whole head of a request has come for ``head_timeout`` seconds since they were
    opened or the head began, or one that is too large. Reset are those whose reader has taken nothing of what lies
    ready for ``slow_reader_timeout`` seconds: a plain close would wait for that reader and keep the descriptor. So are
    those whose client has hung up while its request is served.
    """

    def __init__(self, *, head_timeout: float, slow_reader_timeout: float) -> None:
        self._pause = min(head_timeout / 4, slow_reader_timeout / 4, 5.0)
        self._head_looks = math.ceil(head_timeout / self._pause)
        self._reader_looks = math.ceil(slow_reader_timeout / self._pause)
        self._open: set[_Guarded] = set()

    def protocol(self, **arguments: Any) -> asyncio.Protocol:
        """Makes the protocol of one connection; takes and passes on what uvicorn gives."""
        return _Guarded(_Http(**arguments), self._open)

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            for connection in list(self._open):
                connection.look(self._head_looks, self._reader_looks)


class _Connection(h11.Connection):
    """As its base; pieces of a chunked body, which change nothing of its state, are framed without it.

    A streamed token takes a quarter less of the server's time.
    """

    _is_chunked = False

    def send(self, event: Any) -> Any:
        if type(event) is h11.Data and self._is_chunked and self.our_state is h11.SEND_BODY:
            data = event.data
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        written = super().send(event)
        if type(event) is h11.Response:
            self._is_chunked = b"\r\ntransfer-encoding: chunked\r\n" in bytes(written).lower()
        return written


def _has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the other end sends no more. Nobody reads behind a request that was pipelined, so nobody would notice."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0 or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class _Http(H11Protocol):
    """Tells what is wrong with what is no HTTP, in the form of all errors."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.conn = _Connection(h11.SERVER, _MAX_EVENT_BYTES)

    def send_400_response(self, msg: str) -> None:
        """Called where h11 has refused what came."""
        error = sys.exc_info()[1]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # nothing is being answered
            status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            text = f"The request is not valid HTTP/1.1: {error or msg}; the connection is closed."
            self.transport.write(_refusal(status, "invalid_http", text))
        self.transport.close()


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
        if self._left_looks > reader_looks or (self._is_serving and _has_hung_up(transport)):
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
