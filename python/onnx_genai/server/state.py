"""What the routes of one server share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from onnx_genai.pipelines import ModelKind
from onnx_genai.server.body import read_request
from onnx_genai.server.config import ServerConfig
from onnx_genai.server.encoder import ServedEncoder
from onnx_genai.server.errors import ApiError, api_error
from onnx_genai.server.live import LiveRequest, LiveRequests
from onnx_genai.server.metrics import Meter, ServerMetrics
from onnx_genai.server.model import ServedModel
from onnx_genai.server.registry import ModelEntry, ModelRegistry
from onnx_genai.server.schemas.base import RequestModel
from onnx_genai.server.sessions import SESSION_HEADER, SessionStore
from onnx_genai.server.streaming import EventStream

__all__ = ["Running", "RunningEncoder", "ServerState"]

Model = TypeVar("Model", bound=RequestModel)

_WITHOUT_SESSIONS = frozenset({"completions", "messages", "responses"})
_GENERATING = _WITHOUT_SESSIONS | {"chat"}
_TEXT: tuple[ModelKind, ...] = ("text",)
_ENCODERS: dict[str, tuple[ModelKind, ...]] = {
    "embeddings": ("embedding",),
    "rerank": ("reranker", "embedding"),
}
"""Kinds of models that answer a route, the best one first."""
_KIND_TEXTS: dict[ModelKind, str] = {
    "text": "a language model, which answers /v1/chat/completions and the other routes that make text",
    "embedding": "an embedding model, which answers /v1/embeddings and /v1/rerank",
    "reranker": "a reranker, which answers /v1/rerank",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A request that was let in, with the model that answers it."""

    request: Request
    live: LiveRequest
    name: str
    """The served name of the model."""
    model: ServedModel
    meter: Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEncoder:
    """A request for vectors or scores that was let in, with the encoder that answers it."""

    live: LiveRequest
    name: str
    """The served name of the model."""
    model: ServedEncoder
    meter: Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server."""

    config: ServerConfig
    models: ModelRegistry
    live: LiveRequests
    metrics: ServerMetrics
    sessions: SessionStore

    async def read(self, request: Request, kind: type[Model]) -> Model:
        """The body of a request, as :func:`~onnx_genai.server.body.read_request` gives it."""
        return await read_request(request, kind, self.config.limits, self.live)

    @asynccontextmanager
    async def running(
        self, request: Request, route: str, model: str | None, *, time_limit: float | None = None
    ) -> AsyncIterator[Running]:
        """Lets a request in and loads its model; the body must have been read.

        ``time_limit`` is the request's own; without one that of the server holds.

        Raises:
            ApiError: No such model, the server is full, or a session was named that the route does not know.
        """
        entry = self.text_entry(model)
        if route in _WITHOUT_SESSIONS and SESSION_HEADER in request.headers:
            raise ApiError(
                400, "X-Session-Id belongs to /v1/chat/completions.", param=SESSION_HEADER, code="invalid_value"
            )
        with self.live.admit(request, route, time_limit or self.config.limits.request_timeout) as live:
            async with AsyncExitStack() as stack:
                name, served = await live.run(stack.enter_async_context(self.models.use(model or entry.spec.name)))
                if not isinstance(served, ServedModel):
                    raise _wrong_kind(name, served.kind)
                if route in _GENERATING:
                    self._trace(stack, request, live, name)
                    stack.enter_context(self.metrics.unfinished(live, name))
                yield Running(request=request, live=live, name=name, model=served, meter=self.metrics.meter(live, name))

    @asynccontextmanager
    async def encoding(self, request: Request, route: str, model: str | None) -> AsyncIterator[RunningEncoder]:
        """Lets a request for ``embeddings`` or ``rerank`` in and loads its model; the body must have been read.

        Raises:
            ApiError: No such model, one of another kind, or the server is full.
        """
        entry = self._entry(model, _ENCODERS[route])
        with self.live.admit(request, route, self.config.limits.request_timeout) as live:
            async with AsyncExitStack() as stack:
                name, served = await live.run(stack.enter_async_context(self.models.use(entry.spec.name)))
                if not isinstance(served, ServedEncoder) or served.kind not in _ENCODERS[route]:
                    raise _wrong_kind(name, served.kind)
                self._trace(stack, request, live, name)
                stack.enter_context(self.metrics.unfinished(live, name))
                yield RunningEncoder(live=live, name=name, model=served, meter=self.metrics.meter(live, name))

    def _trace(self, stack: AsyncExitStack, request: Request, live: LiveRequest, model: str) -> None:
        if self.config.tracing is not None:
            stack.enter_context(self.config.tracing.span(request, live, model))

    def text_entry(self, model: str | None) -> ModelEntry:
        """The entry of a language model; the first one if ``model`` names none.

        Raises:
            ApiError: There is none of that name, or it is known to be of another kind.
        """
        return self._entry(model, _TEXT)

    def _entry(self, model: str | None, kinds: tuple[ModelKind, ...]) -> ModelEntry:
        """The entry of a model that is of one of these kinds, as far as that is known before it is loaded."""
        entry = self.models.find(model, kinds)
        if entry.kind is not None and entry.kind not in kinds:
            raise _wrong_kind(entry.spec.name, entry.kind)
        return entry

    async def stream(
        self,
        running: Running,
        events: AsyncGenerator[bytes, None],
        resources: AsyncExitStack,
        *,
        error_event: Callable[[ApiError], bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> EventStream:
        """A stream that has begun; it owns ``resources`` from here on."""
        running.live.is_stream = True
        more = {} if error_event is None else {"error_event": error_event}
        response = EventStream(
            events,
            request=running.request,
            live=running.live,
            resources=resources,
            heartbeat=self.config.heartbeat,
            slow_reader_timeout=self.config.limits.slow_reader_timeout,
            report=api_error,
            headers=headers,
            **more,
        )
        return await response.begin()


def _wrong_kind(name: str, kind: ModelKind) -> ApiError:
    return ApiError(400, f"The model {name!r} is {_KIND_TEXTS[kind]}.", param="model", code="unsupported_model")
