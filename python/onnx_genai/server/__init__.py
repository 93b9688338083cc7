"""The HTTP server: OpenAI's interface over the engine."""

from __future__ import annotations

from onnx_genai.server.config import Limits, ModelSpec, ServerConfig
from onnx_genai.server.run import Server, serve
from onnx_genai.server.tracing import Tracing

__all__ = ["Limits", "ModelSpec", "Server", "ServerConfig", "Tracing", "serve"]
