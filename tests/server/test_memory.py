"""What thousands of requests leave in the server's memory: nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import Limits, ModelSpec
from tests.heap import Held, held
from tests.models.packages import write_checksum_package, write_scripted_package
from tests.server.running import RunningServer, wait_until
from tests.server.storm_clients import CHECKSUM, MAX_BODY_BYTES, SCRIPT, SCRIPTED, Findings, do_one

NUM_CLIENTS = 8
NUM_BEFORE = 1_000
"""Until caches are full (KV of prompts, sessions) and working memory has its size (regular expressions of threads)."""
NUM_REQUESTS = 2_000
MAX_NATIVE = 200
"""Bytes for each request that may be left of working memory that still grows; words that stayed were ten times that."""


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """Pytest keeps what is logged, such as asyncio's word that a client is gone, until the end of a test."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "stream", "choices", "leave", "oversized", "malformed", "session", "look"])
def test_requests_leave_nothing_in_memory(serve: Callable[..., RunningServer], tmp_path: Path, kind: str) -> None:
    checksum = write_checksum_package(tmp_path / CHECKSUM, "gqa")
    scripted = write_scripted_package(tmp_path / SCRIPTED, SCRIPT)
    server = serve(
        ModelSpec(name=CHECKSUM, load=lambda: AsyncLLM(checksum, threads=1, max_num_seqs=8, host_ram_limit="1MiB")),
        ModelSpec(name=SCRIPTED, load=lambda: AsyncLLM(scripted, threads=1, max_num_seqs=8, host_ram_limit="1MiB")),
        limits=Limits(max_body_bytes=MAX_BODY_BYTES, max_sessions=8),
    ).wait_ready()

    def after(num_requests: int, seed: int) -> Held:
        findings = Findings()
        asyncio.run(_requests(server.server.port, kind, num_requests, seed, findings))
        assert findings.wrong == []
        server.wait_idle()
        wait_until(lambda: not server.server.server_state.connections, "the end of connections")
        return held()

    before = after(NUM_BEFORE, 1)
    grown = after(NUM_REQUESTS, 2) - before

    assert grown.native < MAX_NATIVE * NUM_REQUESTS
    assert grown.blocks < NUM_REQUESTS


async def _requests(port: int, kind: str, count: int, seed: int, findings: Findings) -> None:
    draw = random.Random(seed)
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await do_one(kind, port, draw, findings)

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
