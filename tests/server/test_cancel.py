"""Clients that leave, read slowly or wait too long harm nobody."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from onnx_genai.server import Limits, ModelSpec, strict_json
from onnx_genai.server import body as server_body
from onnx_genai.server.live import LiveRequest
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, chat_body, raw_request, wait_until

Serve = Callable[..., RunningServer]
STEPS_TO_NOTICE = 100
"""Generous, for a busy machine; the answer that was left would be of 1000 steps."""
JSON = {"content-type": "application/json"}


def body(**fields: object) -> bytes:
    return json.dumps(chat_body(**fields)).encode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks_within_some_steps(slow: RunningServer, path: str, stream: bool) -> None:
    """The server notices that the connection ended while the engine goes on; the step after that frees all."""
    sent = body(stream=stream, prompt="x", max_tokens=1000)
    with raw_request(slow, path, sent) as connection:
        if stream:
            assert b"200 OK" in connection.recv(100)
        wait_until(lambda: slow.metric("num_running") == 1, "the request's start")
        wait_until(lambda: slow.metric("kv_hot_used_blocks") > 0, "blocks that are held")
        stepped = slow.metric("num_steps")

    slow.wait_idle()

    assert slow.metric("kv_hot_used_blocks") == 0
    assert slow.metric("num_steps") - stepped < STEPS_TO_NOTICE


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
    for _ in range(100):
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


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_not_kept_where_there_is_no_place(
    serve: Serve, slow_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    parsed: list[int] = []

    def noted(raw: bytes) -> object:
        parsed.append(len(raw))
        return strict_json.parse_json(raw)

    monkeypatch.setattr(server_body, "parse_json", noted)
    server = serve(slow_spec, limits=Limits(max_open_requests=1)).wait_ready()
    large = body(text="x" * 100_000, max_tokens=1)
    pieces = (large[start : start + 10_000] for start in range(0, len(large), 10_000))
    with raw_request(server, "/v1/chat/completions", body(max_tokens=1000)):
        wait_until(lambda: len(server.server.state.live.open) == 1, "the request")

        refused = server.http.post("/v1/chat/completions", content=pieces if chunked else large, headers=JSON)

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert [size for size in parsed if size > 50_000] == []
    server.wait_idle()
    assert server.http.get("/health").status_code == 200, "the connection goes on"


def test_large_bodies_that_still_come_count_as_open(serve: Serve, slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, limits=Limits(max_open_requests=1)).wait_ready()
    large = body(max_tokens=1)[:-1] + b" " * 100_000 + b"}"
    with raw_request(server, "/v1/chat/completions", large[:-10], {"Content-Length": str(len(large))}) as first:
        wait_until(lambda: server.http.post("/tokenize", content=large, headers=JSON).status_code == 429, "a refusal")
        small = server.chat(max_tokens=1).status_code
        first.sendall(large[-10:])
        answer = first.recv(65536)

    assert small == 200
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_burst_is_admitted_up_to_the_limit_only(
    serve: Serve, slow_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    enter = LiveRequest.__enter__

    def counted(self: LiveRequest) -> LiveRequest:
        found = enter(self)
        opened.append(len(self._owner.open))
        return found

    monkeypatch.setattr(LiveRequest, "__enter__", counted)
    server = serve(slow_spec, limits=Limits(max_open_requests=4)).wait_ready()
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: server.chat(max_tokens=30).status_code, range(100)))

    assert set(answers) == {200, 429}
    assert max(opened) == 4
    assert answers.count(200) == len(opened), "each that was let in was answered"
    server.wait_idle()


def test_a_request_that_takes_longer_than_it_asked_for_ends_with_408(slow: RunningServer) -> None:
    response = slow.chat(max_tokens=1000, timeout=0.2)

    assert response.status_code == 408
    assert response.json()["error"]["code"] == "timeout"
    assert response.headers["x-should-retry"] == "false"


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
    patient = serve(spec, limits=Limits(slow_reader_timeout=600.0)).wait_ready()
    strict = serve(spec, limits=Limits(slow_reader_timeout=1.0)).wait_ready()
    sent = json.dumps({"prompt": "x", "n": 8, "stream": True, "max_tokens": 3000, "logprobs": 20}).encode()

    with raw_request(patient, "/v1/completions", sent, receive_buffer=4096):
        wait_until(lambda: bool(patient.server.state.live.open), "the slow reader")
        other = patient.chat(max_tokens=5)
        (still_open,) = patient.server.state.live.open.values()
    with raw_request(strict, "/v1/completions", sent, receive_buffer=4096):
        wait_until(lambda: bool(strict.server.state.live.open), "the slow reader")
        strict.wait_idle()

    assert other.status_code == 200
    assert still_open.route == "completions", "the slow reader, who had not been let down by then"


def test_health_answers_while_much_is_computed(slow: RunningServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(slow.chat, max_tokens=40) for _ in range(4)]
        took = []
        while not all(each.done() for each in work):
            began = time.perf_counter()
            assert slow.http.get("/health").status_code == 200
            took.append(time.perf_counter() - began)

    assert sorted(took)[len(took) // 2] < 0.5
