"""Errors on the wire: one shape for all of them, and the status that belongs to each."""

from __future__ import annotations

import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from onnx_genai import errors

__all__ = [
    "ApiError",
    "ClientGone",
    "anthropic_body",
    "api_error",
    "error_body",
    "error_response",
    "http_exception",
    "is_anthropic",
    "late",
]

_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.ContextOverflowError, 400, "context_length_exceeded"),
    (errors.InvalidArgumentError, 400, "invalid_value"),
    (errors.UnsupportedError, 400, "unsupported"),
    (errors.NotFoundError, 404, "not_found"),
    (errors.DeadlineError, 504, "timeout"),
    (errors.AbortedError, 503, "aborted"),
    (errors.QueueFullError, 429, "overloaded"),
    (errors.ResourceExhaustedError, 503, "overloaded"),
)
_PARAM = re.compile(r"^([a-z_][a-z0-9_]*(?:\[\d+\]|\.[a-z_][a-z0-9_]*)*) (?:is|has|names)\b")
_PLACE = re.compile(r"(?<![\w/:.])(?:[A-Za-z]:\\[^\s'\",;]+|/(?:[^\s/'\",;:]+/)+[^\s/'\",;:]*)")
"""An absolute path of at least two parts; where files of the server lie is nobody's business."""
_WIRE_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "include_stop": "include_stop_str_in_output",
}


class ApiError(Exception):
    """An answer that says what went wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def type(self) -> str:
        """The ``type`` of OpenAI's error object."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


class ClientGone(Exception):  # noqa: N818  nothing is wrong, there is only nobody to answer
    """The client hung up; nothing is answered."""


def late(seconds: float | None) -> errors.DeadlineError:
    """The error of a request that took longer than ``seconds``."""
    return errors.DeadlineError(
        f"the request did not end within its timeout of {seconds:g} seconds; allow more time, send less at once, or "
        "ask for fewer tokens"
    )


def api_error(error: Exception) -> ApiError:
    """The answer for any exception. What only the operator should know stays out of it."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            text = str(error)
            if code == "context_length_exceeded":
                # Clients look for these words.
                text = f"The maximum context length is exceeded: {text}"
            text = _PLACE.sub("(a file of the server)", _wire_names(text))
            headers = {"Retry-After": "1"} if code == "overloaded" else {}
            return ApiError(status, text, param=_param(text, status), code=code, headers=headers)
    return ApiError(500, "The server failed; its log says more under this request id.", code="internal_error")


def error_body(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object; all four keys are always there."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def is_anthropic(path: str) -> bool:
    """Whether callers of the path expect Anthropic's forms."""
    return path.startswith("/v1/messages")


def error_response(error: ApiError, path: str) -> JSONResponse:
    """The error as a whole response, in the form that callers of the path expect."""
    body = anthropic_body(error) if is_anthropic(path) else error_body(error)
    return JSONResponse(body, error.status, headers=error.headers)


def http_exception(error: HTTPException) -> ApiError:
    """Starlette's own faults: no such route, or not with this method."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(404, "There is no such route; /openapi.json lists them.", code="unknown_url", headers=headers)
    if error.status_code == 405:
        allowed = headers.get("Allow", "another method")
        return ApiError(405, f"This route takes {allowed} only.", code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, error.detail, headers=headers)


def _param(text: str, status: int) -> str | None:
    found = _PARAM.match(text) if status == 400 else None
    return _WIRE_NAMES.get(found.group(1), found.group(1)) if found else None


def _wire_names(text: str) -> str:
    """The text with the names that the client knows."""
    first, _, rest = text.partition(" ")
    return f"{_WIRE_NAMES[first]} {rest}" if first in _WIRE_NAMES else text
