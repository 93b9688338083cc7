"""``POST /v1/messages``: Anthropic's form of a chat."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onnx_genai.server.errors import ApiError, anthropic_body
from onnx_genai.server.model import CallPart, ChatCall, ChatPart
from onnx_genai.server.schemas.messages import CountTokensRequest, MessagesRequest
from onnx_genai.server.state import Running, ServerState
from onnx_genai.server.streaming import ReleasingEvent, data_event
from onnx_genai.server.wire import finish_reason, new_id
from onnx_genai.types import Usage

__all__ = ["MessageRoutes"]


class MessageRoutes:
    """Anthropic's routes of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/v1/messages", self.create, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        """Answers a chat, as a whole or as a stream."""
        limits = self._state.config.limits
        body = await self._state.read(request, MessagesRequest)
        call = body.call(limits)
        async with AsyncExitStack() as stack:
            let_in = self._state.running(request, "messages", body.model, time_limit=call.options.timeout)
            running = await stack.enter_async_context(let_in)
            if body.stream:
                events = _events(running, call)
                return await self._state.stream(running, events, stack.pop_all(), error_event=_error_event)
            answer = await running.live.run(running.model.chat(call))
            part = answer.choices[0]
            running.meter.done([finish_reason(part.finish_reason)], answer.usage)
            return JSONResponse(
                {
                    **_message(new_id("msg_"), running.name),
                    "content": _blocks(part),
                    **_stop(part, has_calls=bool(part.tool_calls)),
                    "usage": _usage(answer.usage),
                }
            )

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens a chat has as a prompt."""
        limits = self._state.config.limits
        body = await self._state.read(request, CountTokensRequest)
        messages, tools = body.template_messages(), body.tool_objects(limits)
        async with self._state.running(request, "count_tokens", body.model) as running:
            encode = running.model.encode_chat(messages, tools=tools, template_kwargs=body.template_kwargs())
            return JSONResponse({"input_tokens": len(await running.live.run(encode))})


def _message(identifier: str, name: str) -> dict[str, Any]:
    return {
        "id": identifier,
        "type": "message",
        "role": "assistant",
        "model": name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts cached tokens apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _stop(part: ChatPart, *, has_calls: bool) -> dict[str, Any]:
    reason = finish_reason(part.finish_reason, has_calls=has_calls)
    if reason == "stop" and isinstance(part.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": part.stop_reason}
    words = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": words[reason], "stop_sequence": None}


def _blocks(part: ChatPart) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if part.reasoning:
        blocks.append({"type": "thinking", "thinking": part.reasoning, "signature": ""})
    if part.content:
        blocks.append({"type": "text", "text": part.content})
    blocks.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call)} for call in part.tool_calls
    )
    return blocks


def _object(call: CallPart) -> dict[str, Any]:
    """The arguments as an object; what is none is kept as text."""
    try:
        value = json.loads(call.arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def _event(kind: str, **fields: Any) -> bytes:
    return data_event({"type": kind, **fields}, kind)


def _error_event(error: ApiError) -> bytes:
    return data_event(anthropic_body(error), "error")


@dataclass(slots=True)
class _Blocks:
    """The blocks of a stream: one is open at a time."""

    index: int = -1
    open_kind: str | None = None
    has_calls: bool = False
    out: list[bytes] = field(default_factory=list)

    def add(self, part: ChatPart) -> None:
        if part.reasoning:
            self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._delta({"type": "thinking_delta", "thinking": part.reasoning})
        if part.content:
            self._open("text", {"type": "text", "text": ""})
            self._delta({"type": "text_delta", "text": part.content})
        for call in part.tool_calls:
            self.has_calls = True
            self.close()
            self._open("tool_use", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            self._delta({"type": "input_json_delta", "partial_json": json.dumps(_object(call), ensure_ascii=False)})
            self.close()

    def close(self) -> None:
        if self.open_kind == "thinking":
            self._delta({"type": "signature_delta", "signature": ""})
        if self.open_kind is not None:
            self.out.append(_event("content_block_stop", index=self.index))
            self.open_kind = None

    def take(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def _open(self, kind: str, block: dict[str, Any]) -> None:
        if self.open_kind == kind:
            return
        self.close()
        self.index += 1
        self.open_kind = kind
        self.out.append(_event("content_block_start", index=self.index, content_block=block))

    def _delta(self, delta: dict[str, Any]) -> None:
        self.out.append(_event("content_block_delta", index=self.index, delta=delta))


async def _events(running: Running, call: ChatCall) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer."""
    head = {**_message(new_id("msg_"), running.name), "usage": _usage(Usage(prompt_tokens=0, completion_tokens=0))}
    blocks = _Blocks()
    last: ChatPart | None = None
    usage: Usage | None = None
    has_begun = False
    async with aclosing(running.model.chat_stream(call)) as parts:
        async for part in parts:
            running.meter.tokens(len(part.token_ids))
            if not has_begun:
                has_begun = True
                yield _event("message_start", message=head)
            blocks.add(part)
            for event in blocks.take():
                yield event
            usage = part.usage or usage
            last = part if part.finish_reason is not None else last
    if last is None or usage is None:
        finish_reason(None)  # raises
        return
    stop = _stop(last, has_calls=blocks.has_calls)
    blocks.close()
    for event in blocks.take():
        yield event
    running.meter.done([finish_reason(last.finish_reason, has_calls=blocks.has_calls)], usage)
    yield ReleasingEvent(_event("message_delta", delta=stop, usage=_usage(usage)))
    yield _event("message_stop")
