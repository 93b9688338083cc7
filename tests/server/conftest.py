"""Servers that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.server.running import RunningServer, SlowLLM

HELLO = "Hello the world 😀 END"
"""What the model ``org/hello`` answers."""

Serve = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def hello_spec(scripted_package: Callable[..., Path]) -> ModelSpec:
    folder = scripted_package(HELLO)
    return ModelSpec(name="org/hello", load=lambda: AsyncLLM(folder, threads=1), aliases=("hello",))


@pytest.fixture(scope="session")
def slow_spec(scripted_package: Callable[..., Path]) -> ModelSpec:
    """Says a long text slowly."""
    folder = scripted_package("slow words and no end to them " * 60)
    return ModelSpec(name="slow", load=lambda: SlowLLM(folder, threads=1))


@pytest.fixture(scope="session")
def hello(hello_spec: ModelSpec) -> Iterator[RunningServer]:
    """A server with the model ``org/hello``, also known as ``hello``."""
    with RunningServer([hello_spec]) as server:
        yield server.wait_ready()


@pytest.fixture(scope="session")
def slow(slow_spec: ModelSpec) -> Iterator[RunningServer]:
    """A server with a slow model that has much to say."""
    with RunningServer([slow_spec]) as server:
        yield server.wait_ready()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(*specs, **config)``: a server for one test."""
    servers: list[RunningServer] = []

    def start(*specs: ModelSpec, **config: Any) -> RunningServer:
        servers.append(RunningServer(specs, **config))
        return servers[-1].__enter__()

    yield start
    for server in servers:
        server.__exit__(None, None, None)
