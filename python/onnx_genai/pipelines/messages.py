"""Messages with texts of ours in them, for templates that leave tools or calls out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx_genai.pipelines.chat import calls_as_text

__all__ = ["ChatMessage", "before_user", "with_calls_as_text", "with_system"]

ChatMessage = Mapping[str, Any]
"""A message as chat templates take it: ``role`` and ``content``, and whatever else the template reads."""


def with_system(messages: Sequence[ChatMessage], text: str) -> list[ChatMessage]:
    """The messages with a text added to the system message, or put before them as one."""
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer") and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_calls_as_text(message: ChatMessage) -> ChatMessage:
    """An answer with its calls in its text, in the form in which tools are described to templates without any."""
    content = message.get("content") or ""
    if not message.get("tool_calls") or not isinstance(content, str):
        return message
    calls = [calls_as_text(message["tool_calls"])]
    return {**message, "content": "\n".join([*([content] if content else []), *calls])}


def before_user(messages: Sequence[ChatMessage], text: str) -> list[ChatMessage]:
    """The messages with a text put before what the user said first."""
    out = list(messages)
    for place, message in enumerate(out):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            out[place] = {**message, "content": f"{text}\n\n{message['content']}"}
            break
    return out
