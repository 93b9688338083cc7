"""The compiled engine from Python: open a package, submit token ids, take chunks. Sole user of ``_core``."""

from __future__ import annotations

from onnx_genai.engine.adapters import AdapterSet, AdapterSpans, LoadedAdapter
from onnx_genai.engine.async_generation import AsyncGeneration
from onnx_genai.engine.chunks import TokenTable
from onnx_genai.engine.encoder_engine import (
    EncoderEngine,
    EncoderOptions,
    EncoderText,
    StopFlag,
    describe_encoder,
    task_of,
)
from onnx_genai.engine.generation import Generation
from onnx_genai.engine.grammars import llguidance_interface
from onnx_genai.engine.identity import KvIdentity
from onnx_genai.engine.inspection import describe_graph
from onnx_genai.engine.limits import MemoryLimit, parse_memory_limit
from onnx_genai.engine.memory import KvMemory, plan_memory
from onnx_genai.engine.memory_use import MemoryUse
from onnx_genai.engine.model_engine import ModelEngine, PromptIds, prompt_array
from onnx_genai.engine.ngram_proposer import NgramProposer
from onnx_genai.engine.options import EngineOptions
from onnx_genai.engine.params import RequestOptions
from onnx_genai.engine.profile import Profile, Verbosity
from onnx_genai.engine.providers import parse_providers
from onnx_genai.engine.recording import Recording
from onnx_genai.engine.runtime import OrtLibrary, find_ort_library
from onnx_genai.engine.system import SystemFacts, system_facts

__all__ = [
    "AdapterSet",
    "AdapterSpans",
    "AsyncGeneration",
    "EncoderEngine",
    "EncoderOptions",
    "EncoderText",
    "EngineOptions",
    "Generation",
    "KvIdentity",
    "KvMemory",
    "LoadedAdapter",
    "MemoryLimit",
    "MemoryUse",
    "ModelEngine",
    "NgramProposer",
    "OrtLibrary",
    "Profile",
    "PromptIds",
    "Recording",
    "RequestOptions",
    "StopFlag",
    "SystemFacts",
    "TokenTable",
    "Verbosity",
    "describe_encoder",
    "describe_graph",
    "find_ort_library",
    "llguidance_interface",
    "parse_memory_limit",
    "parse_providers",
    "plan_memory",
    "prompt_array",
    "system_facts",
    "task_of",
]
