"""Models of a server: names, one load for all, unloading, room for others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.errors import InvalidArgumentError, PackageError
from onnx_genai.server import Limits, ModelSpec
from onnx_genai.server.model import ServedModel
from onnx_genai.server.registry import ModelRegistry
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, chat_body, raw_request, wait_until

Serve = Callable[..., RunningServer]


class Loads:
    """Counts and delays the loads of a model."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self.go = threading.Event()
        self.go.set()
        self.made: list[AsyncLLM] = []
        self._folder = folder

    def __call__(self) -> AsyncLLM:
        self.count += 1
        assert self.go.wait(20)
        self.made.append(AsyncLLM(self._folder, threads=1))
        return self.made[-1]


@pytest.fixture
def loads(scripted_package: Callable[..., Path]) -> Loads:
    return Loads(scripted_package(HELLO))


def test_the_list_and_one_model_have_openais_form(hello: RunningServer) -> None:
    listed = hello.http.get("/v1/models").json()

    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("org/hello", "model", "onnx-genai")
    assert isinstance(model["created"], int)
    for name in ("org/hello", "org%2Fhello", "hello"):
        assert hello.http.get(f"/v1/models/{name}").json() == model
    missing = hello.http.get("/v1/models/org/nobody")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_while_models_load_the_server_is_up_but_not_healthy(serve: Serve, loads: Loads) -> None:
    loads.go.clear()
    server = serve(ModelSpec(name="m", load=loads))
    try:
        health = server.http.get("/health")
        listed = server.http.get("/v1/models").json()["data"][0]
    finally:
        loads.go.set()

    assert (health.status_code, health.json()["error"]["code"]) == (503, "loading")
    assert listed["state"] == "loading"
    server.wait_ready()
    assert server.http.get("/health").status_code == 200


def test_requests_that_come_at_once_load_a_model_once(serve: Serve, loads: Loads) -> None:
    loads.go.clear()
    server = serve(ModelSpec(name="m", load=loads, eager=False))
    assert server.http.get("/health").status_code == 200
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(server.chat) for _ in range(5)]
        wait_until(lambda: len(server.server.state.live.open) == 5, "the requests")
        loads.go.set()
        statuses = {answer.result(20).status_code for answer in answers}

    assert statuses == {200}
    assert loads.count == 1


def test_one_who_leaves_does_not_stop_the_load_for_others(serve: Serve, loads: Loads) -> None:
    from tests.server.running import raw_request

    loads.go.clear()
    server = serve(ModelSpec(name="m", load=loads, eager=False))
    with ThreadPoolExecutor(1) as pool:
        with raw_request(server, "/v1/completions", b'{"prompt": "x"}'):
            wait_until(lambda: loads.count == 1, "the load")
            other = pool.submit(server.chat)
            wait_until(lambda: len(server.server.state.live.open) == 2, "the other")
        wait_until(lambda: len(server.server.state.live.open) == 1, "the one that left")
        loads.go.set()

        assert other.result(20).status_code == 200
    assert loads.count == 1


def test_a_load_that_fails_is_told_without_details_and_tried_again(serve: Serve, loads: Loads) -> None:
    tries = []

    def load() -> AsyncLLM:
        tries.append(1)
        if len(tries) == 1:
            raise PackageError("/secret/place: is broken")
        return loads()

    server = serve(ModelSpec(name="m", load=load, eager=False))

    first, second = server.chat(), server.chat()

    assert (first.status_code, first.json()["error"]["code"]) == (500, "model_load_failed")
    assert "secret" not in first.text
    assert second.status_code == 200


def test_a_wanted_model_that_cannot_be_loaded_ends_the_server() -> None:
    def load() -> AsyncLLM:
        raise PackageError("broken")

    server = RunningServer([ModelSpec(name="m", load=load)])
    server.server.run()

    assert isinstance(server.server.failure, PackageError)


def test_an_unused_model_is_unloaded_and_loaded_again(serve: Serve, loads: Loads) -> None:
    server = serve(ModelSpec(name="m", load=loads, eager=False), model_ttl=0.2)
    server.chat()

    wait_until(lambda: server.server.state.models.default.state == "unloaded", "the unload")

    assert server.chat().status_code == 200
    assert loads.count == 2


def test_a_model_that_cannot_be_closed_does_not_keep_the_others_loaded(serve: Serve, loads: Loads) -> None:
    async def fails() -> None:
        raise RuntimeError("cannot be closed")

    specs = [ModelSpec(name=name, load=loads, eager=False) for name in ("a", "b")]
    server = serve(*specs, model_ttl=0.2)
    server.chat(model="a")
    loads.made[0].close = fails  # type: ignore[method-assign]
    models = server.server.state.models
    wait_until(lambda: models.entries["a"].state == "unloaded", "the first unload")

    server.chat(model="b")
    wait_until(lambda: models.entries["b"].state == "unloaded", "the second unload")


def test_a_model_in_use_is_not_unloaded(serve: Serve, slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, model_ttl=0.1).wait_ready()

    assert server.chat(max_tokens=30).status_code == 200


def test_the_one_unused_for_longest_makes_room(serve: Serve, loads: Loads) -> None:
    specs = [ModelSpec(name=name, load=loads, eager=False) for name in ("a", "b", "c")]
    server = serve(*specs, max_loaded_models=2)
    for name in ("a", "b", "a", "c"):
        assert server.chat(model=name).status_code == 200
        time.sleep(0.01)

    states = {name: entry.state for name, entry in server.server.state.models.entries.items()}

    assert states == {"a": "loaded", "b": "unloaded", "c": "loaded"}


@pytest.fixture
def thousand_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loaded model says that it holds as much."""
    monkeypatch.setattr(ServedModel, "held_bytes", lambda _: 1000)


def states(server: RunningServer) -> dict[str, str]:
    return {name: entry.state for name, entry in server.server.state.models.entries.items()}


@pytest.mark.usefixtures("thousand_bytes")
def test_models_leave_when_all_together_hold_too_much(serve: Serve, loads: Loads) -> None:
    specs = [ModelSpec(name=name, load=loads, eager=False) for name in ("a", "b", "c")]
    server = serve(*specs, max_model_bytes=2500)
    for name in ("a", "b", "a", "c"):
        assert server.chat(model=name).status_code == 200
        time.sleep(0.01)

    assert states(server) == {"a": "loaded", "b": "unloaded", "c": "loaded"}


def test_a_model_that_is_known_to_be_large_makes_room_before_it_loads(serve: Serve, loads: Loads) -> None:
    specs = [ModelSpec(name=name, load=loads, eager=False, size_bytes=2**30) for name in ("a", "b")]
    server = serve(*specs, max_model_bytes=2**30 + 1)
    assert server.chat(model="a").status_code == 200
    loads.go.clear()

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(server.chat, model="b")
        wait_until(lambda: loads.count == 2, "the second load")
        before = states(server)
        loads.go.set()

    assert before == {"a": "unloaded", "b": "loading"}
    assert second.result().status_code == 200


@pytest.mark.usefixtures("thousand_bytes")
def test_a_model_larger_than_the_bound_is_refused_and_freed(serve: Serve, loads: Loads, caplog: Any) -> None:
    server = serve(ModelSpec(name="a", load=loads, eager=False), max_model_bytes=10)

    refused = server.chat(model="a")

    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "model_load_failed")
    assert states(server) == {"a": "unloaded"}
    assert loads.made[0].engine.closed
    assert "max_model_bytes is 10" in caplog.text


def test_a_model_that_has_grown_makes_others_leave(serve: Serve, loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1000
    monkeypatch.setattr(ServedModel, "held_bytes", lambda _: size)
    specs = [ModelSpec(name=name, load=loads, eager=False) for name in ("a", "b")]
    server = serve(*specs, max_model_bytes=2500, model_ttl=60, limits=Limits(session_ttl=0.2))
    assert [server.chat(model=name).status_code for name in ("a", "b")] == [200, 200]
    assert states(server) == {"a": "loaded", "b": "loaded"}

    size = 2000

    wait_until(lambda: states(server) == {"a": "unloaded", "b": "loaded"}, "the unload")
    size = 3000  # alone; and what it grows to is no reason to refuse it later
    time.sleep(0.3)
    assert states(server) == {"a": "unloaded", "b": "loaded"}
    size = 1000
    assert [server.chat(model=name).status_code for name in ("a", "b")] == [200, 200]


def test_a_model_that_is_too_large_drives_nobody_out(serve: Serve, loads: Loads) -> None:
    specs = [
        ModelSpec(name="a", load=loads, eager=False),
        ModelSpec(name="b", load=loads, size_bytes=2**40, eager=False),
    ]
    server = serve(*specs, max_model_bytes=2**39)
    assert server.chat(model="a").status_code == 200

    refused = server.chat(model="b")

    assert (refused.status_code, loads.count) == (500, 1)
    assert states(server) == {"a": "loaded", "b": "unloaded"}


@pytest.mark.usefixtures("thousand_bytes")
def test_at_the_start_a_model_without_room_is_left_to_its_first_request(
    serve: Serve, loads: Loads, slow_spec: ModelSpec
) -> None:
    loads.go.clear()
    server = serve(slow_spec, ModelSpec(name="m", load=loads), max_model_bytes=1500)
    wait_until(lambda: loads.count == 1, "the second load")

    with raw_request(server, "/v1/chat/completions", json.dumps(chat_body(max_tokens=1000)).encode()):
        wait_until(lambda: len(server.server.state.live.open) == 1, "the request")
        loads.go.set()
        server.wait_ready()
        assert states(server)["m"] == "unloaded"

    wait_until(lambda: not server.server.state.live.open, "the end of the request")
    assert server.chat(model="m").status_code == 200


def test_with_a_bound_in_bytes_models_load_one_after_the_other(serve: Serve, loads: Loads) -> None:
    specs = [ModelSpec(name=name, load=loads, eager=False) for name in ("a", "b")]
    server = serve(*specs, max_model_bytes=2**40)
    loads.go.clear()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.chat, model=name) for name in ("a", "b")]
        wait_until(lambda: set(states(server).values()) == {"loading"}, "both loads")
        time.sleep(0.1)
        before = loads.count
        loads.go.set()

    assert before == 1
    assert [answer.result().status_code for answer in answers] == [200, 200]


@pytest.mark.usefixtures("thousand_bytes")
def test_models_in_use_keep_their_memory(serve: Serve, loads: Loads, slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, ModelSpec(name="m", load=loads, eager=False), max_model_bytes=1500)
    server.wait_ready()

    with raw_request(server, "/v1/chat/completions", json.dumps(chat_body(max_tokens=1000)).encode()):
        wait_until(lambda: len(server.server.state.live.open) == 1, "the request")
        response = server.chat(model="m")

    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert loads.made[-1].engine.closed


def test_two_that_load_at_once_do_not_keep_each_other_out(serve: Serve, loads: Loads) -> None:
    specs = [ModelSpec(name=name, load=loads, eager=False) for name in ("a", "b")]
    server = serve(*specs, max_loaded_models=1)
    with ThreadPoolExecutor(2) as pool:
        statuses = list(pool.map(lambda name: server.chat(model=name).status_code, ("a", "b")))

    assert 200 in statuses
    assert set(statuses) <= {200, 503}


def test_an_engine_that_has_ended_is_told_by_health(serve: Serve, loads: Loads) -> None:
    server = serve(ModelSpec(name="m", load=loads)).wait_ready()

    loads.made[0].engine.close()

    health, answer = server.http.get("/health"), server.chat()
    assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_dead")
    assert answer.status_code == 503
    assert server.http.get("/metrics").status_code == 200


def test_when_all_are_in_use_one_is_told_to_come_again(serve: Serve, loads: Loads, slow_spec: ModelSpec) -> None:
    server = serve(slow_spec, ModelSpec(name="m", load=loads, eager=False), max_loaded_models=1).wait_ready()
    with raw_request(server, "/v1/chat/completions", json.dumps(chat_body(max_tokens=1000)).encode()):
        wait_until(lambda: len(server.server.state.live.open) == 1, "the request")
        response = server.chat(model="m")

    assert response.status_code == 503
    assert response.headers["retry-after"]


def test_answers_carry_the_served_name_on_every_route(serve: Serve, loads: Loads) -> None:
    server = serve(ModelSpec(name="a/b", load=loads, aliases=("c",)), ModelSpec(name="d", load=loads)).wait_ready()

    for asked, served in (("a/b", "a/b"), ("c", "a/b"), ("d", "d")):
        assert server.chat(model=asked).json()["model"] == served
        assert server.chat_chunks(model=asked)[0]["model"] == served
        assert server.http.post("/v1/completions", json={"prompt": "x", "model": asked}).json()["model"] == served
        assert server.http.post("/tokenize", json={"prompt": "x", "model": asked}).json()["model"] == served


def test_no_model_and_two_of_one_name_are_refused(loads: Loads) -> None:
    with pytest.raises(InvalidArgumentError, match="no model"):
        ModelRegistry([])
    with pytest.raises(InvalidArgumentError, match="same name"):
        ModelRegistry([ModelSpec(name="a", load=loads), ModelSpec(name="a", load=loads)])
    with pytest.raises(InvalidArgumentError, match="two models"):
        ModelRegistry([ModelSpec(name="a", load=loads), ModelSpec(name="b", load=loads, aliases=("a",))])
