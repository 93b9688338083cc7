"""Whatever goes wrong has one form, and the status that clients act upon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from onnx_genai import AsyncLLM
from onnx_genai.errors import (
    AbortedError,
    BackendError,
    ContextOverflowError,
    DeadlineError,
    GenAIError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    QueueFullError,
    ResourceExhaustedError,
    UnsupportedError,
)
from onnx_genai.server import ModelSpec
from onnx_genai.server.errors import api_error, error_body
from tests.server.running import RunningServer, raw_request, read_all

ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template", "/v1/sessions")


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert set(response.json()) == {"error"}, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidArgumentError("top_p is 2; allowed: less"), 400, "invalid_value"),
        (ContextOverflowError("the prompt has 9 tokens; the limit is 8"), 400, "context_length_exceeded"),
        (UnsupportedError("not here"), 400, "unsupported"),
        (NotFoundError("no such thing"), 404, "not_found"),
        (QueueFullError("no place"), 429, "overloaded"),
        (ResourceExhaustedError("no memory for the queue"), 503, "overloaded"),
        (DeadlineError("too late"), 504, "timeout"),
        (AbortedError("closed"), 503, "aborted"),
        (BackendError("/home/me/secret.onnx failed"), 500, "internal_error"),
        (InternalError("oops"), 500, "internal_error"),
        (ZeroDivisionError("oops"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_error_has_its_status(error: Exception, status: int, code: str) -> None:
    answer = api_error(error)

    assert (answer.status, answer.code) == (status, code)
    assert "secret" not in answer.message
    assert ("Retry-After" in answer.headers) == (code == "overloaded")
    assert set(error_body(answer)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("place", ["/home/me/model.onnx", "/a/b", "C:\\models\\x.onnx", "/srv/my-models/v1.2/"])
def test_where_files_of_the_server_lie_is_not_told(place: str) -> None:
    for text in (f"{place} has no template", f"see '{place}', please", f"x is {place}: y"):
        assert place not in api_error(UnsupportedError(text)).message
    assert api_error(InvalidArgumentError("n/m is 1/2; use /v1")).message == "n/m is 1/2; use /v1"


def test_every_typed_error_has_a_status_of_its_own_or_is_the_servers_fault() -> None:
    for kind in GenAIError.__subclasses__():
        assert 400 <= api_error(kind("x")).status <= 504


def test_a_parameter_is_named_as_clients_name_it() -> None:
    assert api_error(InvalidArgumentError("max_new_tokens is 0; allowed: 1")).param == "max_tokens"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1, 2]",
        b"null",
        b'"text"',
        b'{"model": "\xff\xfe"}',
        b'{"model": "\\ud800"}',
        b'{"model": "x", "messages": [{"role": "user", "content": "\\udfff"}], "prompt": "\\ud800"}',
        b'{"model": "x", "tools": [{"type": "function", "function": {"name": "\\ud800"}}]}',
        b'{"model": "x", "stop": ["\\udc00"]}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"tools": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"messages": {"a": 1}, "prompt": {"a": 1}, "tokens": "x", "num_messages": "x", "model": 5}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_bad_body_is_a_bad_request(hello: RunningServer, path: str, body: bytes) -> None:
    response = hello.http.post(path, content=body, headers={"content-type": "application/json"})

    assert response.status_code == 400, response.text
    assert error_of(response)["type"] == "invalid_request_error"
    assert hello.chat().status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_body_of_another_type_is_refused(hello: RunningServer, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}

    response = hello.http.post("/v1/chat/completions", content=b'{"messages": []}', headers=headers)

    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


def test_a_content_type_with_a_charset_is_taken(hello: RunningServer) -> None:
    body = json.dumps({"prompt": "x"}).encode()

    response = hello.http.post(
        "/v1/completions", content=body, headers={"content-type": "Application/JSON; charset=utf-8"}
    )

    assert response.status_code == 200


def test_an_unknown_path_and_method_are_told(hello: RunningServer) -> None:
    missing = hello.http.get("/v1/nothing")
    wrong = hello.http.get("/v1/chat/completions")

    assert (missing.status_code, error_of(missing)["code"]) == (404, "unknown_url")
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/V1/models", "//v1/models", "/%00"])
def test_strange_paths_are_not_found(hello: RunningServer, path: str) -> None:
    response = hello.http.get(path)

    assert response.status_code in (403, 404)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/sessions",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_told_with_the_names_there_are(hello: RunningServer, path: str, stream: bool) -> None:
    body: dict[str, Any] = {"model": "no-such-model", "messages": [{"role": "user", "content": "x"}]}
    body |= {"prompt": "x"} if path == "/v1/completions" else {}
    body = {"model": "no-such-model"} if path in ("/v1/embeddings", "/v1/rerank") else body
    body |= {"input": "x"} if path in ("/v1/responses", "/v1/embeddings") else {}
    body |= {"tokens": [5]} if path == "/detokenize" else {}
    body |= {"query": "x", "documents": ["x"]} if path == "/v1/rerank" else {}

    response = hello.http.post(path, json={**body, "stream": stream} if stream else body)

    assert response.status_code == 404
    error = error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "org/hello" in error["message"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_an_unknown_model_is_told_in_anthropics_form(hello: RunningServer, path: str) -> None:
    body = {"model": "no-such-model", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}

    response = hello.http.post(path, json=body)

    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    assert "org/hello" in response.json()["error"]["message"]


@pytest.fixture
def small(serve: Callable[..., RunningServer], hello_spec: ModelSpec) -> RunningServer:
    from onnx_genai.server import Limits

    return serve(hello_spec, limits=Limits(max_body_bytes=1000, body_timeout=0.3)).wait_ready()


def test_a_declared_body_over_the_limit_is_refused_unread(small: RunningServer) -> None:
    with raw_request(small, "/v1/completions", b"x", {"Content-Length": "20000000"}) as connection:
        answer = read_all(connection).decode()

    assert answer.startswith("HTTP/1.1 413 ")
    assert "larger than 1000 bytes" in answer


def test_a_chunked_body_over_the_limit_is_refused(small: RunningServer) -> None:
    def pieces() -> Any:
        for _ in range(5):
            yield b'"' + b"x" * 500

    response = small.http.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})

    assert response.status_code == 413
    assert "1000 bytes" in error_of(response)["message"]
    assert small.chat().status_code == 200


def test_a_client_that_has_sent_too_much_can_read_the_refusal(small: RunningServer) -> None:
    for _ in range(20):
        response = small.http.post("/v1/completions", json={"prompt": "x" * 3500})

        assert response.status_code == 413


def test_a_client_that_asks_before_sending_too_much_is_told_at_once(small: RunningServer) -> None:
    headers = {"Content-Length": "3000", "Expect": "100-continue"}
    with raw_request(small, "/v1/completions", b"", headers) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_is_not_waited_for(small: RunningServer) -> None:
    with raw_request(small, "/v1/completions", b"{", {"Content-Length": "100"}) as connection:
        answer = connection.recv(65536).decode()

    assert answer.startswith("HTTP/1.1 408 ")
    assert not small.server.state.live.open


def test_an_internal_error_tells_nothing_but_a_request_id(
    serve: Callable[..., RunningServer], scripted_package: Callable[..., Path]
) -> None:
    class Broken(AsyncLLM):
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("the secret of /home/me")

    folder = scripted_package("x")
    server = serve(ModelSpec(name="broken", load=lambda: Broken(folder, threads=1))).wait_ready()

    response = server.http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "abc-1"})

    assert response.status_code == 500
    assert "secret" not in response.text
    assert error_of(response)["type"] == "server_error"
    assert response.headers["x-request-id"] == "abc-1"


def test_routes_without_a_pipeline_say_so(hello: RunningServer) -> None:
    from onnx_genai.server.unavailable import UNAVAILABLE

    for path in UNAVAILABLE:
        response = hello.http.post(path, json={})
        assert response.status_code == 501
        assert error_of(response)["code"] == "not_implemented"
        assert response.headers["x-should-retry"] == "false"
