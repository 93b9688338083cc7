"""The compiled engine from Python: open a package, submit token ids, take chunks. Sole user of ``_core``."""

from __future__ import annotations

from onnx_genai.engine.inspection import describe_graph
from onnx_genai.engine.limits import MemoryLimit, parse_memory_limit
from onnx_genai.engine.model_engine import EngineOptions, Generation, ModelEngine, PromptIds, TokenTable
from onnx_genai.engine.runtime import OrtLibrary, find_ort_library

__all__ = [
    "EngineOptions",
    "Generation",
    "MemoryLimit",
    "ModelEngine",
    "OrtLibrary",
    "PromptIds",
    "TokenTable",
    "describe_graph",
    "find_ort_library",
    "parse_memory_limit",
]
