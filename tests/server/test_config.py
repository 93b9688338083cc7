"""What a server may be told, and streams put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.server import Limits, ModelSpec, ServerConfig
from onnx_genai.server.merging import merged
from tests.server.running import RunningServer


@pytest.mark.parametrize("name", ["max_body_bytes", "max_open_requests", "request_timeout", "max_output_tokens"])
@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), float("inf")])
def test_a_limit_is_a_number_above_0(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize(
    "name", ["request_timeout", "head_timeout", "body_timeout", "slow_reader_timeout", "session_ttl"]
)
def test_a_time_that_the_clocks_do_not_take_is_refused_at_the_start(name: str) -> None:
    assert getattr(Limits(**{name: 1e8}), name) == 1e8
    with pytest.raises(InvalidArgumentError, match=rf"{name} is 10000000000.0.*1e\+08"):
        Limits(**{name: 1e10})


def test_the_longest_time_is_one_that_requests_get(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(request_timeout=1e8, session_ttl=1e8, body_timeout=1e8)).wait_ready()

    assert server.chat().status_code == 200
    assert server.http.post("/v1/responses", json={"input": "Hi"}).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"port": -1},
        {"port": 70000},
        {"heartbeat": -1},
        {"drain_timeout": float("nan")},
        {"heartbeat": 1e10},
        {"model_ttl": 1e10},
        {"model_ttl": 0},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(fields))):
        ServerConfig(**fields)


def test_defaults_are_safe() -> None:
    config = ServerConfig()

    assert (config.host, config.api_keys, config.cors_origins) == ("127.0.0.1", (), ())
    assert config.limits.request_timeout is not None


class _Streams:
    """Streams that note when they are closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    async def count(self, number: int, stop: int, *, fails: bool = False) -> AsyncGenerator[int, None]:
        try:
            for value in range(stop):
                await asyncio.sleep(0)
                yield value
            if fails:
                raise ValueError(f"stream {number}")
        finally:
            self.closed.append(number)


def test_streams_are_merged_in_their_own_orders() -> None:
    async def run() -> list[tuple[int, int]]:
        streams = _Streams()
        return [item async for item in merged([streams.count(0, 5), streams.count(1, 200), streams.count(2, 0)])]

    items = asyncio.run(run())

    assert [value for number, value in items if number == 0] == list(range(5))
    assert [value for number, value in items if number == 1] == list(range(200))
    assert len(items) == 205


def test_a_stream_that_fails_ends_the_others() -> None:
    streams = _Streams()

    async def run() -> None:
        async for _ in merged([streams.count(0, 3, fails=True), streams.count(1, 10_000)]):
            pass

    with pytest.raises(ValueError, match="stream 0"):
        asyncio.run(run())

    assert sorted(streams.closed) == [0, 1]


def test_leaving_merged_streams_closes_them() -> None:
    streams = _Streams()

    async def run() -> None:
        stream = merged([streams.count(0, 1000), streams.count(1, 1000)])
        await anext(stream)
        await stream.aclose()

    asyncio.run(run())

    assert sorted(streams.closed) == [0, 1]
