"""Fixtures of the tests in a browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.server.browser import Browser, chromium
from tests.server.page.reading import SCRIPTS, Open, pages
from tests.server.running import RunningServer, SlowLLM


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        assert not os.environ.get("ONNX_GENAI_REQUIRE_BROWSER"), "Chromium is missing"
        pytest.skip("no Chromium on this machine")
    with Browser(program, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def specs(scripted_package: Callable[..., Path]) -> list[ModelSpec]:
    def spec(name: str, script: str, template: str) -> ModelSpec:
        folder = scripted_package(script, chat_template=template)
        return ModelSpec(name=name, load=lambda: AsyncLLM(folder, threads=1))

    slow = scripted_package("slow words and no end to them " * 60)
    return [
        *(spec(name, *each) for name, each in SCRIPTS.items()),
        ModelSpec(name="slow", load=lambda: SlowLLM(slow, threads=1)),
    ]


@pytest.fixture(scope="module")
def server(specs: list[ModelSpec]) -> Iterator[RunningServer]:
    with RunningServer(specs) as server:
        yield server.wait_ready()


@pytest.fixture
def opened(browser: Browser, server: RunningServer) -> Iterator[Open]:
    """``opened(model)``: the page with a model chosen. At the end the browser must have had nothing to complain of."""
    with pages(browser, server) as open_page:
        yield open_page
