"""Sizes and edges: what was seen to go wrong elsewhere."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import Limits, ModelSpec
from onnx_genai.server.keeping import OwnedStore, held_bytes
from tests.models.packages import CHATML
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, answers_meanwhile, chat_body

Serve = Callable[..., RunningServer]
TEXT_PART = {"type": "text", "text": "a"}


@pytest.fixture
def window(serve: Serve, scripted_package: Callable[..., Path]) -> RunningServer:
    """A model with room for 64 tokens."""
    folder = scripted_package(HELLO, context_length=64)
    return serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_as_long_as_the_window_is_refused_and_one_shorter_gets_one_token(
    window: RunningServer, stream: bool
) -> None:
    def ask(count: int) -> Any:
        return window.http.post("/v1/completions", json={"prompt": [100] * count, "stream": stream, "max_tokens": 50})

    assert '"finish_reason":"length"' in ask(63).text.replace('": "', '":"')
    for count in (64, 65, 1000):
        response = ask(count)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert str(count) in error["message"]
        assert "64" in error["message"]


def test_a_prompt_that_the_memory_for_kv_cannot_hold_is_refused_and_not_to_be_sent_again(
    serve: Serve, checksum_package: Callable[..., Path]
) -> None:
    folder = checksum_package("gqa")
    spec = ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1, vram_limit=2**16))
    server = serve(spec).wait_ready()

    response = server.http.post("/v1/completions", json={"prompt": [5] * 300, "max_tokens": 1})

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("prompt", [" ", "   ", "\n", "\u200b", "\x00"])
def test_a_prompt_of_blanks_is_a_prompt(hello: RunningServer, prompt: str) -> None:
    response = hello.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 100})

    assert response.json()["choices"][0]["text"] == HELLO


@pytest.mark.parametrize("top_p", [1, 1.0, 0.5, 1e-9])
def test_any_share_up_to_the_whole_is_taken(hello: RunningServer, top_p: float) -> None:
    assert hello.chat(top_p=top_p).json()["choices"][0]["message"]["content"] == HELLO


@pytest.mark.parametrize("fields", [{"top_p": 0}, {"top_p": -0.1}, {"logit_bias": {"5": 1e300}}, {"seed": 2**64}])
def test_values_beyond_their_range_are_refused(hello: RunningServer, fields: dict[str, Any]) -> None:
    response = hello.chat(**fields)

    assert response.status_code == 400
    assert response.json()["error"]["param"].partition("[")[0] == next(iter(fields))


@pytest.mark.parametrize(
    ("path", "field", "entry", "limit"),
    [
        ("/v1/chat/completions", "messages", {"role": "user", "content": "a"}, 10_000),
        ("/v1/messages", "messages", {"role": "user", "content": "a"}, 10_000),
        ("/v1/responses", "input", {"role": "user", "content": "a"}, 10_000),
        ("/v1/sessions", "messages", {"role": "user", "content": "a"}, 10_000),
        ("/apply-template", "messages", {"role": "user", "content": "a"}, 10_000),
        ("/tokenize", "messages", {"role": "user", "content": "a"}, 10_000),
        ("/v1/completions", "prompt", 5, 2**20),
        ("/v1/completions", "prompt", "", 2**20),
        ("/detokenize", "tokens", 5, 2**20),
    ],
)
def test_a_list_that_is_too_long_is_one_short_error(
    hello: RunningServer, path: str, field: str, entry: Any, limit: int
) -> None:
    response = hello.http.post(path, json={field: [entry] * (limit + 1), "max_tokens": 1}, timeout=120)

    assert response.status_code == 400
    assert f"{field}: there are {limit + 1} entries; allowed: {limit}" in response.json()["error"]["message"]
    if path != "/v1/messages":
        assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [TEXT_PART] * 3001}] * 10}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"a": [{"b": {}}] * 9999}] * 2}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [TEXT_PART] * 3001}] * 10}),
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": [{"text": "a"}] * 3001}] * 10}),
    ],
    ids=range(4),
)
def test_objects_that_are_too_many_together_are_one_short_error(
    hello: RunningServer, path: str, body: dict[str, Any]
) -> None:
    response = hello.http.post(path, json={**body, "max_tokens": 1}, timeout=120)

    assert response.status_code == 400
    name = "input" if "input" in body else "messages"
    assert f"{name}: there are more than 30000 objects in the entries" in response.json()["error"]["message"]
    assert len(response.text) < 1000


def test_a_million_wrong_biases_are_one_error(hello: RunningServer) -> None:
    response = hello.chat(logit_bias={str(number): "x" for number in range(10**6)})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logit_bias"
    assert "'0'" in response.json()["error"]["message"]
    assert len(response.text) < 1000


@pytest.mark.parametrize(
    "text", ["a" * 10**6, " " * 10**6, "😀" * 10**5, "ab" * 10**5], ids=["a", "blank", "emoji", "ab"]
)
def test_health_answers_while_a_long_word_is_tokenised(hello: RunningServer, text: str) -> None:
    response = answers_meanwhile(hello, "/tokenize", {"prompt": text})

    back = hello.http.post("/detokenize", json={"tokens": response.json()["tokens"], "skip_special_tokens": True})
    assert back.json()["content"] == text
    response = hello.http.post("/v1/completions", json={"prompt": text}, timeout=120)
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_health_answers_while_a_template_works(serve: Serve, scripted_package: Callable[..., Path]) -> None:
    loops = "{% for a in range(3000) %}{% for b in range(300) %}{% endfor %}{% endfor %}"
    folder = scripted_package(HELLO, chat_template=loops + CHATML)
    server = serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(server.http.post, "/v1/chat/completions", json=chat_body(), timeout=120)
        while not work.done():
            assert server.http.get("/health").status_code == 200
            time.sleep(0.01)

    assert work.result().status_code in (200, 400)


def test_health_answers_while_a_large_schema_is_compiled(hello: RunningServer) -> None:
    schema = {
        "type": "object",
        "properties": {f"p{index}": {"enum": [f"v{index}_{each}" for each in range(20)]} for index in range(200)},
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with ThreadPoolExecutor(1) as pool:
        body = chat_body(response_format=form, max_tokens=2)
        work = pool.submit(hello.http.post, "/v1/chat/completions", json=body, timeout=120)
        while not work.done():
            assert hello.http.get("/health").status_code == 200
            time.sleep(0.01)

    assert work.result().status_code in (200, 400), work.result().text


def test_a_model_that_is_not_there_is_looked_for_nowhere(hello: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    resolve = socket.getaddrinfo

    def note(host: Any, *more: Any, **other: Any) -> Any:
        if host not in ("127.0.0.1", "localhost"):
            asked.append(host)
        return resolve(host, *more, **other)

    monkeypatch.setattr(socket, "getaddrinfo", note)
    image = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}]

    assert hello.chat(model="gpt2").status_code == 404
    assert (
        hello.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": image}]}).status_code
        == 400
    )
    assert asked == []


def test_code_in_a_package_is_never_run(serve: Serve, scripted_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(scripted_package(HELLO), folder)
    trap = tmp_path / "sprung"
    code = f"open({str(trap)!r}, 'w').close()\n"
    for name in ("modeling.py", "__init__.py", "tokenization.py", "conftest.py"):
        (folder / name).write_text(code, encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR.")
    server = serve(ModelSpec(name="m", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()

    assert server.chat().json()["choices"][0]["message"]["content"] == HELLO
    assert not trap.exists()


# What is kept between requests.


def test_one_client_cannot_push_out_the_sessions_of_another(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_sessions=2), api_keys=("a", "b")).wait_ready()

    def make(key: str) -> str:
        identifier: str = server.http.post("/v1/sessions", json={}, headers={"x-api-key": key}).json()["id"]
        return identifier

    def status(session: str, key: str) -> int:
        return server.http.get(f"/v1/sessions/{session}", headers={"x-api-key": key}).status_code

    kept = make("a")
    many = [make("b") for _ in range(5)]

    assert status(kept, "a") == 200
    assert [status(each, "b") for each in many] == [404, 404, 404, 200, 200]


def test_one_client_cannot_push_out_the_responses_of_another(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_sessions=2), api_keys=("a", "b")).wait_ready()

    def make(key: str) -> str:
        body = {"input": "x", "max_output_tokens": 1}
        identifier: str = server.http.post("/v1/responses", json=body, headers={"x-api-key": key}).json()["id"]
        return identifier

    kept = make("a")
    for _ in range(5):
        make("b")

    assert server.http.get(f"/v1/responses/{kept}", headers={"x-api-key": "a"}).status_code == 200


def test_the_memory_of_sessions_is_bounded(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_session_bytes=20_000)).wait_ready()

    def make(size: int) -> Any:
        return server.http.post("/v1/sessions", json={"messages": [{"role": "user", "content": "x" * size}]})

    too_large = make(30_000)
    ids = [make(7000).json()["id"] for _ in range(4)]
    statuses = [server.http.get(f"/v1/sessions/{each}").status_code for each in ids]

    assert (too_large.status_code, too_large.json()["error"]["code"]) == (400, "session_full")
    assert statuses == [404, 404, 200, 200]


def test_a_session_that_grows_pushes_out_its_owners_others_and_then_is_full(
    serve: Serve, hello_spec: ModelSpec
) -> None:
    server = serve(hello_spec, limits=Limits(max_session_bytes=6000)).wait_ready()
    other = server.http.post("/v1/sessions", json={"messages": [{"role": "user", "content": "y" * 3000}]}).json()["id"]
    session = server.http.post("/v1/sessions", json={}).json()["id"]
    headers = {"x-session-id": session}

    statuses = []
    for _ in range(20):
        response = server.http.post("/v1/chat/completions", json=chat_body("x" * 300), headers=headers)
        statuses.append(response.status_code)
        if response.status_code != 200:
            break

    assert statuses[:-1] == [200] * (len(statuses) - 1)
    assert response.json()["error"]["code"] == "session_full"
    assert server.http.get(f"/v1/sessions/{other}").status_code == 404
    rewound = server.http.post(f"/v1/sessions/{session}/rewind", json={"num_messages": 2})
    assert rewound.status_code == 200
    assert server.http.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code == 200


def test_the_memory_of_responses_is_bounded(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_session_bytes=40_000)).wait_ready()

    ids = [server.http.post("/v1/responses", json={"input": "x" * 900, "instructions": "y" * 900}).json()["id"]
           for _ in range(40)]  # fmt: skip
    statuses = [server.http.get(f"/v1/responses/{each}").status_code for each in ids]

    assert statuses[-1] == 200
    assert 0 < statuses.count(200) < 20
    assert statuses == sorted(statuses, reverse=True), "the last ones are kept"


def test_what_is_busy_stays_and_what_is_unused_for_longest_goes() -> None:
    busy = {"b"}
    store: OwnedStore[str] = OwnedStore(limit=2, max_bytes=100, ttl=60, size_of=len, is_busy=busy.__contains__)
    assert store.put("me", 1, "b")
    assert store.put("me", 2, "x")

    assert store.put("me", 3, "y")
    assert (store.get("me", 1), store.get("me", 2), store.get("me", 3)) == ("b", None, "y")
    busy.add("y")
    assert not store.put("me", 4, "z")
    assert store.of("me") == ["b", "y"]
    assert store.get("you", 1) is None
    assert not store.put("you", 1, "z" * 101)
    assert len(store) == 2


def test_memory_is_told_with_all_that_a_value_holds() -> None:
    text = "x" * 1000

    assert held_bytes(text) == text.__sizeof__() > 1000
    assert held_bytes([{"role": "user", "content": [{"type": "text", "text": text}]}] * 3) > 3 * 1500
