"""An answer while it comes: what was said, and how it is written to stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx_genai.cli import console
from onnx_genai.cli.dimmed import DimReasoning
from onnx_genai.cli.repl.terminal import has_colours
from onnx_genai.errors import AbortedError
from onnx_genai.types import Chunk, TokenLogprob, Usage

if TYPE_CHECKING:
    from onnx_genai.pipelines.answer import AnswerForm

__all__ = ["Answer", "AnswerChoice", "Output", "answer_object", "logprob_object", "usage_object"]


@dataclass(slots=True)
class AnswerChoice:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Answer:
    """What the stream has brought so far."""

    started: float
    choices: dict[int, AnswerChoice] = field(default_factory=dict)
    usage: Usage | None = None
    budget_cap: tuple[int, int] | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    def add(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self.last_token = time.perf_counter()
            self.first_token = self.first_token or self.last_token
        choice = self.choices.setdefault(chunk.index, AnswerChoice())
        choice.text.append(chunk.text)
        choice.token_ids.extend(chunk.token_ids)
        choice.logprobs.extend(chunk.logprobs or ())
        choice.finish_reason = chunk.finish_reason or choice.finish_reason
        choice.stop_reason = chunk.stop_reason if chunk.stop_reason is not None else choice.stop_reason
        self.usage = chunk.usage or self.usage
        self.budget_cap = chunk.budget_cap or self.budget_cap
        if chunk.finish_reason == "abort":
            raise AbortedError("the generation was stopped from outside before it was done")

    def in_order(self) -> Iterator[tuple[int, AnswerChoice]]:
        return iter(sorted(self.choices.items()))


class Output:
    """Writes the product: text, or JSON for programs."""

    def __init__(self, *, stream: bool, as_json: bool, logprobs: bool) -> None:
        self.stream = stream
        self.as_json = as_json
        self.provider = "cpu"
        """Execution provider, for the JSON object."""
        self._logprobs = logprobs
        self._last = ""
        self._dimmed: DimReasoning | None = None

    def dim_reasoning(self, form: AnswerForm) -> None:
        """Reasoning is dim where a terminal shows the text as it comes. Nobody else gets other bytes."""
        if self.stream and not self.as_json and sys.stdout.isatty() and has_colours():
            self._dimmed = DimReasoning(form)

    def piece(self, chunk: Chunk) -> None:
        if not self.stream:
            return
        if self.as_json:
            console.write(json.dumps(_chunk_object(chunk), ensure_ascii=False) + "\n")
        elif chunk.text:
            console.write(chunk.text if self._dimmed is None else self._dimmed.feed(chunk.text))
            self._last = chunk.text

    def end(self, answer: Answer) -> None:
        if self.stream and self.as_json:
            return
        if self.as_json:
            value = {**answer_object(answer), "execution_provider": self.provider}
            console.write(json.dumps(value, ensure_ascii=False) + "\n")
            return
        if self.stream:
            if self._dimmed is not None:
                console.write(self._dimmed.finish())
            # A pipe gets exactly one line end more; a terminal only needs to be on a new line.
            if not sys.stdout.isatty() or (self._last and not self._last.endswith("\n")):
                console.write("\n")
        else:
            console.write("".join(_with_heading(answer)))
        if self._logprobs:
            for index, choice in answer.in_order():
                for entry in choice.logprobs:
                    console.note(_logprob_line(entry, index if len(answer.choices) > 1 else None))


def _with_heading(answer: Answer) -> Iterator[str]:
    """Texts with their line ends; several have a line above each."""
    count = len(answer.choices)
    for index, choice in answer.in_order():
        if count > 1:
            yield f"=== answer {index + 1} of {count} ===\n"
        yield f"{''.join(choice.text)}\n"


def usage_object(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def answer_object(answer: Answer) -> dict[str, Any]:
    """The answer in values that JSON can hold."""
    choices = [
        {
            "index": index,
            "text": "".join(choice.text),
            "token_ids": choice.token_ids,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "logprobs": [logprob_object(entry) for entry in choice.logprobs] or None,
        }
        for index, choice in answer.in_order()
    ]
    first = choices[0] if choices else {"text": "", "token_ids": [], "finish_reason": None}
    return {
        "text": first["text"],
        "token_ids": first["token_ids"],
        "finish_reason": first["finish_reason"],
        "usage": usage_object(answer.usage),
        "budget_cap": answer.budget_cap,
        "choices": choices,
    }


def _chunk_object(chunk: Chunk) -> dict[str, Any]:
    return {
        "index": chunk.index,
        "text": chunk.text,
        "token_ids": list(chunk.token_ids),
        "finish_reason": chunk.finish_reason,
        "stop_reason": chunk.stop_reason,
        "logprobs": [logprob_object(entry) for entry in chunk.logprobs] if chunk.logprobs else None,
        "usage": usage_object(chunk.usage),
    }


def logprob_object(entry: TokenLogprob) -> dict[str, Any]:
    value = {
        "token": entry.token,
        "bytes": list(entry.token_bytes),
        "token_id": entry.token_id,
        "logprob": entry.logprob,
    }
    return {**value, "top": [logprob_object(other) for other in entry.top]} if entry.top else value


def _logprob_line(entry: TokenLogprob, index: int | None) -> str:
    head = "" if index is None else f"{index}: "
    others = "".join(f"  {other.token!r} {other.logprob:.4f}" for other in entry.top)
    return f"{head}{entry.token!r} {entry.logprob:.4f}{' |' if others else ''}{others}"
