"""Tasks over an engine: text generation now; vision, speech and images when their pipelines exist."""

from __future__ import annotations

from onnx_genai.pipelines.text import LLM, ChatMessage, Prompt

__all__ = ["LLM", "ChatMessage", "Prompt"]
