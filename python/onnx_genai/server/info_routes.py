"""What a server tells about itself: health, models, metrics, properties, open requests."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onnx_genai.server.errors import ApiError
from onnx_genai.server.registry import ModelEntry, adapter_name
from onnx_genai.server.state import ServerState
from onnx_genai.server.wire import server_version

__all__ = ["InfoRoutes"]


class InfoRoutes:
    """The routes that compute nothing."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model_id:path}", self.model, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/props", self.props, methods=["GET"]),
            Route("/slots", self.slots, methods=["GET"]),
        ]

    async def health(self, request: Request) -> Response:
        """Whether the server can answer."""
        state = self._state
        if state.live.is_draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": "5"})
        if state.models.broken:
            raise ApiError(503, f"The engine has ended: {', '.join(state.models.broken)}.", code="engine_dead")
        if not state.models.is_ready:
            raise ApiError(503, "The server is loading its models.", code="loading", headers={"Retry-After": "1"})
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """All models, loaded or not."""
        data = []
        for entry in self._state.models.entries.values():
            data.append(_model_object(entry))
            data += [_adapter_object(entry, adapter_name(entry.spec, each)) for each in entry.spec.adapters]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """One model, by its name or an alias, perhaps with an adapter."""
        asked = request.path_params["model_id"]
        entry, name = self._state.models.find(asked), self._state.models.served_name(asked)
        return JSONResponse(_model_object(entry) if name == entry.spec.name else _adapter_object(entry, name))

    async def metrics(self, request: Request) -> Response:
        """Numbers for Prometheus."""
        return Response(self._state.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def props(self, request: Request) -> Response:
        """Facts about server and models."""
        state, limits = self._state, self._state.config.limits
        return JSONResponse(
            {
                "version": server_version(),
                "models": [_properties(entry) for entry in state.models.entries.values()],
                "limits": {
                    "max_body_bytes": limits.max_body_bytes,
                    "max_open_requests": limits.max_open_requests,
                    "max_output_tokens": limits.max_output_tokens,
                    "max_sessions": limits.max_sessions,
                    "max_session_bytes": limits.max_session_bytes,
                    "request_timeout": limits.request_timeout,
                },
                "open_requests": len(state.live.open),
                "sessions": len(state.sessions),
            }
        )

    async def slots(self, request: Request) -> Response:
        """The requests that are open now; nothing of what they say."""
        now = time.perf_counter()
        return JSONResponse(
            [
                {
                    "id": live.id,
                    "route": live.route,
                    "model": live.model,
                    "stream": live.is_stream,
                    "state": "decode" if live.first_token is not None else "waiting_or_prefill",
                    "completion_tokens": live.completion_tokens,
                    "seconds": round(now - live.arrived, 3),
                }
                for live in self._state.live.open.values()
            ]
        )


def _model_object(entry: ModelEntry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": entry.spec.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "onnx-genai",
        "kind": entry.kind,
        "state": entry.state,
    }
    if entry.spec.aliases:
        value["aliases"] = list(entry.spec.aliases)
    if entry.model is not None:
        value["max_model_len"] = entry.model.context_limit
    return value


def _adapter_object(entry: ModelEntry, name: str) -> dict[str, Any]:
    """A model with an adapter; ``parent`` is the model."""
    return {**_model_object(entry), "id": name, "parent": entry.spec.name}


def _properties(entry: ModelEntry) -> dict[str, Any]:
    value = _model_object(entry)
    if entry.model is not None:
        value["chat"] = entry.model.has_chat_template
        value["engine"] = entry.model.info()
    return value
