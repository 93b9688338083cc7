"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onnx_genai.server.large_json import json_answer
from onnx_genai.server.legacy_logprobs import LegacyLogprobs
from onnx_genai.server.merging import merged
from onnx_genai.server.model import CompletionOptions, ServedModel
from onnx_genai.server.schemas.completions import CompletionRequest
from onnx_genai.server.scoring import score_prompt
from onnx_genai.server.state import Running, ServerState
from onnx_genai.server.streaming import ChoiceEvents, ReleasingEvent, data_event
from onnx_genai.server.wire import finish_reason, finite_logprob, new_id, usage_object
from onnx_genai.types import Choice, Chunk, Result, SamplingParams, TokenLogprob, Usage

__all__ = ["CompletionRoutes"]


class CompletionRoutes:
    """The completion route of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [Route("/v1/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Continues one or many prompts, as a whole or as a stream."""
        limits = self._state.config.limits
        body = await self._state.read(request, CompletionRequest)
        body.check_fields(limits)
        prompts = body.prompts(limits)
        wants_rank = body.candidates > (body.n or 1)
        params = body.sampling(
            limits,
            n=body.candidates,
            # A prompt that is only scored makes no token; the one asked for here is not made then.
            max_new_tokens=max(body.answer_tokens, 1),
            logprobs=body.logprobs is not None or wants_rank,
            top_logprobs=body.logprobs or 0,
        )
        options = CompletionOptions(
            priority=body.priority or 0, timeout=body.time_limit(limits), cache_salt=body.cache_salt or ""
        )
        async with AsyncExitStack() as stack:
            let_in = self._state.running(request, "completions", body.model, time_limit=options.timeout)
            running = await stack.enter_async_context(let_in)
            head = _Head(name=running.name)
            if body.stream:
                events = _events(running, prompts, params, options, body, head)
                return await self._state.stream(running, events, stack.pop_all())
            work = _Work(running.model, body, params, options, limits.max_scored_tokens)
            answers = await running.live.run(work.all(prompts))
            usage = _summed([answer.usage for answer in answers])
            choices = [choice for number, answer in enumerate(answers) for choice in answer.objects(body, number)]
            running.meter.done((choice["finish_reason"] for choice in choices), usage)
            return await json_answer({**head.object(), "choices": choices, "usage": usage_object(usage)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    name: str
    id: str = field(default_factory=lambda: new_id("cmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))

    def object(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The choices of one prompt, best first, and what is repeated before them."""

    choices: Sequence[Choice]
    usage: Usage
    echo: str = ""
    scored: Sequence[TokenLogprob | str] = ()
    """Tokens of the prompt with their log-probabilities; the first has only its text."""

    def objects(self, body: CompletionRequest, prompt_number: int) -> list[dict[str, Any]]:
        count = body.n or 1
        return [
            {
                "text": self.echo + choice.text,
                "index": prompt_number * count + number,
                "logprobs": (
                    LegacyLogprobs(body.logprobs).add([*self.scored, *(choice.logprobs or ())])
                    if body.logprobs is not None
                    else None
                ),
                "finish_reason": finish_reason(choice.finish_reason),
            }
            for number, choice in enumerate(self.choices[:count])
        ]


@dataclass(frozen=True, slots=True)
class _Work:
    """Answers of a request that is not streamed."""

    model: ServedModel
    body: CompletionRequest
    params: SamplingParams
    options: CompletionOptions
    max_scored_tokens: int

    async def all(self, prompts: Sequence[str | list[int]]) -> list[_Answer]:
        tasks = [asyncio.ensure_future(self.one(prompt)) for prompt in prompts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def one(self, prompt: str | list[int]) -> _Answer:
        body = self.body
        ids = await self.model.encode_prompt(prompt)
        echo = ""
        scored: Sequence[TokenLogprob | str] = ()
        if body.echo:
            echo = prompt if isinstance(prompt, str) else await self.model.decode(ids)
            if body.logprobs is not None:
                scored = await score_prompt(self.model, ids, body.logprobs, self.options, self.max_scored_tokens)
        if body.answer_tokens == 0:
            empty = Choice(index=0, text="", token_ids=(), finish_reason="length", logprobs=())
            usage = Usage(prompt_tokens=len(ids), completion_tokens=0)
            return _Answer(choices=[empty] * (body.n or 1), usage=usage, echo=echo, scored=scored)
        given = prompt if body.suffix else ids
        result = await self.model.complete(given, self.params, self.options, body.suffix or None)
        return _Answer(choices=_ranked(result, body), usage=result.usage, echo=echo, scored=scored)


async def _events(
    running: Running,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    options: CompletionOptions,
    body: CompletionRequest,
    head: _Head,
) -> AsyncGenerator[bytes, None]:
    """The chunks of a streamed answer."""
    base = head.object()
    events = ChoiceEvents(base, {"usage": None} if body.include_usage else {})
    shown: dict[int, int] = {}
    lists: dict[int, LegacyLogprobs] = {}
    reasons: list[str] = []
    usages: list[Usage] = []

    def chunk(index: int, text: str, reason: str | None = None, logprobs: Any = None) -> bytes:
        return events.of({"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason})

    def start(prompt: str | list[int]) -> AsyncGenerator[Chunk, None]:
        return running.model.complete_stream(prompt, params, options, body.suffix or None)

    for prompt in prompts:
        running.model.check_room(prompt)
    if body.echo:
        for number, prompt in enumerate(prompts):
            text = prompt if isinstance(prompt, str) else await running.model.decode(prompt)
            for choice in range(body.n or 1):
                index = number * (body.n or 1) + choice
                shown[index] = len(text)
                yield chunk(index, text, "length" if body.answer_tokens == 0 else None)
    if body.answer_tokens:
        async with aclosing(merged([start(prompt) for prompt in prompts])) as pieces:
            async for number, piece in pieces:
                running.meter.tokens(len(piece.token_ids))
                index = number * (body.n or 1) + piece.index
                if piece.usage is not None:
                    usages.append(piece.usage)
                logprobs = None
                if body.logprobs is not None and piece.logprobs:
                    if index not in lists:
                        lists[index] = LegacyLogprobs(body.logprobs, shown.get(index, 0))
                    logprobs = lists[index].add(piece.logprobs)
                reason = None if piece.finish_reason is None else finish_reason(piece.finish_reason)
                if reason is not None:
                    reasons.append(reason)
                if piece.text or reason is not None or logprobs is not None:
                    yield chunk(index, piece.text, reason, logprobs)
        usage = _summed(usages)
    else:
        lengths = [len(await running.model.encode_prompt(each)) for each in prompts]
        usage = Usage(prompt_tokens=sum(lengths), completion_tokens=0)
    running.meter.done(reasons, usage)
    if body.include_usage:
        yield data_event({**base, "choices": [], "usage": usage_object(usage)})
    yield ReleasingEvent(b"data: [DONE]\n\n")


def _ranked(result: Result, body: CompletionRequest) -> Sequence[Choice]:
    """With more candidates than answers, the likeliest first: by mean log-probability of a token."""
    if body.candidates <= (body.n or 1):
        return result.choices

    def mean(choice: Choice) -> float:
        entries = choice.logprobs or ()
        return sum(finite_logprob(entry.logprob) for entry in entries) / max(len(entries), 1)

    return sorted(result.choices, key=mean, reverse=True)


def _summed(usages: Sequence[Usage]) -> Usage:
    if len(usages) == 1:
        return usages[0]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
