"""The ASGI application: routes, middleware, life of the models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onnx_genai.server.access import AccessLog, ErrorBoundary
from onnx_genai.server.chat import ChatRoutes
from onnx_genai.server.completions import CompletionRoutes
from onnx_genai.server.config import ModelSpec, ServerConfig
from onnx_genai.server.embedding_routes import EmbeddingRoutes
from onnx_genai.server.errors import error_response, http_exception
from onnx_genai.server.info_routes import InfoRoutes
from onnx_genai.server.live import LiveRequests
from onnx_genai.server.messages import MessageRoutes
from onnx_genai.server.metrics import ServerMetrics
from onnx_genai.server.openapi import DocumentRoutes
from onnx_genai.server.page_routes import PageRoutes
from onnx_genai.server.registry import ModelRegistry
from onnx_genai.server.responses import ResponseRoutes
from onnx_genai.server.security import HostCheck, KeyCheck, KeyRing
from onnx_genai.server.session_routes import SessionRoutes
from onnx_genai.server.sessions import SESSION_HEADER, SessionStore
from onnx_genai.server.state import ServerState
from onnx_genai.server.text_routes import TextRoutes
from onnx_genai.server.unavailable import unavailable_routes

__all__ = ["create_app", "create_state"]

_log = logging.getLogger("onnx_genai.server")


def create_state(models: Sequence[ModelSpec], config: ServerConfig) -> ServerState:
    """What the routes of a new server share; loads nothing yet.

    Raises:
        InvalidArgumentError: No model, or two with one name.
    """
    registry = ModelRegistry(
        models, ttl=config.model_ttl, max_loaded=config.max_loaded_models, max_bytes=config.max_model_bytes
    )
    live = LiveRequests(config.limits.max_open_requests)
    return ServerState(
        config=config,
        models=registry,
        live=live,
        metrics=ServerMetrics(registry, live),
        sessions=SessionStore(
            limit=config.limits.max_sessions,
            max_bytes=config.limits.max_session_bytes,
            ttl=config.limits.session_ttl,
        ),
    )


def create_app(state: ServerState) -> Starlette:
    """The application of a server; its models load when it starts, and it answers meanwhile."""
    routes: list[Route] = [
        *ChatRoutes(state).routes(),
        *CompletionRoutes(state).routes(),
        *MessageRoutes(state).routes(),
        *ResponseRoutes(state).routes(),
        *EmbeddingRoutes(state).routes(),
        *SessionRoutes(state).routes(),
        *TextRoutes(state).routes(),
        *InfoRoutes(state).routes(),
        *unavailable_routes(),
        *DocumentRoutes().routes(),
        *(PageRoutes().routes() if state.config.page else []),
    ]
    app = Starlette(
        routes=routes,
        middleware=_middleware(state),
        exception_handlers={HTTPException: _answer_http_exception},
        lifespan=lambda _: _life(state),
    )
    app.router.redirect_slashes = False
    return app


def _middleware(state: ServerState) -> list[Middleware]:
    """Outermost first. CORS lies outside of what refuses, so that a browser may read refusals."""
    config = state.config
    middleware = [Middleware(AccessLog, metrics=state.metrics)]
    if config.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(config.cors_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", SESSION_HEADER, "retry-after"],
            )
        )
    middleware.append(Middleware(HostCheck, config=config))
    middleware.append(Middleware(KeyCheck, keys=KeyRing(config.api_keys)))
    middleware.append(Middleware(ErrorBoundary))
    return middleware


@contextlib.asynccontextmanager
async def _life(state: ServerState) -> AsyncIterator[None]:
    sweeper = asyncio.ensure_future(_sweep(state))
    try:
        yield
    finally:
        sweeper.cancel()
        await asyncio.gather(sweeper, return_exceptions=True)
        await state.models.close()
        if state.config.tracing is not None:
            await asyncio.to_thread(state.config.tracing.close)


async def _sweep(state: ServerState) -> None:
    """Forgets what nobody uses any more."""
    waits = [state.config.limits.session_ttl, *([state.config.model_ttl] if state.config.model_ttl else [])]
    while True:
        await asyncio.sleep(min(max(min(waits) / 4, 0.05), 30.0))
        try:
            state.sessions.sweep()
            await state.models.unload_unused()
        except Exception:  # noqa: BLE001  the next time may be better
            _log.exception("what nobody uses could not be looked through; this is tried again")


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    answer = http_exception(error)
    request.scope["state"]["log"]["error"] = answer.code
    return error_response(answer, request.scope["path"])
