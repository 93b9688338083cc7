"""``POST /v1/chat/completions``: the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError
from onnx_genai.server.schemas.base import ListOf, ObjectsOf, RequestModel
from onnx_genai.server.schemas.sampling import GenerationRequest

__all__ = ["ChatCompletionRequest", "ChatMessageIn", "ResponseFormat", "ToolIn"]

_MEDIA = {"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file"}


class ChatMessageIn(RequestModel):
    """One message; what else it holds is for the model's chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | ObjectsOf[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: ObjectsOf[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None

    def for_template(self, index: int) -> dict[str, Any]:
        """The message as chat templates take it.

        Raises:
            ApiError: A part or call that no template can take.
        """
        where = f"messages[{index}]"
        message: dict[str, Any] = {"role": self.role, "content": self._content(where)}
        if self.role != "assistant" and self.content is None:
            raise ApiError(400, f"{where}.content is null; give a text", param=f"{where}.content", code="invalid_value")
        for name in ("name", "tool_call_id"):
            if getattr(self, name) is not None:
                message[name] = getattr(self, name)
        # Both names are in use for the same thing.
        reasoning = self.reasoning_content if self.reasoning_content is not None else self.reasoning
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                _checked_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(self.tool_calls)
            ]
        return message

    def _content(self, where: str) -> str | list[dict[str, Any]] | None:
        if not isinstance(self.content, list):
            return self.content
        for number, part in enumerate(self.content):
            place, kind = f"{where}.content[{number}]", part.get("type")
            if kind in _MEDIA:
                raise ApiError(
                    400,
                    f"{place} has the type {kind!r}, but this server reads text only",
                    param=place,
                    code="unsupported_content",
                )
            if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
                raise ApiError(
                    400,
                    f"{place} has the type {str(kind)[:40]!r}; allowed: text, with a text",
                    param=place,
                    code="invalid_value",
                )
        return [{"type": "text", "text": part[part["type"]]} for part in self.content]


class FunctionIn(RequestModel):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolIn(RequestModel):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: FunctionIn


class ResponseFormat(RequestModel):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatCompletionRequest(GenerationRequest):
    """The whole request."""

    refused: ClassVar[Mapping[str, str]] = {
        "functions": "give tools instead",
        "function_call": "give tool_choice instead",
        "audio": "this server answers with text",
        "web_search_options": "this server does not search",
        "structured_outputs": "give response_format instead",
        "guided_json": "give response_format instead",
        "guided_regex": "give response_format instead",
        "guided_choice": "give response_format with an enum instead",
        "guided_grammar": "give response_format instead",
        "grammar": "give response_format instead",
        "continue_final_message": "send the beginning of the answer with /v1/completions and /apply-template",
        "echo": "only /v1/completions repeats the prompt",
        "best_of": "only /v1/completions has it",
        "use_beam_search": "beam search is part of the Python interface only",
        "prompt_logprobs": "use /v1/completions with echo and logprobs",
    }

    messages: ObjectsOf[ChatMessageIn] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**63)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: ObjectsOf[ToolIn] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: ListOf[str] | None = None

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates take them."""
        return [message.for_template(index) for index, message in enumerate(self.messages)]

    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the template; ``reasoning_effort`` is one of them, and "none" also turns thinking off."""
        more: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            more["reasoning_effort"] = self.reasoning_effort
            if self.reasoning_effort == "none":
                more["enable_thinking"] = False
        return {**more, **(self.chat_template_kwargs or {})}

    def tool_objects(self, limits: Limits) -> list[dict[str, Any]] | None:
        """The tools as OpenAI's objects; None if there are none."""
        if not self.tools:
            return None
        if len(self.tools) > limits.max_tools:
            raise ApiError(
                400,
                f"tools has {len(self.tools)} entries; this server allows at most {limits.max_tools}",
                param="tools",
                code="invalid_value",
            )
        tools = [{"type": "function", "function": tool.function.model_dump(exclude_none=True)} for tool in self.tools]
        _check_size("tools", tools, limits)
        return tools

    def format_object(self, limits: Limits) -> dict[str, Any] | None:
        """The response format as OpenAI's object; None if the answer is free text."""
        if self.response_format is None or self.response_format.type == "text":
            return None
        value = self.response_format.model_dump(exclude_none=True)
        _check_size("response_format", value, limits)
        return value

    def tool_choice_value(self) -> str | dict[str, Any]:
        """``auto``, ``none``, ``required``, or an object that names a function.

        Raises:
            ApiError: It is none of them, or does not fit the tools.
        """
        choice = self.tool_choice if self.tool_choice is not None else "auto"
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(choice, str):
            if choice not in ("auto", "none", "required"):
                raise _choice_error(f"tool_choice is {choice!r:.60}; allowed: auto, none, required or a function")
            if choice == "required" and not names:
                raise _choice_error("tool_choice is 'required', but there are no tools")
            return choice
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or not isinstance(name, str):
            raise _choice_error('tool_choice is no {"type": "function", "function": {"name": ...}}')
        if name not in names:
            raise _choice_error(f"tool_choice names {name!r:.60}, which is not among the tools")
        return {"type": "function", "function": {"name": name}}

    def check_fields(self) -> None:
        """What concerns several fields at once."""
        self.check_stream_options()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400, "top_logprobs is only allowed with logprobs: true", param="top_logprobs", code="invalid_value"
            )
        if self.modalities is not None and set(self.modalities) - {"text"}:
            raise ApiError(
                400,
                "modalities has other entries than text; this server answers with text",
                param="modalities",
                code="unsupported_parameter",
            )


def _checked_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A call of the history. Arguments that are no JSON stay the text they are; the model wrote them so."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"{where} has no function with a name", param=where, code="invalid_value")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, (str, dict)):
        raise ApiError(
            400, f"{where}.function.arguments is neither a text nor an object", param=where, code="invalid_value"
        )
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        **({"id": call["id"]} if isinstance(call.get("id"), str) else {}),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _check_size(name: str, value: object, limits: Limits) -> None:
    size = len(json.dumps(value))
    if size > limits.max_schema_bytes:
        raise ApiError(
            400,
            f"{name} has {size} bytes; this server allows at most {limits.max_schema_bytes}",
            param=name,
            code="invalid_value",
        )


def _choice_error(text: str) -> ApiError:
    return ApiError(400, text, param="tool_choice", code="invalid_value")
