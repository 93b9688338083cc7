"""A small HTTP/1.1 client for asyncio that hands out a body as it comes: :class:`HttpClient`.

It is this small so that a load costs little processor time beside the server that it measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from onnx_genai.errors import GenAIError, InvalidArgumentError

__all__ = ["HttpClient", "NoAnswerError", "Response"]

_LIMIT = 2**20
_CONNECT_SECONDS = 30.0


class NoAnswerError(GenAIError, ConnectionError):
    """Nobody answers at the address, or not as a server with OpenAI's interface does."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.close()


class _Stale(Exception):  # noqa: N818  never leaves this module
    """A connection that was kept open is closed by now."""


class Response:
    """The head of an answer, and its body piece by piece. Read it once."""

    def __init__(self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        """Names in lower case."""
        self.is_complete = False
        """The body was read to its end, and the connection can be used again."""
        self._reader = reader

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of the body as they come."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                piece = await self._reader.readexactly(size + 2)
                yield piece[:-2]
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "content-length" in self.headers:
            left = int(self.headers["content-length"])
            while left:
                piece = await self._reader.read(min(left, _LIMIT))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece
        else:  # until the connection is closed
            while piece := await self._reader.read(_LIMIT):
                yield piece
            return
        self.is_complete = self.headers.get("connection", "").lower() != "close"

    async def read(self, limit: int = _LIMIT) -> bytes:
        """The body, at most ``limit`` bytes of it."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > limit:
                break
        return bytes(body[:limit])


class HttpClient:
    """Requests to one server; connections are used again.

    Args:
        base_url: ``http://host:port``, ``https://host`` or either with a path; without a path ``/v1`` is meant.
        headers: Sent with every request.

    Raises:
        InvalidArgumentError: The address is none.
    """

    def __init__(self, base_url: str, *, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgumentError(f"base URL is {base_url!r}; write http://HOST:PORT or https://HOST")
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidArgumentError(f"base URL is {base_url!r}: {error}") from error
        self.base_url = base_url
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/") or "/v1"
        for name, value in (headers or {}).items():
            if not f"{name}{value}".isprintable():
                raise InvalidArgumentError(f"header {name!r} has a line break or another character that none may have")
        fixed = {"Host": parts.netloc.rpartition("@")[2], "Accept": "*/*", **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: list[_Connection] = []

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[Response]:
        """Sends a request; inside of the block the answer is read.

        Raises:
            NoAnswerError: No connection.
            OSError, asyncio.IncompleteReadError: The connection broke.
        """
        lines = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}"
        if body is not None:
            lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        sent = lines.encode("latin-1", errors="replace") + b"\r\n" + (body or b"")
        connection, response = await self._exchange(sent)
        try:
            yield response
        finally:
            if response.is_complete:
                self._idle.append(connection)
            else:
                connection.close()

    async def close(self) -> None:
        """Closes all connections."""
        for connection in self._idle:
            connection.close()
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()
        self._idle.clear()

    async def _exchange(self, sent: bytes) -> tuple[_Connection, Response]:
        while self._idle:
            connection = self._idle.pop()
            try:
                return connection, await _send(connection, sent)
            except _Stale:
                continue
        connection = await self._connect()
        try:
            return connection, await _send(connection, sent)
        except _Stale as error:
            raise ConnectionResetError("the server closed the connection without an answer") from error

    async def _connect(self) -> _Connection:
        try:
            opening = asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_LIMIT)
            return _Connection(*await asyncio.wait_for(opening, _CONNECT_SECONDS))
        except asyncio.TimeoutError as error:
            raise NoAnswerError(
                f"{self.base_url} does not answer within {_CONNECT_SECONDS:g} s; check the address, or start the server"
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise NoAnswerError(
                f"cannot connect to {self.base_url} ({reason}); check the address, or start the server"
            ) from error


async def _send(connection: _Connection, sent: bytes) -> Response:
    """Sends and reads the head of the answer; closes the connection if that fails."""
    try:
        connection.writer.write(sent)
        await connection.writer.drain()
        while True:
            status, headers = await _head(connection.reader)
            if status >= 200:
                return Response(status, headers, connection.reader)
    except BaseException:
        connection.close()
        raise


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise _Stale from error
        raise
    except ConnectionError as error:
        raise _Stale from error
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ConnectionError(f"no HTTP server answers there; it says {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers
