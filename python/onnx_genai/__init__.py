"""Run generative ONNX models on ONNX Runtime.

>>> from onnx_genai import LLM, SamplingParams
>>> with LLM("smollm2") as llm:  # doctest: +SKIP
...     print(llm.generate("The sky is", SamplingParams(max_new_tokens=8)).text)
"""

from __future__ import annotations

from onnx_genai import errors
from onnx_genai.errors import GenAIError
from onnx_genai.pipelines import LLM
from onnx_genai.types import (
    Choice,
    Chunk,
    LogitsProcessor,
    Result,
    Sampler,
    SamplingParams,
    TokenLogprob,
    Usage,
)

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Choice",
    "Chunk",
    "GenAIError",
    "LogitsProcessor",
    "Result",
    "Sampler",
    "SamplingParams",
    "TokenLogprob",
    "Usage",
    "errors",
]
