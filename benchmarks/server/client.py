"""Streams read with as little work as possible, so that the client takes no processor time from the server."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Streams", "read_streams"]

_END = b"data: [DONE]"
_TIMEOUT = 600.0


@dataclass
class Streams:
    """What came back; times are seconds from sending the first request."""

    seconds: float = 0.0
    """To the end of the last stream."""
    first: list[float] = field(default_factory=list)
    """To the first event, for each stream."""
    events: int = 0
    bodies: list[bytes] = field(default_factory=list)
    """What each stream said, undecoded."""


def read_streams(port: int, path: str, requests: Sequence[Mapping[str, Any]]) -> Streams:
    """Sends all requests at once to a server on this machine and reads their streams to the end.

    Raises:
        RuntimeError: One was refused, broke, or did not end in ten minutes.
    """
    result = Streams(first=[0.0] * len(requests))
    buffers = [bytearray() for _ in requests]
    sent = [_bytes(path, request) for request in requests]
    with selectors.DefaultSelector() as selector:
        connections = [socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT) for _ in requests]
        start = time.perf_counter()
        for number, (connection, data) in enumerate(zip(connections, sent, strict=True)):
            connection.sendall(data)
            selector.register(connection, selectors.EVENT_READ, number)
        while selector.get_map():
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"{len(selector.get_map())} streams are silent for {_TIMEOUT:g} s")
            for key, _ in ready:
                connection = connections[key.data]
                piece = connection.recv(65536)
                buffer = buffers[key.data]
                buffer += piece
                if not result.first[key.data] and b"data: " in piece:
                    result.first[key.data] = time.perf_counter() - start
                if not piece or _END in buffer[-200:]:
                    selector.unregister(connection)
                    connection.close()
        result.seconds = time.perf_counter() - start
    for buffer in buffers:
        if not buffer.startswith(b"HTTP/1.1 200") or _END not in buffer:
            raise RuntimeError(f"a stream did not end well: {bytes(buffer[:300])!r} ... {bytes(buffer[-300:])!r}")
    result.bodies = [bytes(buffer) for buffer in buffers]
    result.events = sum(body.count(b"data: ") - 1 for body in result.bodies)
    return result


def _bytes(path: str, request: Mapping[str, Any]) -> bytes:
    body = json.dumps(request).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + body
