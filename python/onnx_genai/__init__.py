"""Run generative ONNX models on ONNX Runtime.

>>> from onnx_genai import LLM, SamplingParams
>>> with LLM("smollm2") as llm:  # doctest: +SKIP
...     print(llm.generate("The sky is", SamplingParams(max_new_tokens=8)).text)
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, whose import takes time; type checkers know the name

if TYPE_CHECKING:
    from onnx_genai import errors
    from onnx_genai.errors import GenAIError
    from onnx_genai.pipelines import LLM, AsyncEmbedder, AsyncLLM, AsyncSession, Embedder, Session
    from onnx_genai.types import (
        Choice,
        Chunk,
        LogitsProcessor,
        RankedDocument,
        Result,
        Sampler,
        SamplingParams,
        TokenLogprob,
        Usage,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEmbedder",
    "AsyncLLM",
    "AsyncSession",
    "Choice",
    "Chunk",
    "Embedder",
    "GenAIError",
    "LogitsProcessor",
    "RankedDocument",
    "Result",
    "Sampler",
    "SamplingParams",
    "Session",
    "TokenLogprob",
    "Usage",
    "errors",
]

_PIPELINES = ("LLM", "AsyncEmbedder", "AsyncLLM", "AsyncSession", "Embedder", "Session")


def __getattr__(name: str) -> object:
    # What is imported here takes up to a second: commands such as --help do without the compiled core, and the command
    # line is ready for Ctrl-C before any of it.
    if name not in __all__:
        raise AttributeError(f"module 'onnx_genai' has no attribute {name!r}")
    from importlib import import_module

    if name == "errors":
        return import_module("onnx_genai.errors")
    home = "pipelines" if name in _PIPELINES else "errors" if name == "GenAIError" else "types"
    return getattr(import_module(f"onnx_genai.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
