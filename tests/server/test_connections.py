"""Connections whose other end does nothing are closed, and the others are not."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable

import pytest

from onnx_genai.server import Limits, ModelSpec
from tests.server.running import WAIT_SECONDS, RunningServer, raw_request, wait_until

HEAD_SECONDS = 0.4


@pytest.fixture
def strict(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> RunningServer:
    return serve(hello_spec, limits=Limits(head_timeout=HEAD_SECONDS)).wait_ready()


def connect(server: RunningServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server.port))
    connection.settimeout(WAIT_SECONDS)
    return connection


def read_all(connection: socket.socket) -> bytes:
    whole = b""
    while piece := connection.recv(65536):
        whole += piece
    return whole


def num_connections(server: RunningServer) -> int:
    return len(server.server.server_state.connections)


@pytest.mark.parametrize(
    "sent", [b"G", b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"POST / HTTP/1.1\r\nX: " + b"a" * 500]
)
def test_a_head_that_does_not_end_is_answered_408(strict: RunningServer, sent: bytes) -> None:
    with connect(strict) as connection:
        connection.sendall(sent)

        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_head_of_any_size_is_not_taken(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> None:
    server = serve(hello_spec).wait_ready()
    line = b"X-" + b"a" * 1000 + b": " + b"b" * 60_000 + b"\r\n"
    answer = b""
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(line)
        with contextlib.suppress(ConnectionError):
            answer = read_all(connection)
    # h11 has a bound of its own; a reset may overtake either answer.
    assert answer.split(b" ")[:2] in ([b"HTTP/1.1", b"431"], [b"HTTP/1.1", b"400"], [b""])
    wait_until(lambda: num_connections(server) == 0)
    assert server.http.get("/health").status_code == 200


def test_the_rest_of_a_body_that_was_refused_early_is_no_head(
    serve: Callable[..., RunningServer], hello_spec: ModelSpec
) -> None:
    server = serve(hello_spec, api_keys=("right",)).wait_ready()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(server) as connection:
        connection.sendall(request + b"Content-Length: 2000000\r\n\r\n" + b" " * 1000)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b" " * 19_990)
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"431" not in answer


def test_a_head_that_comes_byte_by_byte_has_no_more_time_than_another(strict: RunningServer) -> None:
    answer = b""
    with connect(strict) as connection:
        connection.settimeout(0.05)
        began = time.perf_counter()
        for byte in b"GET /health HTTP/1.1\r\nX: " + b"a" * 10_000:
            try:
                connection.sendall(bytes([byte]))
                answer = connection.recv(100)
                break
            except TimeoutError:
                assert time.perf_counter() < began + WAIT_SECONDS
            except ConnectionError:
                break

    assert not answer or answer.startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_says_nothing_is_closed(strict: RunningServer) -> None:
    with connect(strict) as connection:
        assert read_all(connection) == b""


def test_a_second_request_of_a_connection_has_its_own_time(strict: RunningServer) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(strict) as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            time.sleep(2 * HEAD_SECONDS)  # idle, which is no head that does not end
        connection.sendall(request[:20])

        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_long_answer_is_not_cut(serve: Callable[..., RunningServer], slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, limits=Limits(head_timeout=0.2, slow_reader_timeout=0.2)).wait_ready()

    answer = server.chat(max_tokens=40)  # 20 ms a token

    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize("stream", [True, False])
def test_the_descriptor_of_a_reader_that_is_stuck_is_freed(
    serve: Callable[..., RunningServer], hello_spec: ModelSpec, stream: bool
) -> None:
    server = serve(hello_spec, limits=Limits(slow_reader_timeout=0.4)).wait_ready()
    before = num_connections(server)
    # More than the buffers of both ends hold.
    body = {"prompt": ["Hi"] * 64, "n": 16, "max_tokens": 64, "logprobs": 5, "stream": stream}
    with raw_request(server, "/v1/completions", json.dumps(body).encode(), receive_buffer=4096) as connection:
        connection.recv(100)
        wait_until(lambda: num_connections(server) == before + 1, "the connection")

        wait_until(lambda: num_connections(server) == before, "its end, while the reader is still there")
    server.wait_idle()
    assert server.metric("kv_hot_used_blocks") == 0
