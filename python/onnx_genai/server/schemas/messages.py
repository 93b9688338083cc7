"""``POST /v1/messages`` (Anthropic's form): the request, and the chat that it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from onnx_genai.server.config import Limits
from onnx_genai.server.model import ChatCall, CompletionOptions
from onnx_genai.server.schemas.base import ListOf, ObjectsOf, RequestModel, bad_value, bounded_tools, tool_object
from onnx_genai.server.schemas.sampling import check_stop_lengths
from onnx_genai.types import SamplingParams

__all__ = ["CountTokensRequest", "MessagesRequest"]


class _TextBlockIn(RequestModel):
    """A part of a system text or of a tool's result."""

    type: str
    text: str | None = None


class _BlockIn(_TextBlockIn):
    """A part of a message; which fields count depends on its type."""

    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | ObjectsOf[_TextBlockIn] | None = None


class _MessageIn(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: str | ObjectsOf[_BlockIn]


class _ToolIn(RequestModel):
    type: str | None = None
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _ToolChoiceIn(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _ThinkingIn(RequestModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    """A wish; reasoning counts as part of ``max_tokens``, which bounds it."""


class CountTokensRequest(RequestModel):
    """``POST /v1/messages/count_tokens``, and what both requests share."""

    refused: ClassVar[Mapping[str, str]] = {
        "container": "this server runs no code",
        "mcp_servers": "this server calls no other",
        "output_format": "use /v1/chat/completions with response_format",
        "output_config": "use /v1/chat/completions with response_format",
    }

    model: str | None = None
    messages: ObjectsOf[_MessageIn] = Field(min_length=1)
    system: str | ObjectsOf[_TextBlockIn] | None = None
    tools: ObjectsOf[_ToolIn] | None = None
    tool_choice: _ToolChoiceIn | None = None
    thinking: _ThinkingIn | None = None

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates take them."""
        messages: list[dict[str, Any]] = []
        if self.system:
            text = self.system if isinstance(self.system, str) else _joined(self.system, "system")
            messages.append({"role": "system", "content": text})
        for index, message in enumerate(self.messages):
            where = f"messages[{index}].content"
            if isinstance(message.content, str):
                messages.append({"role": message.role, "content": message.content})
            elif message.role == "assistant":
                messages.append(_assistant(message.content, where))
            else:
                messages.extend(_user(message.content, where, message.role))
        return messages

    def template_kwargs(self) -> dict[str, Any] | None:
        """Variables of the template."""
        return None if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}

    def tool_objects(self, limits: Limits) -> list[dict[str, Any]] | None:
        """The tools in OpenAI's form; None if there are none."""
        if not self.tools:
            return None
        tools = []
        for index, tool in enumerate(self.tools):
            if tool.type not in (None, "custom") or tool.input_schema is None:
                raise bad_value(
                    f"tools[{index}]", f"tools[{index}] has no input_schema; only tools of the client exist here"
                )
            tools.append(tool_object(tool.name, tool.description, tool.input_schema))
        return bounded_tools(tools, limits)

    def tool_choice_value(self) -> str | dict[str, Any]:
        """The choice in OpenAI's form."""
        choice = self.tool_choice
        names = [tool.name for tool in self.tools or ()]
        if choice is None or choice.type == "auto":
            return "auto"
        if choice.type == "none":
            return "none"
        if choice.type == "any":
            if not names:
                raise bad_value("tool_choice", "tool_choice is 'any', but there are no tools")
            return "required"
        if choice.name not in names:
            raise bad_value("tool_choice", f"tool_choice names {choice.name!r:.60}, which is not among the tools")
        return {"type": "function", "function": {"name": choice.name}}


class MessagesRequest(CountTokensRequest):
    """The whole request."""

    max_tokens: int = Field(ge=1)
    stop_sequences: ListOf[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    def call(self, limits: Limits) -> ChatCall:
        """The chat that is asked for.

        Raises:
            ApiError: A bound of the server is exceeded, or a part cannot be taken.
            InvalidArgumentError: A value is out of range.
        """
        stops = self.stop_sequences or []
        if len(stops) > limits.max_stop:
            raise bad_value("stop_sequences", f"stop_sequences has {len(stops)} entries; allowed: {limits.max_stop}")
        check_stop_lengths("stop_sequences", stops)
        if limits.max_output_tokens is not None and self.max_tokens > limits.max_output_tokens:
            raise bad_value(
                "max_tokens", f"max_tokens is {self.max_tokens}; this server allows at most {limits.max_output_tokens}"
            )
        params = SamplingParams(
            max_new_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,
            stop=tuple(stops),
        )
        one_by_one = self.tool_choice is not None and bool(self.tool_choice.disable_parallel_tool_use)
        return ChatCall(
            messages=self.template_messages(),
            params=params,
            tools=self.tool_objects(limits),
            tool_choice=self.tool_choice_value(),
            parallel_tool_calls=not one_by_one,
            template_kwargs=self.template_kwargs(),
            options=CompletionOptions(timeout=limits.request_timeout),
        )


def _user(blocks: Sequence[_BlockIn], where: str, role: str) -> list[dict[str, Any]]:
    """Text and results of tools, each as a message, in their order."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            messages.append({"role": role, "content": "".join(texts)})
            texts.clear()

    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if block.type == "tool_result":
            flush()
            content = block.content or ""
            text = content if isinstance(content, str) else _joined(content, f"{place}.content")
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": text})
        else:
            texts.append(_text(block, place))
    flush()
    if not messages:
        raise bad_value(where, f"{where} is empty; give a text")
    return messages


def _assistant(blocks: Sequence[_BlockIn], where: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            if not block.name:
                raise bad_value(place, f"{place} is a tool_use without a name")
            function = {"name": block.name, "arguments": json.dumps(block.input or {}, ensure_ascii=False)}
            calls.append({"id": block.id or "", "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            texts.append(_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _joined(blocks: Sequence[_TextBlockIn], where: str) -> str:
    return "".join([_text(block, f"{where}[{index}]") for index, block in enumerate(blocks)])


def _text(block: _TextBlockIn, where: str) -> str:
    if block.type != "text":
        raise bad_value(where, f"{where} has the type {block.type!r:.40}; this server reads text only")
    if block.text is None:
        raise bad_value(where, f"{where} has no text")
    return block.text
