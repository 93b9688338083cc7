"""The body of a request: read within its bounds, parsed strictly, checked against a schema."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError, ClientGone
from onnx_genai.server.schemas.base import RequestModel

__all__ = ["parse_json", "read_body", "read_request"]

Model = TypeVar("Model", bound=RequestModel)

MAX_DEPTH = 64
_LARGE_BYTES = 256 * 2**10
_DROP_FACTOR = 4
_DROP_SECONDS = 2.0
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_request(request: Request, kind: type[Model], limits: Limits) -> Model:
    """The body as a checked object.

    Raises:
        ApiError: 400 no JSON or a wrong field, 408 too slow, 413 too large, 415 another content type.
        ClientGone: The client hung up before the end.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(
            415, f"The content type is {content_type or 'missing'!r:.80}; send application/json.", code="content_type"
        )
    raw = await read_body(request, limits)
    # Large bodies would hold up every stream while they are parsed.
    parsed = await asyncio.to_thread(parse_json, raw) if len(raw) > _LARGE_BYTES else parse_json(raw)
    if not isinstance(parsed, dict):
        raise ApiError(400, f"The body is a JSON {type(parsed).__name__}; send an object.", code="invalid_json")
    try:
        model = kind.model_validate(parsed)
    except ValidationError as error:
        raise _field_error(error) from error
    model.check_refused()
    return model


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of the body; at most ``limits.max_body_bytes`` are ever held.

    The rest of one that is too large is taken and dropped, within bounds: a connection that is closed with data in it
    is reset, and then many clients never see the answer.
    """
    limit, timeout = limits.max_body_bytes, limits.body_timeout
    declared = request.headers.get("content-length", "")
    is_large = declared.isdecimal() and int(declared[:18]) > limit
    if is_large:
        # Who asks before sending is told at once; so is who would send for long.
        if "expect" in request.headers or int(declared[:18]) > _DROP_FACTOR * limit:
            raise _too_large(limits)
        timeout = min(timeout, _DROP_SECONDS)
    body = _Body(limit)
    try:
        await asyncio.wait_for(body.read(request), timeout)
    except ClientDisconnect as error:
        raise ClientGone from error
    except asyncio.TimeoutError as error:
        if not is_large and body.size <= limit:
            raise ApiError(
                408,
                f"The body did not arrive within {limits.body_timeout:g} seconds.",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from error
    if is_large or body.size > limit:
        raise _too_large(limits)
    return b"".join(body.pieces)


def parse_json(raw: bytes) -> Any:
    """Strict JSON: no NaN, no infinity, no lone surrogate, no deep nesting.

    Raises:
        ApiError: 400; the text says what and where, without the content.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refused_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from error
    except json.JSONDecodeError as error:
        raise ApiError(
            400, f"The body is not JSON: {error.msg} (line {error.lineno} column {error.colno}).", code="invalid_json"
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # a number that Python refuses
        raise ApiError(400, "The body has a number that cannot be represented.", code="invalid_json") from error
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE.search(raw):
        _check_text(value)
    return value


class _Body:
    """What came of a body; nothing once that is above ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0
        self.pieces: list[bytes] = []

    async def read(self, request: Request) -> None:
        async for piece in request.stream():
            self.size += len(piece)
            if self.size > _DROP_FACTOR * self._limit:
                return
            if self.size > self._limit:
                self.pieces.clear()
            else:
                self.pieces.append(piece)


def _field_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    path = re.sub(r"\.(str|int|float|bool|dict\[[^.]*|list\[[^.]*|[a-z]+-\w+)(?=\.|\[|$)", "", path).lstrip(".")
    message = first["msg"].removeprefix("Value error, ")
    name = path[:200] or None
    return ApiError(400, f"{name or 'The body'}: {message}"[:1000], param=name, code=f"invalid_{first['type']}"[:64])


def _refused_constant(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ApiError(
            400,
            "The body has a lone surrogate (\\ud800..\\udfff) in a text; send text that UTF-8 can hold.",
            code="invalid_json",
        ) from error


def _too_large(limits: Limits) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {limits.max_body_bytes} bytes, the limit of this server.",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def _too_deep() -> ApiError:
    return ApiError(400, f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")
