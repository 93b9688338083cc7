"""Fixtures of the tests of pipelines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM


@pytest.fixture
def scripted(scripted_package: Callable[..., Path]) -> Any:
    """``scripted(script, **options)``: a model that says it."""
    with contextlib.ExitStack() as stack:
        yield lambda script, **options: stack.enter_context(LLM(scripted_package(script, **options), threads=1))


@pytest.fixture
def noise(noise_package: Callable[..., Path]) -> Any:
    """``noise(seed, **options)``: a model that writes at random."""
    with contextlib.ExitStack() as stack:
        yield lambda seed, **options: stack.enter_context(LLM(noise_package(seed, **options), threads=1))
