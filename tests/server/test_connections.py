"""Connections whose other end does nothing are closed, and the others are not."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable

import pytest

from onnx_genai.server import Limits, ModelSpec
from tests.server.running import WAIT_SECONDS, RunningServer, raw_request, read_all, wait_until

HEAD_SECONDS = 0.4


@pytest.fixture
def strict(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> RunningServer:
    return serve(hello_spec, limits=Limits(head_timeout=HEAD_SECONDS)).wait_ready()


def connect(server: RunningServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server.port))
    connection.settimeout(WAIT_SECONDS)
    return connection


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
    # A reset may overtake the answer.
    assert answer.split(b" ")[:2] in ([b"HTTP/1.1", b"431"], [b""])
    assert not answer or b"larger than 256 KiB" in answer
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


BEHIND = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def request_bytes(body: dict[str, object], *more: bytes) -> bytes:
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"".join(line + b"\r\n" for line in more) + b"Content-Length: %d\r\n\r\n" % len(data) + data


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", [BEHIND + b"\r\n", BEHIND + b"X-A: " + b"a" * 100_000], ids=["whole", "begun"])
def test_a_client_that_hangs_up_behind_another_request_is_noticed(
    serve: Callable[..., RunningServer], slow_spec: ModelSpec, stream: bool, behind: bytes
) -> None:
    server = serve(slow_spec, limits=Limits(head_timeout=0.4)).wait_ready()
    with connect(server) as connection:
        connection.sendall(request_bytes({"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": stream}))
        wait_until(lambda: server.metric("num_running") == 1)
        connection.sendall(behind)
    wait_until(lambda: server.metric("num_running") == 0)
    server.wait_idle()


def test_what_comes_behind_a_running_request_is_not_taken_without_bound(
    serve: Callable[..., RunningServer], slow_spec: ModelSpec
) -> None:
    server = serve(slow_spec).wait_ready()
    line = b"X-A: " + b"a" * 60_000 + b"\r\n"
    sent = 0
    with connect(server) as connection:
        connection.sendall(request_bytes({"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True}) + BEHIND)
        wait_until(lambda: server.metric("num_running") == 1)
        connection.settimeout(1.0)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while sent < 100 << 20:
                connection.sendall(line)
                sent += len(line)
    assert sent < 30 << 20  # what the buffers of both ends hold


def test_trailers_are_no_headers(hello: RunningServer) -> None:
    body = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with connect(hello) as connection:
        connection.sendall(head + b"%x\r\n%b\r\n0\r\nContent-Type: application/json\r\n\r\n" % (len(body), body))

        assert read_all(connection).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_upgrade_is_declined_and_its_body_read(hello: RunningServer, protocol: bytes) -> None:
    request = request_bytes({"prompt": "Hi", "max_tokens": 1}, b"Connection: Upgrade", b"Upgrade: " + protocol)
    with connect(hello) as connection:
        connection.sendall(request + BEHIND + b"Connection: close\r\n\r\n")
        answers = read_all(connection)

    assert answers.startswith(b"HTTP/1.1 200 ")
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b'"text_completion"' in answers


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", b"400", b"Host"),
        (b"\x00\r\n\r\n", b"400", b"not valid HTTP/1.1"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400", b"Content-Length"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", b"501", b"Transfer-Encoding"),
    ],
)
def test_what_is_no_http_is_told(hello: RunningServer, sent: bytes, status: bytes, words: bytes) -> None:
    with connect(hello) as connection:
        connection.sendall(sent)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")

    assert head.split(b" ")[1] == status
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_http"
    assert words.decode() in error["message"]
