"""One request of a load: sent, read as a stream, timed. :meth:`Target.ask` gives an :class:`Outcome`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from onnx_genai.errors import GenAIError
from onnx_genai.load_test.dataset import Sample
from onnx_genai.load_test.http import HttpClient, Response

__all__ = ["Endpoint", "Outcome", "Target"]

Endpoint = Literal["chat", "completions"]

_PATHS: Mapping[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls")
_SHOWN_BYTES = 500


@dataclass(slots=True)
class Outcome:
    """What one request took. Times are seconds; those of a failed request are what there was until then."""

    started: float = 0.0
    """When it was sent, from the start of the load."""
    first: float | None = None
    """From sending to the first piece that has text; None when there was none."""
    gaps: list[float] = field(default_factory=list)
    """Between neighbouring pieces that have text."""
    latency: float = 0.0
    """From sending to the last piece that has text."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted_by_server: bool = False
    """The server told the numbers of tokens; else a piece counts as one, and the prompt is as long as was asked for."""
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    """Why it failed."""

    @property
    def per_token(self) -> float | None:
        """Mean time of a token after the first; None if there is none after it."""
        if self.first is None or self.output_tokens < 2:
            return None
        return (self.latency - self.first) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and how."""

    client: HttpClient
    model: str
    endpoint: Endpoint = "chat"
    ignore_eos: bool = False
    timeout: float = 600.0
    """Seconds for one request."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the body; they win."""

    def body(self, sample: Sample) -> bytes:
        """The JSON of a request."""
        value: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        if self.endpoint == "chat":
            value["messages"] = list(sample.messages or ({"role": "user", "content": sample.prompt},))
        else:
            value["prompt"] = sample.prompt or "\n".join(str(each.get("content", "")) for each in sample.messages or ())
        value.update(max_tokens=sample.output_tokens, temperature=0)
        if self.ignore_eos:
            value["ignore_eos"] = True
        value.update(self.extra)
        return json.dumps(value).encode()

    async def ask(self, sample: Sample, outcome: Outcome, start: float) -> None:
        """Sends a request and fills ``outcome`` while the answer comes; a failure is noted in it.

        Args:
            sample: What to ask.
            outcome: Filled; after a cancellation it has what there was until then.
            start: ``time.perf_counter()`` at the start of the load.
        """
        outcome.prompt_tokens = sample.prompt_tokens
        body = self.body(sample)
        try:
            await asyncio.wait_for(self._exchange(body, outcome, start), self.timeout)
        except asyncio.TimeoutError:
            outcome.error = f"no end within {self.timeout:g} seconds"
        except asyncio.IncompleteReadError:
            outcome.error = "the server closed the connection in the middle of the answer"
        except asyncio.CancelledError:
            outcome.error = "interrupted"
            raise
        except (OSError, GenAIError, ValueError, asyncio.LimitOverrunError) as error:
            outcome.error = str(error) or type(error).__name__

    async def _exchange(self, body: bytes, outcome: Outcome, start: float) -> None:
        sent = time.perf_counter()
        outcome.started = sent - start
        async with self.client.request("POST", _PATHS[self.endpoint], body) as response:
            if response.status != 200:
                outcome.error = f"status {response.status}: {_message(await response.read(_SHOWN_BYTES))}"
                return
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                outcome.error = f"the answer is {kind or 'of no type'}, not a stream; this server does not stream"
                return
            await self._read(response, outcome, sent)
        if outcome.error is None and outcome.first is None:
            outcome.error = "the answer has no text"

    async def _read(self, response: Response, outcome: Outcome, sent: float) -> None:
        last: float | None = None
        texts: list[str] = []
        async for data in _events(response):
            now = time.perf_counter()
            if data == b"[DONE]":
                continue  # whatever follows belongs to the end of the body
            event = json.loads(data)
            if not isinstance(event, dict):
                raise ValueError(f"an event of the stream is no object: {data[:80]!r}")
            if "error" in event:
                outcome.error = f"the stream ended with an error: {_message(data)}"
                return
            text = _text(event, outcome)
            if text:
                texts.append(text)
                if last is None:
                    outcome.first = now - sent
                else:
                    outcome.gaps.append(now - last)
                last = now
                outcome.latency = now - sent
                if not outcome.counted_by_server:
                    outcome.output_tokens += 1
            _note_usage(event.get("usage"), outcome)
        outcome.text = "".join(texts)


def _text(event: Mapping[str, Any], outcome: Outcome) -> str:
    """What an event adds to the answer."""
    text = ""
    for choice in event.get("choices") or ():
        outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
        delta = choice.get("delta")
        if delta is None:
            text += choice.get("text") or ""
            continue
        for name in _TEXT_FIELDS:
            value = delta.get(name)
            if value:
                text += value if isinstance(value, str) else json.dumps(value)
                break
    return text


def _note_usage(usage: Any, outcome: Outcome) -> None:
    if not isinstance(usage, dict) or not isinstance(usage.get("completion_tokens"), int):
        return
    outcome.counted_by_server = True
    outcome.output_tokens = usage["completion_tokens"]
    outcome.prompt_tokens = usage.get("prompt_tokens") or outcome.prompt_tokens


async def _events(response: Response) -> AsyncIterator[bytes]:
    """The data of each server-sent event; comments and other fields are left out.

    Source: the "event stream interpretation" of the HTML standard, for data of one line, as all these servers send it.
    """
    rest = b""
    async for piece in response.pieces():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def _message(body: bytes) -> str:
    """The text of an error, in whatever form the server gives it."""
    try:
        value = json.loads(body)
    except ValueError:
        return " ".join(body.decode("utf-8", errors="replace").split())[:_SHOWN_BYTES] or "(no text)"
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:_SHOWN_BYTES]
