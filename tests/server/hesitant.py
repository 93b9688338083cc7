"""A server that says "come again" to the first requests and passes the others on to another."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from onnx_genai.server.errors import ApiError, error_response
from tests.server.running import RunningServer

__all__ = ["Hesitant", "hesitant"]

PASS_SECONDS = 300.0


class Hesitant(ThreadingHTTPServer):
    """Answers POST; ``statuses`` has what it answered, in order."""

    daemon_threads = True

    def __init__(self, target: str, refusals: Sequence[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.refusals = list(refusals)
        self.statuses: list[int] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with self.lock:
            refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            error = ApiError(refusal, "Come again.", code="overloaded", headers={"Retry-After": "1"})
            refused = error_response(error, path)
            return refusal, dict(refused.headers), bytes(refused.body)
        answer = httpx.post(
            self.target + path, content=body, headers={"content-type": "application/json"}, timeout=PASS_SECONDS
        )
        return answer.status_code, {"content-type": answer.headers["content-type"]}, answer.content


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hesitant

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status, headers, content = self.server.answer(self.path, body)
        self.server.statuses.append(status)
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing, on no terminal."""


@contextmanager
def hesitant(server: RunningServer, *refusals: int) -> Iterator[Hesitant]:
    """A way to the server on which the first POSTs get these statuses."""
    with Hesitant(server.url, refusals) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
