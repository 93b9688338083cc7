"""Clients that leave, read slowly or wait too long harm nobody."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from onnx_genai.server import Limits, ModelSpec
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, chat_body, raw_request, wait_until

Serve = Callable[..., RunningServer]


def body(**fields: object) -> bytes:
    return json.dumps(chat_body(**fields)).encode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place_within_a_step(slow: RunningServer, path: str, stream: bool) -> None:
    sent = body(stream=stream, prompt="x", max_tokens=1000)
    with raw_request(slow, path, sent) as connection:
        if stream:
            assert b"200 OK" in connection.recv(100)
        wait_until(lambda: slow.metric("num_running") == 1, "the request's start")

    left = time.perf_counter()
    slow.wait_idle()

    assert time.perf_counter() - left < 2.0, "a step takes 20 ms"


def test_a_client_that_leaves_the_queue_does_not_end_the_one_that_runs(slow: RunningServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: slow.chat(max_tokens=20).json())
        wait_until(lambda: slow.metric("num_running") >= 1, "the first request")

        with raw_request(slow, "/v1/chat/completions", body(max_tokens=1000)):
            wait_until(lambda: len(slow.server.state.live.open) == 2, "the second request")

        assert running.result(20)["usage"]["completion_tokens"] == 20
    slow.wait_idle()


def test_hang_ups_at_any_byte_leave_a_healthy_server(hello: RunningServer) -> None:
    rng = random.Random(7)
    for _ in range(40):
        sent = body(stream=rng.random() < 0.7, n=rng.randint(1, 3))
        cut = rng.randint(0, len(sent)) if rng.random() < 0.3 else len(sent)
        with raw_request(hello, "/v1/chat/completions", sent[:cut], {"Content-Length": str(len(sent))}) as connection:
            connection.settimeout(0.2)
            for _ in range(rng.randint(0, 3)):
                try:
                    connection.recv(rng.randint(1, 300))
                except TimeoutError:
                    break

    hello.wait_idle()
    assert hello.chat().json()["choices"][0]["message"]["content"] == HELLO


def test_one_more_than_the_limit_is_told_to_come_again(serve: Serve, slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, limits=Limits(max_open_requests=2)).wait_ready()
    with (
        raw_request(server, "/v1/chat/completions", body(max_tokens=1000)),
        raw_request(server, "/v1/chat/completions", body(max_tokens=1000, stream=True)),
    ):
        wait_until(lambda: len(server.server.state.live.open) == 2, "two requests")

        refused = server.chat()
        health = server.http.get("/health")

    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert health.status_code == 200
    server.wait_idle()
    assert server.chat(max_tokens=1).status_code == 200


def test_a_burst_is_admitted_up_to_the_limit_only(serve: Serve, slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, limits=Limits(max_open_requests=4)).wait_ready()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: server.chat(max_tokens=30).status_code, range(20)))

    assert set(answers) == {200, 429}
    assert 4 <= answers.count(200) < 20
    server.wait_idle()


def test_a_request_that_takes_too_long_ends_with_504(slow: RunningServer) -> None:
    response = slow.chat(max_tokens=1000, timeout=0.2)

    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"


def test_an_error_in_a_stream_that_has_begun_is_an_event_and_the_end(slow: RunningServer) -> None:
    response = slow.chat(stream=True, max_tokens=1000, timeout=0.3)

    assert response.status_code == 200
    events = [event for event in response.text.split("\n\n") if event and not event.startswith(":")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout"
    assert "[DONE]" not in response.text
    assert '"finish_reason":"stop"' not in response.text


def test_a_reader_that_takes_nothing_loses_its_stream_and_others_do_not_wait(
    serve: Serve, scripted_package: Callable[..., object]
) -> None:
    from pathlib import Path

    from onnx_genai import AsyncLLM

    folder = Path(str(scripted_package("many words to fill all buffers " * 120)))
    spec = ModelSpec(name="long", load=lambda: AsyncLLM(folder, threads=1))
    server = serve(spec, limits=Limits(slow_reader_timeout=1.0)).wait_ready()
    sent = json.dumps({"prompt": "x", "n": 8, "stream": True, "max_tokens": 3000, "logprobs": 20}).encode()

    with raw_request(server, "/v1/completions", sent, receive_buffer=4096):
        wait_until(lambda: bool(server.server.state.live.open), "the slow reader")
        began = time.perf_counter()
        other = server.chat(max_tokens=5)
        took = time.perf_counter() - began

        server.wait_idle()

    assert other.status_code == 200
    assert took < 3.0


def test_health_answers_while_much_is_computed(slow: RunningServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(slow.chat, max_tokens=40) for _ in range(4)]
        took = []
        while not all(each.done() for each in work):
            began = time.perf_counter()
            assert slow.http.get("/health").status_code == 200
            took.append(time.perf_counter() - began)

    assert sorted(took)[len(took) // 2] < 0.5
