"""The core's events as :class:`~onnx_genai.types.Chunk` s, and chunks joined to a :class:`~onnx_genai.types.Result`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, cast

from onnx_genai import _core
from onnx_genai.errors import AbortedError
from onnx_genai.types import Choice, Chunk, FinishReason, RequestTimes, Result, SamplingParams, TokenLogprob, Usage

__all__ = ["TokenTable", "join_chunks", "to_chunk"]


class TokenTable(Protocol):
    """The text of each token; ``tokenizer.TokenTableData`` is one. Semantics: ``cpp/genai/core/token_table.h``."""

    @property
    def decoding(self) -> Literal["byte_level", "byte_fallback"]: ...
    @property
    def strip_first_space(self) -> bool: ...
    @property
    def bytes(self) -> Sequence[builtins.bytes]: ...
    @property
    def kinds(self) -> Sequence[int]: ...
    @property
    def first(self) -> Mapping[int, builtins.bytes]: ...


def to_chunk(event: _core.Event, params: SamplingParams, table: TokenTable) -> Chunk:
    """Returns a valid event (one without an error) in the words of the public types."""
    stop_reason: str | int | None = event.stop_token
    if event.stop_index is not None:
        stop_reason = params.stop[event.stop_index]
    usage = None
    if event.last:
        prompt, completion, cached = event.usage
        times = event.times
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            times=None if times is None else RequestTimes(queued=times[0], prefill=times[1]),
        )
    return Chunk(
        index=event.choice,
        text=event.text,
        token_ids=event.tokens,
        finish_reason=cast("FinishReason | None", event.finish),
        stop_reason=stop_reason,
        logprobs=_logprobs(event, table) if params.logprobs else None,
        usage=usage,
        budget_cap=event.budget_cap,
        score=event.score,
    )


def join_chunks(chunks: Iterable[Chunk], params: SamplingParams) -> Result:
    """Returns all chunks of a request as one result.

    Raises:
        AbortedError: The last chunk is missing.
    """
    texts: dict[int, list[str]] = {}
    tokens: dict[int, list[int]] = {}
    logprobs: dict[int, list[TokenLogprob]] = {}
    last: dict[int, Chunk] = {}
    for chunk in chunks:
        texts.setdefault(chunk.index, []).append(chunk.text)
        tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
        logprobs.setdefault(chunk.index, []).extend(chunk.logprobs or ())
        last[chunk.index] = chunk
    choices = tuple(
        Choice(
            index=index,
            text="".join(texts[index]),
            token_ids=tuple(tokens[index]),
            finish_reason=chunk.finish_reason or "abort",
            stop_reason=chunk.stop_reason,
            logprobs=tuple(logprobs[index]) if params.logprobs else None,
            score=chunk.score,
        )
        for index, chunk in sorted(last.items())
    )
    final = next((chunk for chunk in last.values() if chunk.usage is not None), None)
    if final is None or final.usage is None:
        raise AbortedError("the request was closed before it ended; submit it again")
    return Result(choices=choices, usage=final.usage, budget_cap=final.budget_cap)


def _logprobs(event: _core.Event, table: TokenTable) -> tuple[TokenLogprob, ...]:
    return tuple(
        _token_logprob(table, token, logprob, tuple(_token_logprob(table, *each) for each in top))
        for token, logprob, top in event.logprobs
    )


def _token_logprob(table: TokenTable, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    raw = table.bytes[token] if token < len(table.bytes) else b""
    return TokenLogprob(token, raw.decode("utf-8", errors="replace"), raw, logprob, top)
