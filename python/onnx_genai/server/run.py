"""Runs a server until it is told to stop: :func:`serve`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, cast

import uvicorn

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.pipelines.background import DaemonThreads
from onnx_genai.server.app import create_app, create_state
from onnx_genai.server.config import ModelSpec, ServerConfig
from onnx_genai.server.connections import ConnectionGuard
from onnx_genai.server.state import ServerState

__all__ = ["Server", "serve", "settle_heap"]

_log = logging.getLogger("onnx_genai.server")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAX_THREADS = 32
_FORCED_SECONDS = 2.0
"""What the end may take once a second signal came."""


class Server(uvicorn.Server):
    """A uvicorn server that lets running requests end when it is told to stop.

    SIGTERM or SIGINT: no new request is taken, and what runs has ``drain_timeout`` seconds. Then it is aborted with an
    error. A second signal aborts at once. Neither waits for threads that still tokenise, compile or load for requests
    that have ended; :func:`onnx_genai.pipelines.background.is_busy` tells whether there are such.
    """

    def __init__(self, models: Sequence[ModelSpec], config: ServerConfig) -> None:
        self.state: ServerState = create_state(models, config)
        self.failure: Exception | None = None
        """Why the server ended by itself."""
        self._loader: asyncio.Task[None] | None = None
        self._guard = ConnectionGuard(
            head_timeout=config.limits.head_timeout, slow_reader_timeout=config.limits.slow_reader_timeout
        )
        self._watch: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                create_app(self.state),
                http=cast("Any", self._guard.protocol),
                host=config.host.strip("[]"),
                port=config.port,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="on",
                ws="none",
                # Above the own limit, which gives each request an error; this one cuts what is left.
                timeout_graceful_shutdown=int(config.drain_timeout) + 5,
            )
        )

    @property
    def port(self) -> int:
        """The port that it listens on, once it has started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, then loads the models."""
        asyncio.get_running_loop().set_default_executor(DaemonThreads(_MAX_THREADS, "onnx-genai-server"))
        await super().startup(sockets)
        if self.started:
            self._watch = asyncio.ensure_future(self._guard.watch())
            _log.info("listening on http://%s:%d", self.config.host, self.port)
            self._loader = asyncio.ensure_future(self._load())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains, then closes."""
        self.begin_drain()
        timer = asyncio.get_running_loop().call_later(self.state.config.drain_timeout, self.state.live.abort_all)
        ending = asyncio.ensure_future(super().shutdown(sockets))
        try:
            while not ending.done() and not self.force_exit:
                await asyncio.wait({ending}, timeout=0.1)
            await asyncio.wait_for(ending, _FORCED_SECONDS if self.force_exit else None)
        except asyncio.TimeoutError:
            _log.warning("ended at the second signal, before all was closed")
        finally:
            timer.cancel()
            tasks = [task for task in (self._loader, self._watch) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def begin_drain(self) -> None:
        """Takes no new requests; may be called from any thread."""
        self.state.live.is_draining = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self.should_exit:
            self.force_exit = True
        else:
            _log.info("ending; open requests have %g seconds", self.state.config.drain_timeout)
        self.begin_drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the base class, but a signal that was obeyed is not raised again: the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    async def _load(self) -> None:
        try:
            await self.state.models.load_eager()
            _log.info("ready")
        except Exception as error:  # noqa: BLE001  raised again by serve()
            self.failure = error
            self.should_exit = True


def serve(models: Sequence[ModelSpec], config: ServerConfig) -> None:
    """Runs a server until SIGTERM or SIGINT, as what this process is for: see :func:`settle_heap`.

    Raises:
        InvalidArgumentError: The address cannot be used.
        GenAIError: A model cannot be loaded.
    """
    addresses = _addresses(config)
    settle_heap()
    server = Server(models, config)
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it cannot listen
        raise _cannot_listen(config, _bind_fault(addresses)) from None
    if server.failure is not None:
        raise server.failure


def settle_heap() -> None:
    """Has the objects that are there by now, mostly imported code, left out of all later searches for garbage.

    Such a search stops all streams, for a time in proportion to the objects that it looks at.
    """
    gc.collect()
    gc.freeze()


def _addresses(config: ServerConfig) -> list[tuple[Any, ...]]:
    """What the host resolves to."""
    host = config.host.strip("[]")
    try:
        return socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = f"{host!r} is no address, and no name that resolves to one ({getattr(error, 'strerror', error)})"
        raise _cannot_listen(config, reason) from None


def _bind_fault(addresses: Sequence[tuple[Any, ...]]) -> str:
    """Why nothing can listen there, as the operating system says it."""
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                if os.name == "posix":
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return "the log above says why"


def _cannot_listen(config: ServerConfig, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot listen on {config.host}:{config.port}: {reason}. Choose another address with --host and --port"
    )
