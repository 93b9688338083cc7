"""Tasks over an engine: text generation now; vision, speech and images when their pipelines exist."""

from __future__ import annotations

from onnx_genai.engine import find_ort_library, parse_memory_limit
from onnx_genai.pipelines.text import LLM, ChatMessage, Prompt, inspect

__all__ = ["LLM", "ChatMessage", "Prompt", "find_ort_library", "inspect", "parse_memory_limit"]
