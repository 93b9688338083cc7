"""A server in a thread of the test's process, and ways to talk to it byte by byte."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from onnx_genai import AsyncLLM, SamplingParams
from onnx_genai.pipelines import Prompt
from onnx_genai.server import ModelSpec, Server, ServerConfig

__all__ = ["RunningServer", "SlowLLM", "answers_meanwhile", "chunks_of", "raw_request", "wait_until"]

WAIT_SECONDS = 20.0

# Many threads share a client. A pool with limits may close an idle connection that another thread has just taken
# (httpcore 1.0.9: chosen under the lock, closed after it), which then fails with EBADF.
_NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)


def wait_until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Returns when the condition holds; fails the test when it never does."""
    end = time.perf_counter() + WAIT_SECONDS
    while not condition():
        assert time.perf_counter() < end, f"waited in vain for {what}"
        time.sleep(0.005)


class RunningServer:
    """A server on a free port; use it as a context manager."""

    def __init__(self, models: Sequence[ModelSpec], **config: Any) -> None:
        self.server = Server(models, ServerConfig(**{"port": 0, "drain_timeout": 1.0, **config}))
        self._thread = threading.Thread(target=self.server.run, name="server")

    def __enter__(self) -> RunningServer:
        self._thread.start()
        wait_until(lambda: self.server.started or not self._thread.is_alive(), "the server's start")
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.http = httpx.Client(base_url=self.url, timeout=WAIT_SECONDS, limits=_NO_LIMITS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.http.close()
        self.server.begin_drain()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the server did not end"

    def wait_ready(self) -> RunningServer:
        wait_until(lambda: self.server.state.models.is_ready, "the models")
        return self

    def metric(self, name: str) -> float:
        """A number of the first loaded model's engine."""
        model = next(entry.model for entry in self.server.state.models.entries.values() if entry.model is not None)
        return model.metrics()[name]

    def wait_idle(self) -> None:
        """No open request, and no sequence in any engine."""
        wait_until(lambda: not self.server.state.live.open, "the end of open requests")
        wait_until(lambda: self.metric("num_running") + self.metric("num_waiting") == 0, "the end of sequences")

    def chat(self, text: str = "Hi", **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=chat_body(text, **fields))

    def chat_chunks(self, text: str = "Hi", **fields: Any) -> list[dict[str, Any]]:
        response = self.chat(text, stream=True, **fields)
        assert response.status_code == 200, response.text
        return chunks_of(response.text)


def answers_meanwhile(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    """The answer to a long request; fails the test if ``/health`` ever takes half of the time that it takes.

    A busy machine may stop everything for a while, so one good try of several is enough.
    """
    for _ in range(5):
        longest = 0.0
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(server.http.post, path, json=body, timeout=120)
            while not work.done():
                asked = time.perf_counter()
                assert server.http.get("/health", timeout=120).status_code == 200
                longest = max(longest, time.perf_counter() - asked)
                time.sleep(0.001)
        seconds = time.perf_counter() - start
        if longest < seconds / 2:
            return work.result()
    raise AssertionError(f"/health took {longest:.3f} of {seconds:.3f} seconds")


def chat_body(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The JSON of each event; the end mark must be there, once, at the end."""
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


@contextmanager
def raw_request(
    server: RunningServer, path: str, body: bytes, headers: dict[str, str] | None = None, *, receive_buffer: int = 0
) -> Iterator[socket.socket]:
    """A connection on which a POST was sent; closed at the end."""
    head = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items() if value)
    with socket.socket() as connection:
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(WAIT_SECONDS)
        connection.connect(("127.0.0.1", server.server.port))
        connection.sendall(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    whole = b""
    while piece := connection.recv(65536):
        whole += piece
    return whole


class _Sleep:
    """A logits processor that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def process(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> None:
        time.sleep(self._seconds)


class SlowLLM(AsyncLLM):
    """A model whose every step takes at least ``step_seconds``."""

    step_seconds = 0.02

    def prepared(self, prompt: Prompt, params: SamplingParams | None) -> tuple[Any, SamplingParams]:
        import dataclasses

        ids, own = super().prepared(prompt, params)
        return ids, dataclasses.replace(own, logits_processors=(_Sleep(self.step_seconds),))
