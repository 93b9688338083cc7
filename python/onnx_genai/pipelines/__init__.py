"""Tasks over an engine: text generation now; vision, speech and images when their pipelines exist."""

from __future__ import annotations

from onnx_genai.engine import find_ort_library, parse_memory_limit
from onnx_genai.pipelines.async_session import AsyncSession
from onnx_genai.pipelines.async_text import AsyncLLM
from onnx_genai.pipelines.session import Session
from onnx_genai.pipelines.text import LLM
from onnx_genai.pipelines.text_model import ChatMessage, Prompt, inspect

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncSession",
    "ChatMessage",
    "Prompt",
    "Session",
    "find_ort_library",
    "inspect",
    "parse_memory_limit",
]
