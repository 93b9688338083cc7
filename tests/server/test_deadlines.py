"""A request's time runs from its arrival, whatever it waits for; and a grammar that compiles holds up no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.errors import DeadlineError, InvalidArgumentError
from onnx_genai.server import Limits, ModelSpec
from onnx_genai.server.model import CompletionOptions
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, wait_until

Serve = Callable[..., RunningServer]
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer", "multipleOf": 5}}}


class StuckLLM(AsyncLLM):
    """A model whose preparations of one kind wait until they are let go."""

    def stick(self, owner: Any, name: str, free: threading.Event) -> None:
        real = getattr(owner, name)

        def stuck(*args: Any, **kwargs: Any) -> Any:
            self.num_stuck += 1
            assert free.wait(60)
            return real(*args, **kwargs)

        self.num_stuck = 0
        setattr(owner, name, stuck)


@pytest.fixture
def stuck(scripted_package: Callable[..., Path]) -> Iterator[Callable[[str], ModelSpec]]:
    """``stuck(what)``: a model that is stuck in ``load``, ``template``, ``tokenizer`` or ``grammar`` till the end."""
    free = threading.Event()

    def spec(what: str) -> ModelSpec:
        folder = scripted_package(HELLO)

        def load() -> AsyncLLM:
            if what == "load":
                assert free.wait(60)
            llm = StuckLLM(folder, threads=1)
            owner, name = {
                "load": (None, ""),
                "template": (llm, "prepare_chat"),
                "tokenizer": (llm.tokenizer, "encode"),
                "grammar": (llm.engine, "compile_grammar"),
            }[what]
            if owner is not None:
                llm.stick(owner, name, free)
            return llm

        return ModelSpec(name="stuck", load=load, eager=what != "load")

    yield spec
    free.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", ["load", "template", "tokenizer", "grammar"])
def test_timeout_holds_before_the_engine_has_the_request(
    serve: Serve, stuck: Callable[[str], ModelSpec], what: str, stream: bool
) -> None:
    server = serve(stuck(what), limits=Limits(request_timeout=30))
    if what != "load":
        server.wait_ready()
    response = (
        server.http.post(
            "/v1/completions", json={"prompt": "Hi " * 3000, "stream": stream, "timeout": 0.3, "max_tokens": 1}
        )
        if what == "tokenizer"
        else server.chat(stream=stream, timeout=0.3, response_format=FORM)
    )

    assert response.status_code == 408, response.text
    error = response.json()["error"]
    assert error["code"] == "timeout"
    assert "timeout of 0.3 seconds" in error["message"]
    assert not server.server.state.live.open


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/tokenize"])
def test_the_limit_of_the_server_holds_everywhere(serve: Serve, stuck: Callable[[str], ModelSpec], path: str) -> None:
    server = serve(stuck("template"), limits=Limits(request_timeout=0.3)).wait_ready()
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages} if path != "/v1/responses" else {"input": "Hi"}
    response = server.http.post(path, json={**body, **({"max_tokens": 1} if path == "/v1/messages" else {})})

    assert response.status_code == 504, response.text
    assert not server.server.state.live.open


def test_grammars_that_compile_hold_up_no_other_request(serve: Serve, stuck: Callable[[str], ModelSpec]) -> None:
    server = serve(stuck("grammar")).wait_ready()
    with ThreadPoolExecutor(40) as pool:
        compiling = [pool.submit(server.chat, response_format=FORM, timeout=15) for _ in range(40)]
        wait_until(lambda: len(server.server.state.live.open) == 40, "the requests")
        entry = server.server.state.models.entries["stuck"]
        llm: Any = entry.model._llm  # type: ignore[union-attr]
        wait_until(lambda: llm.num_stuck == 2, "the compiler")

        answers = [server.chat().json() for _ in range(3)]

        assert [each["choices"][0]["message"]["content"] for each in answers] == [HELLO] * 3
        assert llm.num_stuck == 2, "threads that compile"
        assert not any(each.done() for each in compiling)
        server.server.state.live.abort_all()
        assert {each.result(20).status_code for each in compiling} == {503}


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_is_refused_names_its_field(hello: RunningServer, stream: bool) -> None:
    schema = {"type": "integer", "multipleOf": 999_983}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    for response, name in (
        (hello.chat(stream=stream, response_format={"type": "json_schema", "json_schema": form}), "response_format"),
        (
            hello.http.post("/v1/responses", json={"input": "Hi", "stream": stream, "text": {"format": form}}),
            "text.format",
        ),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", name)
        assert "multipleOf 999983" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_cannot_go_on_is_the_client_s_affair(
    serve: Serve, hello_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    server = serve(hello_spec).wait_ready()
    llm: Any = server.server.state.models.entries["org/hello"].model._llm  # type: ignore[union-attr]

    def refuse(*_: Any, **__: Any) -> Any:
        raise InvalidArgumentError("the grammar cannot go on: too many expressions")

    monkeypatch.setattr(llm.engine, "submit_async", refuse)
    response = server.chat(stream=stream, response_format=FORM)

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "response_format")
    assert "too many expressions" in error["message"]


def test_the_engine_gets_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("onnx_genai.server.model.time.perf_counter", lambda: now)
    options = CompletionOptions(timeout=3.0, priority=1, cache_salt="s", arrived=now)
    assert options.as_arguments() == {"timeout": 3.0, "priority": 1, "cache_salt": "s"}
    now = 102.25
    assert options.as_arguments()["timeout"] == 0.75
    now = 103.0
    with pytest.raises(DeadlineError, match="timeout of 3 seconds"):
        options.as_arguments()
    assert CompletionOptions(arrived=0.0).as_arguments()["timeout"] is None
