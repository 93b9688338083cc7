"""Around every request: its id, its line in the log, and an answer to whatever went wrong. ASGI middleware."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onnx_genai.server.errors import ClientGone, api_error, error_response
from onnx_genai.server.metrics import ServerMetrics

__all__ = ["AccessLog", "ErrorBoundary"]

_log = logging.getLogger("onnx_genai.server")
_access = logging.getLogger("onnx_genai.server.access")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLIENT_GONE = 499


class AccessLog:
    """Gives each request an id (the caller's, if it sent ``x-request-id``) and writes one JSON line when it ends.

    The line has no prompt, answer, query or key.
    """

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        facts: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, log=facts, owner="anyone")
        status = _CLIENT_GONE
        began = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            route = getattr(scope.get("route"), "path", "(none)")
            self._metrics.http.labels(route, str(status)).inc()
            client = scope.get("client")
            line = {
                "request_id": request_id,
                "client": client[0] if client else None,
                "method": scope["method"][:16],
                "path": scope["path"][:256],
                "status": status,
                "seconds": round(time.perf_counter() - began, 6),
                **facts,
            }
            # JSON escapes control characters, so that no client writes lines or terminal codes of its own.
            _access.info("%s", json.dumps(line))


class ErrorBoundary:
    """Answers exceptions in the one shape of errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientGone:
            return
        except Exception as error:
            if scope["type"] != "http" or started:
                raise
            answer = api_error(error)
            if answer.status == 504 and scope["state"].get("asked_timeout"):
                # Nothing failed, and the client would ask again by itself.
                answer.status = 408
                answer.headers["x-should-retry"] = "false"
            facts = scope["state"]["log"]
            facts["error"] = answer.code
            if answer.status >= 500 and answer.code == "internal_error":
                _log.error("request %s failed", scope["state"]["request_id"], exc_info=error)
            await error_response(answer, scope["path"])(scope, receive, watched_send)
