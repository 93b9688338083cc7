"""The body of a request: read within its bounds, parsed strictly, checked against a schema."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError, ClientGone
from onnx_genai.server.live import LiveRequests
from onnx_genai.server.schemas.base import RequestModel
from onnx_genai.server.strict_json import LARGE_BYTES, parse_json

__all__ = ["read_body", "read_request"]

Model = TypeVar("Model", bound=RequestModel)

_TOKEN_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_SMALL_BYTES = 64 * 2**10
"""Bodies up to this size are read before it is known whether there is a place for the request."""
_DROP_FACTOR = 4
_DROP_SECONDS = 2.0
_WANTED = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be a list",
    "string_type": "Input should be a text",
}
_JSON_NAMES = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
_ALTERNATIVE = re.compile(r"str|int|float|bool|(dict|list)\[.*|[a-z]+-\w*(\[.*)?")
"""How pydantic names one of several types that a field may have."""


async def read_request(request: Request, kind: type[Model], limits: Limits, live: LiveRequests) -> Model:
    """The body as a checked object.

    Raises:
        ApiError: 400 no JSON or a wrong field, 408 too slow, 413 too large, 415 another content type; for large bodies
            what ``live.admit`` raises as well.
        ClientGone: The client hung up before the end.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(
            415, f"The content type is {content_type or 'missing'!r:.80}; send application/json.", code="content_type"
        )
    size = request.headers.get("content-length", "")
    if size.isdecimal() and int(size[:18]) <= _SMALL_BYTES:
        raw = await read_body(request, limits)
    else:
        with live.reading() as refusal:
            raw = await read_body(request, limits, refusal)
    # Large bodies would hold up every stream while they are parsed.
    parsed = await asyncio.to_thread(parse_json, raw) if len(raw) > LARGE_BYTES else parse_json(raw)
    if not isinstance(parsed, dict):
        raise ApiError(400, f"The body is a JSON {type(parsed).__name__}; send an object.", code="invalid_json")
    try:
        model = kind.model_validate(parsed)
    except ValidationError as error:
        raise _field_error(error) from error
    model.check_refused()
    asked = (getattr(model, name, None) for name in _TOKEN_FIELDS)
    request.scope["state"]["max_tokens"] = next((value for value in asked if value is not None), None)
    own, most = getattr(model, "timeout", None), limits.request_timeout
    request.scope["state"]["asked_timeout"] = own is not None and (most is None or own < most)
    return model


async def read_body(request: Request, limits: Limits, refusal: ApiError | None = None) -> bytes:
    """The bytes of the body; at most ``limits.max_body_bytes`` are ever held.

    The rest of one that is too large, or all of one that is refused, is taken and dropped, within bounds: a connection
    that is closed with data in it is reset, and then many clients never see the answer.
    """
    limit, timeout = limits.max_body_bytes, limits.body_timeout
    declared = request.headers.get("content-length", "")
    is_large = declared.isdecimal() and int(declared[:18]) > limit
    if is_large:
        refusal = _too_large(limits)
    if refusal is not None:
        # Who asks before sending is told at once; so is who would send for long.
        if "expect" in request.headers or (is_large and int(declared[:18]) > _DROP_FACTOR * limit):
            raise refusal
        timeout = min(timeout, _DROP_SECONDS)
    body = _Body(limit if refusal is None else 0, _DROP_FACTOR * limit)
    try:
        await asyncio.wait_for(body.read(request), timeout)
    except ClientDisconnect as error:
        raise ClientGone from error
    except asyncio.TimeoutError as error:
        if refusal is None and body.size <= limit:
            raise ApiError(
                408,
                f"The body did not arrive within {limits.body_timeout:g} seconds.",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from error
    if refusal is not None:
        raise refusal
    if body.size > limit:
        raise _too_large(limits)
    return b"".join(body.pieces)


class _Body:
    """What came of a body; nothing once that is above ``limit``. Nobody reads further than ``most``."""

    def __init__(self, limit: int, most: int) -> None:
        self._limit = limit
        self._most = most
        self.size = 0
        self.pieces: list[bytes] = []

    async def read(self, request: Request) -> None:
        async for piece in request.stream():
            self.size += len(piece)
            if self.size > self._most:
                return
            if self.size > self._limit:
                self.pieces.clear()
            else:
                self.pieces.append(piece)


def _field_error(error: ValidationError) -> ApiError:
    """What is wrong with the first wrong field; where it may have several forms, all of them are named."""
    places = [(_place(each), each) for each in error.errors(include_url=False, include_context=False)]
    # Where a list or object has a wrong entry, only the entry is wrong, and not that it is no text.
    outer = {place[:size] for place, _ in places for size in range(len(place))}
    inner = [each for each in places if each[0] not in outer]
    first = inner[0][0]
    own = [each for place, each in inner if place == first]
    own = [each for each in own if each["type"] == "too_long"] or own
    wanted = list(dict.fromkeys(_WANTED.get(each["type"], each["msg"]).removeprefix("Value error, ") for each in own))
    if len(wanted) > 1:
        wanted = [wanted[0], *(each.removeprefix("Input should be ") for each in wanted[1:])]
    text = " or ".join(wanted)
    given = _JSON_NAMES.get(type(own[0]["input"]))
    if text.startswith("Input should be ") and given is not None and own[0]["type"].endswith("_type"):
        text += f", and not {given}"
    name = "".join(first).lstrip(".")[:200] or None
    code = f"invalid_{own[0]['type']}"[:64]
    return ApiError(400, f"{name or 'The body'}: {text}"[:1000], param=name, code=code)


def _place(detail: ErrorDetails) -> tuple[str, ...]:
    """Where a wrong field is, as clients write it; without the names of the alternatives that were tried."""
    parts, models = detail["loc"], _model_names()
    return tuple(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in parts
        if isinstance(part, int) or not (_ALTERNATIVE.fullmatch(part) or part in models)
    )


def _model_names(kind: type[RequestModel] = RequestModel) -> set[str]:
    """How pydantic names a model as one of several types."""
    return {kind.__name__}.union(*map(_model_names, kind.__subclasses__()))


def _too_large(limits: Limits) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {limits.max_body_bytes} bytes, the limit of this server.",
        code="body_too_large",
        headers={"Connection": "close"},
    )
