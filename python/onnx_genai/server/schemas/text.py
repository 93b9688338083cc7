"""Requests of the routes that only turn text into tokens and back."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onnx_genai.server.schemas.base import ListOf, ObjectsOf, RequestModel
from onnx_genai.server.schemas.chat import ChatMessageIn, ToolIn

__all__ = ["DetokenizeRequest", "RewindRequest", "SessionRequest", "TemplateRequest", "TokenizeRequest"]


class TemplateRequest(RequestModel):
    """``POST /apply-template``."""

    model: str | None = None
    messages: ObjectsOf[ChatMessageIn] = Field(min_length=1)
    tools: ObjectsOf[ToolIn] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(RequestModel):
    """``POST /tokenize``: a text (``prompt`` or ``content``), or messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: ObjectsOf[ChatMessageIn] | None = None
    tools: ObjectsOf[ToolIn] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(RequestModel):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: ListOf[int]
    skip_special_tokens: bool | None = None


class SessionRequest(RequestModel):
    """``POST /v1/sessions``."""

    model: str | None = None
    messages: ObjectsOf[ChatMessageIn] | None = None


class RewindRequest(RequestModel):
    """``POST /v1/sessions/{id}/rewind``."""

    num_messages: int
