"""Chat templates with Hugging Face semantics: messages in, prompt text out."""

from __future__ import annotations

from onnx_genai.template.chat_template import ChatTemplate
from onnx_genai.template.guard import GuardedPrompt

__all__ = ["ChatTemplate", "GuardedPrompt"]
