"""Pieces of OpenAI's answers that several routes share: ids, usage, log-probabilities, finish reasons."""

from __future__ import annotations

import importlib.metadata
import math
import secrets
from collections.abc import Sequence
from typing import Any

from onnx_genai.errors import AbortedError, BackendError
from onnx_genai.types import TokenLogprob, Usage

__all__ = [
    "chat_logprobs",
    "finish_reason",
    "finite_logprob",
    "new_id",
    "server_version",
    "usage_object",
]

UNLIKELY = -9999.0
"""Stands for minus infinity, which JSON has not."""


def new_id(prefix: str) -> str:
    """A fresh id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(12)}"


def server_version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version("onnx-genai")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def usage_object(usage: Usage, reasoning_tokens: int = 0) -> dict[str, Any]:
    """OpenAI's ``usage``."""
    value: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens:
        value["completion_tokens_details"] = {"reasoning_tokens": min(reasoning_tokens, usage.completion_tokens)}
    return value


def finite_logprob(value: float) -> float:
    """A log-probability as JSON can hold it."""
    return value if math.isfinite(value) else UNLIKELY


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """``logprobs`` of a chat choice: one entry for each token."""
    return {
        "content": [
            {**_token_logprob(entry), "top_logprobs": [_token_logprob(other) for other in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def finish_reason(reason: str | None, *, has_calls: bool = False) -> str:
    """OpenAI's word for the end of an answer.

    Raises:
        AbortedError: It was aborted from outside.
        BackendError: It failed by itself.
    """
    if reason in (None, "abort"):
        raise AbortedError("the answer was aborted before its end")
    if reason == "error":
        raise BackendError("the answer failed while it was made")
    return "tool_calls" if has_calls and reason != "length" else str(reason)


def _token_logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": finite_logprob(entry.logprob), "bytes": list(entry.token_bytes)}
