"""Run generative ONNX models on ONNX Runtime.

>>> from onnx_genai import LLM, SamplingParams
>>> with LLM("smollm2") as llm:  # doctest: +SKIP
...     print(llm.generate("The sky is", SamplingParams(max_new_tokens=8)).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_genai import errors
from onnx_genai.errors import GenAIError
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

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM, AsyncEmbedder, AsyncLLM, AsyncSession, Embedder, Session

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


def __getattr__(name: str) -> object:
    # These bring the compiled core and several libraries, a third of a second: commands such as --help do without, and
    # Ctrl-C in that time is handled by the command line, not by a traceback of an import.
    if name in ("LLM", "AsyncEmbedder", "AsyncLLM", "AsyncSession", "Embedder", "Session"):
        from onnx_genai import pipelines

        return {
            "LLM": pipelines.LLM,
            "AsyncEmbedder": pipelines.AsyncEmbedder,
            "AsyncLLM": pipelines.AsyncLLM,
            "AsyncSession": pipelines.AsyncSession,
            "Embedder": pipelines.Embedder,
            "Session": pipelines.Session,
        }[name]
    raise AttributeError(f"module 'onnx_genai' has no attribute {name!r}")
