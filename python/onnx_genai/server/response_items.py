"""The items of a response as they grow, and the events that tell of it."""

from __future__ import annotations

from typing import Any

from onnx_genai.server.model import CallPart, ChatPart
from onnx_genai.server.streaming import data_event
from onnx_genai.server.wire import chat_logprobs, new_id
from onnx_genai.types import TokenLogprob

__all__ = ["ResponseItems"]


class ResponseItems:
    """Builds the output of one response. The events of what was added wait in :meth:`take`."""

    def __init__(self, *, wants_logprobs: bool) -> None:
        self.output: list[dict[str, Any]] = []
        self._wants_logprobs = wants_logprobs
        self._is_open = False
        self._number = 0
        self._events: list[bytes] = []  # not taken yet; their numbers are the last ones

    def event(self, kind: str, **fields: Any) -> None:
        """Adds an event with the next number."""
        self._events.append(data_event({"type": kind, "sequence_number": self._number, **fields}, kind))
        self._number += 1

    def take(self) -> list[bytes]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def drop(self) -> None:
        """Forgets the events since the last call, with their numbers."""
        self._number -= len(self._events)
        self._events.clear()

    def add(self, part: ChatPart) -> None:
        """Adds a piece of the answer."""
        if part.reasoning:
            self._reasoning(part.reasoning)
        if part.content or (part.logprobs and self._wants_logprobs and self._open_type == "message"):
            self._text(part.content, part.logprobs or ())
        for call in part.tool_calls:
            self._call(call)

    def finish(self, *, is_complete: bool) -> None:
        """Ends what is open; an answer without anything gets an empty text."""
        if not self.output:
            self._text("", ())
        self._close("completed" if is_complete else "incomplete")

    @property
    def _open_type(self) -> str | None:
        return self.output[-1]["type"] if self._is_open else None

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _reasoning(self, text: str) -> None:
        if self._open_type != "reasoning":
            item: dict[str, Any] = {
                "id": new_id("rs_"),
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
            }
            self._open(item)
            item["content"] = [{"type": "reasoning_text", "text": ""}]
            self.event("response.content_part.added", **self._place, content_index=0, part=dict(item["content"][0]))
        self.output[-1]["content"][0]["text"] += text
        self.event("response.reasoning_text.delta", **self._place, content_index=0, delta=text)

    def _text(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> None:
        if self._open_type != "message":
            item: dict[str, Any] = {
                "id": new_id("msg_"),
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
            self._open(item)
            item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
            part = {**item["content"][0], "logprobs": []}
            self.event("response.content_part.added", **self._place, content_index=0, part=part)
        content = self.output[-1]["content"][0]
        entries = chat_logprobs(logprobs)["content"] if self._wants_logprobs else []
        content["text"] += text
        content["logprobs"].extend(entries)
        if text or entries:
            self.event("response.output_text.delta", **self._place, content_index=0, delta=text, logprobs=entries)

    def _call(self, call: CallPart) -> None:
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.id,
            "name": call.name,
            "arguments": "",
        }
        self._open(item)
        item["arguments"] = call.arguments
        self.event("response.function_call_arguments.delta", **self._place, delta=call.arguments)
        self.event("response.function_call_arguments.done", **self._place, arguments=call.arguments, name=call.name)
        self._close("completed")

    def _open(self, item: dict[str, Any]) -> None:
        self._close("completed")
        self.output.append(item)
        self._is_open = True
        self.event("response.output_item.added", output_index=len(self.output) - 1, item=dict(item))

    def _close(self, status: str) -> None:
        if not self._is_open:
            return
        item = self.output[-1]
        if item["type"] != "function_call":
            content = item["content"][0]
            place = {**self._place, "content_index": 0}
            if item["type"] == "message":
                self.event("response.output_text.done", **place, text=content["text"], logprobs=content["logprobs"])
            else:
                self.event("response.reasoning_text.done", **place, text=content["text"])
            self.event("response.content_part.done", **place, part=dict(content))
        item["status"] = status
        self._is_open = False
        self.event("response.output_item.done", output_index=len(self.output) - 1, item=dict(item))
