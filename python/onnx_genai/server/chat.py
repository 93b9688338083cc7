"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onnx_genai.server.errors import ApiError
from onnx_genai.server.large_json import json_answer
from onnx_genai.server.model import CallPart, ChatAnswer, ChatCall, ChatPart, CompletionOptions
from onnx_genai.server.schemas.chat import ChatCompletionRequest
from onnx_genai.server.sessions import SESSION_HEADER, ChatSession, SessionStore
from onnx_genai.server.state import Running, ServerState
from onnx_genai.server.streaming import ChoiceEvents, ReleasingEvent, data_event
from onnx_genai.server.wire import chat_logprobs, finish_reason, new_id, usage_object
from onnx_genai.types import Usage

__all__ = ["ChatRoutes"]


class ChatRoutes:
    """The chat routes of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Answers a chat, as a whole or as a stream."""
        body = await self._state.read(request, ChatCompletionRequest)
        body.check_fields()
        session = self._session(request, body)
        call = self._call(body, session)
        async with AsyncExitStack() as stack:
            if session is not None:
                stack.enter_context(session.turn())
            model = body.model if session is None else session.model
            let_in = self._state.running(request, "chat", model, time_limit=call.options.timeout)
            running = await stack.enter_async_context(let_in)
            head = _Head(name=running.name)
            headers = {} if session is None else {SESSION_HEADER: session.id}
            new = call.messages if session is None else call.messages[len(session.messages) :]
            turn = _Turn(self._state.sessions, session, new)
            if body.stream:
                events = _events(running, call, body, head, turn)
                return await self._state.stream(running, events, stack.pop_all(), headers=headers)
            answer = await running.live.run(running.model.chat(call))
            reasoning_tokens = await running.model.count(*(part.reasoning for part in answer.choices))
            value = _answer_object(answer, body, head, reasoning_tokens)
            running.meter.done((choice["finish_reason"] for choice in value["choices"]), answer.usage)
            turn.commit([_Message.of(choice) for choice in answer.choices])
            return await json_answer(value, headers=headers)

    def _session(self, request: Request, body: ChatCompletionRequest) -> ChatSession | None:
        given = request.headers.get(SESSION_HEADER)
        if given is None:
            return None
        session = self._state.sessions.get(given.strip(), request.state.owner)
        if body.model and self._state.models.served_name(body.model) != session.model:
            raise _bad("model", f"the session belongs to the model {session.model!r}; ask for that, or for none")
        if (body.n or 1) != 1:
            raise _bad("n", f"n is {body.n}; a session goes on with one answer, so fork it for each further one")
        return session

    def _call(self, body: ChatCompletionRequest, session: ChatSession | None) -> ChatCall:
        limits = self._state.config.limits
        messages = body.template_messages()
        tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        return ChatCall(
            messages=messages if session is None else self._state.sessions.whole(session, messages),
            params=body.sampling(
                limits,
                max_new_tokens=tokens,
                logprobs=bool(body.logprobs),
                top_logprobs=body.top_logprobs or 0,
            ),
            tools=body.tool_objects(limits),
            tool_choice=body.tool_choice_value(),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            response_format=body.format_object(limits),
            template_kwargs=body.template_kwargs() or None,
            options=CompletionOptions(
                priority=body.priority or 0, timeout=body.time_limit(limits), cache_salt=body.cache_salt or ""
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What is the same in all pieces of an answer."""

    name: str
    id: str = field(default_factory=lambda: new_id("chatcmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))

    def object(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.name}


@dataclass(slots=True)
class _Message:
    """An answer as it grows."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)
    finish_reason: str | None = None

    @classmethod
    def of(cls, part: ChatPart) -> _Message:
        message = cls()
        message.add(part)
        return message

    def add(self, part: ChatPart) -> None:
        self.content += part.content
        self.reasoning += part.reasoning
        self.calls.extend(part.tool_calls)
        self.finish_reason = part.finish_reason or self.finish_reason

    def as_object(self) -> dict[str, Any]:
        """The message on the wire, and in the history of a session."""
        value: dict[str, Any] = {
            "role": "assistant",
            "content": self.content if self.content or not (self.calls or self.reasoning) else None,
        }
        if self.reasoning:
            value["reasoning_content"] = self.reasoning
        if self.calls:
            value["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return value


@dataclass(frozen=True, slots=True)
class _Turn:
    """Where the messages of a turn go when it has ended well."""

    sessions: SessionStore
    session: ChatSession | None
    new: Any

    def commit(self, answers: list[_Message]) -> None:
        if self.session is not None:
            self.sessions.append(self.session, [*self.new, *(answer.as_object() for answer in answers)])


def _answer_object(
    answer: ChatAnswer, body: ChatCompletionRequest, head: _Head, reasoning_tokens: int
) -> dict[str, Any]:
    choices = []
    for part in answer.choices:
        choices.append(
            {
                "index": part.index,
                "message": {**_Message.of(part).as_object(), "refusal": None},
                "finish_reason": finish_reason(part.finish_reason, has_calls=bool(part.tool_calls)),
                "logprobs": chat_logprobs(part.logprobs or ()) if body.logprobs else None,
            }
        )
    return {**head.object("chat.completion"), "choices": choices, "usage": usage_object(answer.usage, reasoning_tokens)}


async def _events(
    running: Running, call: ChatCall, body: ChatCompletionRequest, head: _Head, turn: _Turn
) -> AsyncGenerator[bytes, None]:
    """The chunks of a streamed answer."""
    chunks = _Chunks(body, head)
    usage: Usage | None = None
    async with aclosing(running.model.chat_stream(call)) as parts:
        async for part in parts:
            running.meter.tokens(len(part.token_ids))
            events = chunks.of(part)
            if part.usage is not None:
                # The turn has ended before the client can know.
                usage = part.usage
                running.meter.done(chunks.reasons, usage)
                turn.commit([chunks.answers[index] for index in sorted(chunks.answers)])
                events[:1] = [ReleasingEvent(event) for event in events[:1]]
            for event in events:
                yield event
    if usage is None:
        finish_reason(None)  # raises
        return
    if body.include_usage:
        reasoning_tokens = await running.model.count(*(answer.reasoning for answer in chunks.answers.values()))
        yield chunks.of_usage(usage, reasoning_tokens)
    yield b"data: [DONE]\n\n"


class _Chunks:
    """Makes the chunks of one streamed answer."""

    def __init__(self, body: ChatCompletionRequest, head: _Head) -> None:
        self._base = head.object("chat.completion.chunk")
        self._events = ChoiceEvents(self._base, {"usage": None} if body.include_usage else {})
        self._wants_logprobs = bool(body.logprobs)
        self.answers: dict[int, _Message] = {}
        self.reasons: list[str] = []

    def of(self, part: ChatPart) -> list[bytes]:
        """The chunks of a piece; none if it brought nothing to show."""
        deltas: list[dict[str, Any]] = []
        if part.reasoning:
            deltas.append({"reasoning_content": part.reasoning})
        if part.content:
            deltas.append({"content": part.content})
        deltas.extend({"tool_calls": [delta]} for delta in _call_deltas(part.tool_calls))
        logprobs = chat_logprobs(part.logprobs) if self._wants_logprobs and part.logprobs else None
        if logprobs is not None and not deltas:  # text is still held back
            deltas.append({"content": ""})
        out = []
        if part.index not in self.answers:
            self.answers[part.index] = _Message()
            out.append(self._chunk(part.index, {"role": "assistant", "content": ""}))
        self.answers[part.index].add(part)
        for number, delta in enumerate(deltas):
            out.append(self._chunk(part.index, delta, logprobs=None if number else logprobs))
        if part.finish_reason is not None:
            reason = finish_reason(part.finish_reason, has_calls=bool(self.answers[part.index].calls))
            self.reasons.append(reason)
            out.append(self._chunk(part.index, {}, reason))
        return out

    def of_usage(self, usage: Usage, reasoning_tokens: int) -> bytes:
        """The chunk that tells the usage."""
        return data_event({**self._base, "choices": [], "usage": usage_object(usage, reasoning_tokens)})

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
        return self._events.of({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})


def _call_deltas(calls: tuple[CallPart, ...]) -> list[dict[str, Any]]:
    """Name and id once, then the arguments."""
    deltas: list[dict[str, Any]] = []
    for call in calls:
        function = {"name": call.name, "arguments": ""}
        deltas.append({"index": call.index, "id": call.id, "type": "function", "function": function})
        deltas.append({"index": call.index, "function": {"arguments": call.arguments}})
    return deltas


def _bad(param: str, text: str) -> ApiError:
    return ApiError(400, text, param=param, code="invalid_value")
