"""``POST /v1/responses``: OpenAI's newer form of a chat, with a bounded memory of earlier answers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError
from onnx_genai.server.keeping import OwnedStore, held_bytes
from onnx_genai.server.large_json import json_answer
from onnx_genai.server.model import ChatCall, ChatPart, CompletionOptions
from onnx_genai.server.response_items import ResponseItems
from onnx_genai.server.schemas.responses import ResponseRequest
from onnx_genai.server.state import Running, ServerState
from onnx_genai.server.streaming import ReleasingEvent
from onnx_genai.server.wire import finish_reason, new_id
from onnx_genai.types import Usage

__all__ = ["ResponseRoutes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A response that was given, and the conversation up to it."""

    response: dict[str, Any]
    messages: Sequence[Mapping[str, Any]]
    """Without instructions, which belong to one response only."""
    size: int
    """Memory of both, in bytes."""


class _Store:
    """The last responses of each owner."""

    def __init__(self, limits: Limits) -> None:
        self._kept: OwnedStore[_Stored] = OwnedStore(
            limit=limits.max_sessions,
            max_bytes=limits.max_session_bytes,
            ttl=limits.session_ttl,
            size_of=lambda stored: stored.size,
        )

    def put(self, owner: str, response: dict[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        """Keeps a response; one that is larger than all that may be kept is not."""
        size = held_bytes(response) + held_bytes(messages)
        self._kept.put(owner, response["id"], _Stored(response=response, messages=messages, size=size))

    def get(self, response_id: str, owner: str, param: str) -> _Stored:
        found = self._kept.get(owner, response_id)
        if found is None:
            status = 404 if param == "response_id" else 400
            raise ApiError(
                status,
                f"There is no response {response_id[:80]!r} here; this server keeps the last {self._kept.limit} of a "
                f"key, up to {self._kept.max_bytes} bytes, for {self._kept.ttl:g} seconds.",
                param=param,
                code="response_not_found" if status == 404 else "previous_response_not_found",
            )
        return found

    def delete(self, response_id: str, owner: str) -> None:
        self._kept.delete(owner, response_id)


class ResponseRoutes:
    """The routes of responses of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._store = _Store(state.config.limits)

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/{response_id}", self.get, methods=["GET"]),
            Route("/v1/responses/{response_id}", self.delete, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """Answers, as a whole or as a stream."""
        limits = self._state.config.limits
        body = await self._state.read(request, ResponseRequest)
        owner: str = request.state.owner
        history: list[Mapping[str, Any]] = [*body.new_messages()]
        if body.previous_response_id is not None:
            before = self._store.get(body.previous_response_id, owner, "previous_response_id")
            history = [*before.messages, *history]
        head = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
        call = ChatCall(
            messages=[*head, *history],
            params=body.sampling(limits),
            tools=body.tool_objects(limits),
            tool_choice=body.tool_choice_value(),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_format=body.format_object(limits),
            format_name="text.format",
            template_kwargs=body.template_kwargs(),
            options=CompletionOptions(timeout=limits.request_timeout),
        )
        async with AsyncExitStack() as stack:
            let_in = self._state.running(request, "responses", body.model, time_limit=call.options.timeout)
            running = await stack.enter_async_context(let_in)
            draft = _Draft(body, running.name)

            def keep(response: dict[str, Any], answer: Mapping[str, Any]) -> None:
                if body.store is not False:
                    self._store.put(owner, response, [*history, answer])

            if body.stream:
                events = _events(running, call, draft, keep)
                return await self._state.stream(running, events, stack.pop_all(), error_event=draft.error_event)
            answer = await running.live.run(running.model.chat(call))
            part = answer.choices[0]
            draft.items.add(part)
            response = draft.end(part, answer.usage, await running.model.count(part.reasoning))
            running.meter.done([draft.reason(part)], answer.usage)
            keep(response, draft.message())
            return await json_answer(response)

    async def get(self, request: Request) -> Response:
        """A response that was given."""
        return await json_answer(self._found(request).response)

    async def delete(self, request: Request) -> Response:
        """Forgets a response."""
        identifier = self._found(request).response["id"]
        self._store.delete(identifier, request.state.owner)
        return JSONResponse({"id": identifier, "object": "response.deleted", "deleted": True})

    def _found(self, request: Request) -> _Stored:
        return self._store.get(request.path_params["response_id"], request.state.owner, "response_id")


class _Draft:
    """A response that is being made."""

    def __init__(self, body: ResponseRequest, name: str) -> None:
        self._body = body
        self._name = name
        self._id = new_id("resp_")
        self._created = int(time.time())
        self.items = ResponseItems(wants_logprobs=body.wants_logprobs)

    def reason(self, part: ChatPart) -> str:
        """The finish reason in a chat's words."""
        has_calls = any(item["type"] == "function_call" for item in self.items.output)
        return finish_reason(part.finish_reason, has_calls=has_calls)

    def end(self, part: ChatPart, usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
        """Ends the items; the whole response."""
        is_complete = self.reason(part) != "length"
        self.items.finish(is_complete=is_complete)
        response = self.as_object("completed" if is_complete else "incomplete")
        return {**response, "usage": _usage(usage, reasoning_tokens)}

    def as_object(self, status: str) -> dict[str, Any]:
        """The response on the wire."""
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._name,
            "output": list(self.items.output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": _dumped(body.text.format) if body.text and body.text.format else {"type": "text"}},
            "tool_choice": body.tool_choice if body.tool_choice is not None else "auto",
            "tools": [_dumped(tool) for tool in body.tools or ()],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
        }

    def error_event(self, error: ApiError) -> bytes:
        """The event that ends a stream that failed."""
        self.items.drop()
        self.items.event("error", code=error.code, message=error.message, param=error.param)
        return b"".join(self.items.take())

    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for item in self.items.output:
            if item["type"] == "message":
                message["content"] += item["content"][0]["text"]
            elif item["type"] == "reasoning":
                message["reasoning_content"] = message.get("reasoning_content", "") + item["content"][0]["text"]
            else:
                function = {"name": item["name"], "arguments": item["arguments"]}
                message.setdefault("tool_calls", []).append(
                    {"id": item["call_id"], "type": "function", "function": function}
                )
        return message


async def _events(
    running: Running, call: ChatCall, draft: _Draft, keep: Callable[[dict[str, Any], Mapping[str, Any]], None]
) -> AsyncGenerator[bytes, None]:
    """The events of a streamed response."""
    items = draft.items
    last: ChatPart | None = None
    usage: Usage | None = None
    has_begun = False
    async with aclosing(running.model.chat_stream(call)) as parts:
        async for part in parts:
            running.meter.tokens(len(part.token_ids))
            if not has_begun:
                has_begun = True
                items.event("response.created", response=draft.as_object("in_progress"))
                items.event("response.in_progress", response=draft.as_object("in_progress"))
            items.add(part)
            for event in items.take():
                yield event
            usage = part.usage or usage
            last = part if part.finish_reason is not None else last
    if last is None or usage is None:
        finish_reason(None)  # raises
        return
    response = draft.end(last, usage, await running.model.count(draft.message().get("reasoning_content", "")))
    running.meter.done([draft.reason(last)], usage)
    keep(response, draft.message())
    items.event(f"response.{response['status']}", response=response)
    yield ReleasingEvent(b"".join(items.take()))


def _usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": min(reasoning_tokens, usage.completion_tokens)},
        "total_tokens": usage.total_tokens,
    }


def _dumped(value: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = value.model_dump(by_alias=True, exclude_none=True)
    return dumped
