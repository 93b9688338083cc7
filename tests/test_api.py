"""The public names, pinned: a change here is a change for users (docs/versioning.md)."""

from __future__ import annotations

import inspect

import onnx_genai
from onnx_genai import errors


def test_public_names_are_these() -> None:
    assert sorted(onnx_genai.__all__) == [
        "AsyncEmbedder",
        "AsyncLLM",
        "AsyncSession",
        "Choice",
        "Chunk",
        "Embedder",
        "GenAIError",
        "LLM",
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
    assert all(hasattr(onnx_genai, name) for name in onnx_genai.__all__)


def test_every_error_is_a_genai_error_and_a_built_in_one() -> None:
    classes = [getattr(errors, name) for name in errors.__all__ if name != "GenAIError"]

    assert all(issubclass(each, errors.GenAIError) for each in classes)
    assert {each.__name__: each.__bases__[-1].__name__ for each in classes} == {
        "AbortedError": "RuntimeError",
        "BackendError": "RuntimeError",
        "ContextOverflowError": "InvalidArgumentError",
        "DeadlineError": "TimeoutError",
        "InternalError": "RuntimeError",
        "InvalidArgumentError": "ValueError",
        "NotFoundError": "LookupError",
        "PackageError": "ValueError",
        "QueueFullError": "ResourceExhaustedError",
        "ResourceExhaustedError": "RuntimeError",
        "UnsupportedError": "NotImplementedError",
    }


def test_options_are_keyword_only() -> None:
    parameters = list(inspect.signature(onnx_genai.LLM).parameters.values())

    assert [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY] == ["model"]
    assert all(
        each.kind is inspect.Parameter.KEYWORD_ONLY
        for each in inspect.signature(onnx_genai.SamplingParams).parameters.values()
    )
