"""Tasks over an engine: text generation now; vision, speech and images when their pipelines exist."""

from __future__ import annotations

from onnx_genai import grammar
from onnx_genai.engine import (
    Profile,
    Recording,
    Verbosity,
    find_ort_library,
    llguidance_interface,
    parse_memory_limit,
    parse_providers,
    system_facts,
)
from onnx_genai.grammar import GrammarSpec
from onnx_genai.pipelines.async_embedder import AsyncEmbedder
from onnx_genai.pipelines.async_session import AsyncSession
from onnx_genai.pipelines.async_text import AsyncLLM
from onnx_genai.pipelines.embedder import Embedder
from onnx_genai.pipelines.encoder_facts import inspect_encoder
from onnx_genai.pipelines.encoder_model import ModelKind, model_kind, weights_bytes
from onnx_genai.pipelines.profile_run import ProfileRun
from onnx_genai.pipelines.session import Session
from onnx_genai.pipelines.text import LLM
from onnx_genai.pipelines.text_model import ChatMessage, Prompt, inspect

__all__ = [
    "LLM",
    "AsyncEmbedder",
    "AsyncLLM",
    "AsyncSession",
    "ChatMessage",
    "Embedder",
    "GrammarSpec",
    "ModelKind",
    "Profile",
    "ProfileRun",
    "Prompt",
    "Recording",
    "Session",
    "Verbosity",
    "find_ort_library",
    "grammar",
    "inspect",
    "inspect_encoder",
    "llguidance_interface",
    "model_kind",
    "parse_memory_limit",
    "parse_providers",
    "system_facts",
    "weights_bytes",
]
