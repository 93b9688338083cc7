"""``POST /v1/responses``: the request, and the chat that it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from onnx_genai.server.config import Limits
from onnx_genai.server.schemas.base import ListOf, ObjectsOf, RequestModel, bad_value, bounded_tools, tool_object
from onnx_genai.types import SamplingParams

__all__ = ["ResponseRequest"]

_ROLES = ("user", "assistant", "system", "developer")


class _PartIn(RequestModel):
    """A part of an item's content."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class _ItemIn(RequestModel):
    """An item of the input; which fields count depends on its type."""

    type: str = "message"
    role: str | None = None
    content: str | ObjectsOf[_PartIn] | None = None
    summary: ObjectsOf[_PartIn] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = "{}"
    output: str | ObjectsOf[_PartIn] | None = None


class _FormatIn(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class _TextIn(RequestModel):
    format: _FormatIn | None = None


class _ReasoningIn(RequestModel):
    effort: str | None = None
    summary: str | None = None


class _ToolIn(RequestModel):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseRequest(RequestModel):
    """The whole request."""

    refused: ClassVar[Mapping[str, str]] = {
        "background": "this server answers at once",
        "conversation": "give previous_response_id instead",
        "prompt": "this server stores no prompts",
    }

    model: str | None = None
    input: str | ObjectsOf[_ItemIn]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: ListOf[str] | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    tools: ObjectsOf[_ToolIn] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: _TextIn | None = None
    reasoning: _ReasoningIn | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())

    def sampling(self, limits: Limits) -> SamplingParams:
        """The sampling parameters.

        Raises:
            ApiError: A bound of the server is exceeded.
            InvalidArgumentError: A value is out of range.
        """
        if self.truncation == "auto":
            raise bad_value(
                "truncation", "truncation is 'auto'; this server cuts nothing off, so send less or 'disabled'"
            )
        cap = limits.max_output_tokens
        if cap is not None and (self.max_output_tokens or 0) > cap:
            raise bad_value(
                "max_output_tokens",
                f"max_output_tokens is {self.max_output_tokens}; this server allows at most {cap}",
            )
        return SamplingParams(
            max_new_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=self.wants_logprobs,
            top_logprobs=self.top_logprobs or 0,
        )

    def new_messages(self) -> list[dict[str, Any]]:
        """What the input adds to the conversation, as chat templates take it.

        Raises:
            ApiError: An item cannot be taken; names it.
        """
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        conversation = _Conversation()
        for index, item in enumerate(self.input):
            conversation.add(item, f"input[{index}]")
        if not conversation.messages:
            raise bad_value("input", "input is empty; give a text or an item")
        return conversation.messages

    def template_kwargs(self) -> dict[str, Any] | None:
        """Variables of the template."""
        if self.reasoning is None or self.reasoning.effort is None:
            return None
        more: dict[str, Any] = {"reasoning_effort": self.reasoning.effort}
        if self.reasoning.effort == "none":
            more["enable_thinking"] = False
        return more

    def tool_objects(self, limits: Limits) -> list[dict[str, Any]] | None:
        """The tools as chat templates take them; None if there are none."""
        if not self.tools:
            return None
        tools = []
        for index, tool in enumerate(self.tools):
            if tool.type != "function" or not tool.name:
                raise bad_value(
                    f"tools[{index}]",
                    f"tools[{index}] has the type {tool.type!r:.40} or no name; this server knows functions only",
                )
            tools.append(tool_object(tool.name, tool.description, tool.parameters))
        return bounded_tools(tools, limits)

    def tool_choice_value(self) -> str | dict[str, Any]:
        """``auto``, ``none``, ``required``, or an object that names a function."""
        choice = self.tool_choice if self.tool_choice is not None else "auto"
        names = [tool.name for tool in self.tools or ()]
        if isinstance(choice, str):
            if choice not in ("auto", "none", "required") or (choice == "required" and not names):
                raise bad_value(
                    "tool_choice", f"tool_choice is {choice!r:.60}; allowed: auto, none, or required with tools"
                )
            return choice
        if choice.get("type") != "function" or choice.get("name") not in names:
            raise bad_value("tool_choice", 'tool_choice is no {"type": "function", "name": ...} of one of the tools')
        return {"type": "function", "function": {"name": choice["name"]}}

    def format_object(self, limits: Limits) -> dict[str, Any] | None:
        """The form of the text in the words of a chat; None if it is free."""
        form = self.text.format if self.text is not None else None
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "json_object"}
        if form.schema_ is None:
            raise bad_value("text.format", "text.format has no schema")
        if len(json.dumps(form.schema_)) > limits.max_schema_bytes:
            raise bad_value("text.format", f"the schema has more than {limits.max_schema_bytes} bytes")
        inner = {"name": form.name or "answer", "schema": form.schema_, "strict": form.strict is not False}
        return {"type": "json_schema", "json_schema": inner}


class _Conversation:
    """The messages that items make. Calls and reasoning belong to the assistant's message beside them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._thinking: dict[str, Any] | None = None
        """The last message while it has only reasoning, to which a text may yet be added."""

    def add(self, item: _ItemIn, where: str) -> None:
        """Adds an item.

        Raises:
            ApiError: It cannot be taken.
        """
        if item.type == "reasoning":
            self._add_reasoning(item, where)
            return
        thinking, self._thinking = self._thinking, None
        if item.type == "message":
            if item.role not in _ROLES:
                role = str(item.role)[:40]
                raise bad_value(f"{where}.role", f"{where}.role is {role!r}; allowed: {', '.join(_ROLES)}")
            content = _text(item.content, f"{where}.content")
            if item.role == "assistant" and thinking is not None:
                thinking["content"] = content
            else:
                self.messages.append({"role": item.role, "content": content})
        elif item.type == "function_call_output":
            text = _text(item.output, f"{where}.output")
            self.messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": text})
        elif item.type == "function_call":
            if not item.name:
                raise bad_value(where, f"{where} is a function_call without a name")
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            self._assistant().setdefault("tool_calls", []).append(call)
        else:
            raise bad_value(where, f"{where} has the type {item.type!r:.40}, which this server does not know")

    def _add_reasoning(self, item: _ItemIn, where: str) -> None:
        if isinstance(item.content, str):
            raise bad_value(f"{where}.content", f"{where}.content is a text; allowed for reasoning: a list of parts")
        text = "".join([part.text or "" for part in item.content or item.summary or ()])
        if text:
            self._thinking = {"role": "assistant", "content": "", "reasoning_content": text}
            self.messages.append(self._thinking)

    def _assistant(self) -> dict[str, Any]:
        """The assistant's message at the end, made if there is none."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        return self.messages[-1]


def _text(content: str | Sequence[_PartIn] | None, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_value(where, f"{where} is neither a text nor a list of parts")
    texts = []
    for index, part in enumerate(content):
        if part.type not in ("input_text", "output_text", "text", "refusal"):
            raise bad_value(
                f"{where}[{index}]",
                f"{where}[{index}] has the type {str(part.type)[:40]!r}; this server reads text only",
            )
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise bad_value(f"{where}[{index}]", f"{where}[{index}] has no text")
        texts.append(text)
    return "".join(texts)
