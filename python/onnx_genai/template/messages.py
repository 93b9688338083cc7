"""Messages on their way into a template: checked, copied, and their content in the form that the template takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_genai.errors import InvalidArgumentError

__all__ = [
    "ArgumentForms",
    "ContentForms",
    "checked_messages",
    "fit_arguments",
    "fit_content",
    "has_arguments",
    "plain_copy",
]

MAX_DEPTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForms:
    """Which forms of ``content`` a template prints."""

    text: bool
    parts: bool
    tests_none: bool
    """It looks whether content is none, so that none must reach it."""
    knows_developer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentForms:
    """Which forms of a tool call's ``arguments`` a template prints; none if it prints no calls."""

    text: bool
    mapping: bool


def plain_copy(value: object, where: str, depth: int = 0) -> Any:
    """A deep copy in plain dicts and lists, so that a template sees the types it tests for and can change nothing.

    Raises:
        InvalidArgumentError: A text holds a lone surrogate, or the value is nested too deeply; ``where`` names it.
    """
    if depth > MAX_DEPTH:
        raise InvalidArgumentError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"{where} has the lone surrogate {value[error.start]!a} at character {error.start}; allowed: text that "
                "UTF-8 can hold"
            ) from error
        return value
    if isinstance(value, Mapping):
        return {
            plain_copy(key, where, depth + 1): plain_copy(item, f"{where}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain_copy(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    return value


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Copies of the messages, with every part of a content list in the form of an object.

    Raises:
        InvalidArgumentError: No list, empty, or a message without role or of a wrong type; names the index.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidArgumentError(f"messages is a {type(messages).__name__}; allowed: a list of messages")
    if not messages:
        raise InvalidArgumentError("messages is empty; give at least one message, such as {'role': 'user', ...}")
    checked = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidArgumentError(
                f"{where} is a {type(message).__name__}; allowed: an object with role and content"
            )
        copy = plain_copy(message, where)
        role = copy.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidArgumentError(f"{where}.role is {role!r}; allowed: a text such as 'user' or 'assistant'")
        if "content" in copy:
            copy["content"] = _checked_content(copy["content"], f"{where}.content")
        checked.append(copy)
    return checked


def _checked_content(content: object, where: str) -> object:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidArgumentError(f"{where} is a {type(content).__name__}; allowed: a text, a list of parts, or null")
    parts: list[object] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidArgumentError(f"{where}[{index}] is {part!r:.80}; allowed: an object with a 'type'")
        elif part["type"] == "text" and not isinstance(part.get("text"), str):
            raise InvalidArgumentError(f"{where}[{index}].text is {part.get('text')!r:.80}; allowed: a text")
        else:
            parts.append(part)
    return parts


def fit_content(messages: Sequence[dict[str, Any]], forms: ContentForms) -> list[dict[str, Any]]:
    """The messages with their content in a form that the template prints.

    Raises:
        InvalidArgumentError: A content has parts other than text and the template takes no parts; names the index.
    """
    fitted = []
    for index, message in enumerate(messages):
        message = dict(message)
        if message["role"] == "developer" and not forms.knows_developer:
            message["role"] = "system"
        content = message.get("content")
        if content is None and "content" in message and not forms.tests_none:
            message["content"] = ""
        elif isinstance(content, list) and not forms.parts:
            other = next((part["type"] for part in content if part["type"] != "text"), None)
            if other is not None:
                raise InvalidArgumentError(
                    f"messages[{index}].content has a part of type {other!r}, but this model's chat template takes "
                    "text only; leave it out or use a model that accepts it"
                )
            message["content"] = "".join(part["text"] for part in content)
        elif isinstance(content, str) and not forms.text:
            message["content"] = [{"type": "text", "text": content}]
        fitted.append(message)
    return fitted


def has_arguments(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message has a tool call, so that the form of its arguments matters."""
    return any(_functions(message) for message in messages)


def fit_arguments(messages: Sequence[Mapping[str, Any]], forms: ArgumentForms) -> None:
    """Puts the arguments of tool calls into a form that the template prints, in place.

    Raises:
        InvalidArgumentError: Arguments given as a text are no JSON object, and the template takes objects only.
    """
    for index, message in enumerate(messages):
        for call, function in _functions(message):
            where = f"messages[{index}].tool_calls[{call}].function.arguments"
            arguments = function.get("arguments")
            if isinstance(arguments, str) and forms.mapping and not forms.text:
                function["arguments"] = _parsed(arguments, where)
            elif isinstance(arguments, dict) and forms.text and not forms.mapping:
                function["arguments"] = json.dumps(arguments, ensure_ascii=False)


def _functions(message: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The parts of a message's tool calls that hold name and arguments, with the call's index."""
    calls = message.get("tool_calls")
    found = []
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and "arguments" in function:
            found.append((index, function))
    return found


def _parsed(arguments: str, where: str) -> dict[str, Any]:
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{where} is {arguments!r:.80}, which is no JSON ({error}); this model's chat template takes the arguments "
            "as an object"
        ) from error
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{where} is {arguments!r:.80}; allowed: a JSON object as text, or an object")
    return value
