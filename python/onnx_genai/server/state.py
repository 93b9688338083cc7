"""What the routes of one server share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from onnx_genai.server.config import ServerConfig
from onnx_genai.server.errors import ApiError, api_error
from onnx_genai.server.live import LiveRequest, LiveRequests
from onnx_genai.server.metrics import Meter, ServerMetrics
from onnx_genai.server.model import ServedModel
from onnx_genai.server.registry import ModelRegistry
from onnx_genai.server.sessions import SESSION_HEADER, SessionStore
from onnx_genai.server.streaming import EventStream

__all__ = ["Running", "ServerState"]

_WITHOUT_SESSIONS = frozenset({"completions", "messages", "responses"})
_GENERATING = _WITHOUT_SESSIONS | {"chat"}


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
class ServerState:
    """One server."""

    config: ServerConfig
    models: ModelRegistry
    live: LiveRequests
    metrics: ServerMetrics
    sessions: SessionStore

    @asynccontextmanager
    async def running(self, request: Request, route: str, model: str | None) -> AsyncIterator[Running]:
        """Lets a request in and loads its model; the body must have been read.

        Raises:
            ApiError: No such model, the server is full, or a session was named that the route does not know.
        """
        self.models.find(model)
        if route in _WITHOUT_SESSIONS and SESSION_HEADER in request.headers:
            raise ApiError(
                400, "X-Session-Id belongs to /v1/chat/completions.", param=SESSION_HEADER, code="invalid_value"
            )
        with self.live.admit(request, route) as live:
            async with AsyncExitStack() as stack:
                name, served = await live.run(stack.enter_async_context(self.models.use(model)))
                if route in _GENERATING:
                    stack.enter_context(self.metrics.unfinished(live, name))
                yield Running(request=request, live=live, name=name, model=served, meter=self.metrics.meter(live, name))

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
