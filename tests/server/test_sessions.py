"""Conversations that the server remembers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import Limits, ModelSpec
from onnx_genai.server.errors import ApiError
from onnx_genai.server.sessions import SessionStore
from tests.models.checksum import checksum_generate
from tests.server.conftest import HELLO
from tests.server.running import RunningServer, chat_body, chunks_of, raw_request, wait_until

Serve = Callable[..., RunningServer]

BLOCK = 16
"""Tokens of a block of KV; whole blocks are found again."""
NUM_ANSWER = 16
WORDS_TEMPLATE = (
    "{% for message in messages %}{{ 'w5' if message['role'] == 'assistant' else 'w3' }} {{ message['content'] }} w4 "
    "{% endfor %}{% if add_generation_prompt %}w5{% endif %}"
)


def words(ids: Iterable[int]) -> str:
    """The text of the token ids with the checksum model's tokenizer."""
    return " ".join(f"w{each}" for each in ids)


def make(server: RunningServer, **fields: Any) -> str:
    response = server.http.post("/v1/sessions", json=fields)
    assert response.status_code == 201, response.text
    identifier: str = response.json()["id"]
    return identifier


def say(server: RunningServer, session: str, text: str = "Hi", **fields: Any) -> httpx.Response:
    return server.http.post("/v1/chat/completions", json=chat_body(text, **fields), headers={"X-Session-Id": session})


def messages(server: RunningServer, session: str) -> list[tuple[str, str]]:
    found = server.http.get(f"/v1/sessions/{session}").json()["messages"]
    return [(message["role"], message["content"]) for message in found]


def test_a_turn_sees_the_turns_before_it(hello: RunningServer) -> None:
    session = make(hello, messages=[{"role": "system", "content": "be brief"}])

    first = say(hello, session, "one")
    second = say(hello, session, "two")

    assert first.headers["x-session-id"] == session
    assert messages(hello, session) == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", HELLO),
        ("user", "two"),
        ("assistant", HELLO),
    ]
    assert second.json()["usage"]["prompt_tokens"] > first.json()["usage"]["prompt_tokens"] + 10


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_new_tokens_of_a_turn_are_computed(
    serve: Serve, checksum_package: Callable[..., Path], tmp_path: Path, stream: bool
) -> None:
    folder = shutil.copytree(checksum_package("gqa"), tmp_path / "words")
    (folder / "chat_template.jinja").write_text(WORDS_TEMPLATE, "utf-8")
    server = serve(ModelSpec(name="words", load=lambda: AsyncLLM(folder, threads=1))).wait_ready()
    session = make(server)
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    known: list[int] = []
    for said in (range(10, 60), range(11, 16), range(10, 40)):
        prompt = [*known, 3, *said, 4, 5]
        answer = checksum_generate(prompt, NUM_ANSWER)
        assert min(answer) > 2, "no special token, which would be no word of the answer"
        stepped = server.metric("num_step_tokens")

        response = say(server, session, words(said), temperature=0, max_tokens=NUM_ANSWER, **options)

        usage = chunks_of(response.text)[-1]["usage"] if stream else response.json()["usage"]
        assert messages(server, session)[-1] == ("assistant", words(answer))
        assert usage["prompt_tokens"] == len(prompt)
        # The last token of an answer goes through the model only when something follows it.
        cached = max(len(known) - 2, 0) // BLOCK * BLOCK
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        assert server.metric("num_step_tokens") - stepped == len(prompt) - cached + NUM_ANSWER - 1
        known = [*prompt, *answer, 4]


def test_a_streamed_turn_is_remembered(hello: RunningServer) -> None:
    session = make(hello)

    response = say(hello, session, "one", stream=True)

    assert chunks_of(response.text)
    assert messages(hello, session) == [("user", "one"), ("assistant", HELLO)]


def test_a_next_turn_may_follow_a_stream_at_once(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_open_requests=1)).wait_ready()
    session = make(server)

    for number in range(60):
        response = say(server, session, str(number), stream=bool(number % 3), max_tokens=1)
        assert response.status_code == 200, response.text

    assert len(messages(server, session)) == 120


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_a_next_request_may_follow_a_stream_at_once(
    serve: Serve, hello_spec: ModelSpec, path: str, fields: dict[str, Any]
) -> None:
    server = serve(hello_spec, limits=Limits(max_open_requests=1)).wait_ready()

    assert {server.http.post(path, json={**fields, "stream": True}).status_code for _ in range(40)} == {200}


def test_a_turn_that_fails_or_is_left_changes_nothing(slow: RunningServer) -> None:
    session = make(slow)

    assert say(slow, session, temperature=-1).status_code == 400
    assert say(slow, session, max_tokens=1000, timeout=0.1).status_code == 408
    sent = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1000}'
    with raw_request(slow, "/v1/chat/completions", sent, {"X-Session-Id": session}):
        wait_until(lambda: slow.http.get(f"/v1/sessions/{session}").json()["busy"], "the turn")
    wait_until(lambda: not slow.http.get(f"/v1/sessions/{session}").json()["busy"], "its end")

    assert messages(slow, session) == []
    assert say(slow, session, max_tokens=2).status_code == 200


def test_two_turns_at_once_are_a_conflict(slow: RunningServer) -> None:
    session = make(slow)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(say, slow, session, max_tokens=30)
        wait_until(lambda: slow.http.get(f"/v1/sessions/{session}").json()["busy"], "the turn")

        second = say(slow, session)
        rewound = slow.http.post(f"/v1/sessions/{session}/rewind", json={"num_messages": 0})

        assert running.result(20).status_code == 200
    assert (second.status_code, second.json()["error"]["code"]) == (409, "session_busy")
    assert rewound.status_code == 409


def test_a_fork_goes_its_own_way(hello: RunningServer) -> None:
    session = make(hello)
    say(hello, session, "one")

    child = hello.http.post(f"/v1/sessions/{session}/fork", content=b"").json()["id"]
    say(hello, child, "two")

    assert child != session
    assert len(messages(hello, session)) == 2
    assert len(messages(hello, child)) == 4


def test_a_rewind_forgets_the_last_messages(hello: RunningServer) -> None:
    session = make(hello)
    say(hello, session, "one")
    say(hello, session, "two")

    response = hello.http.post(f"/v1/sessions/{session}/rewind", json={"num_messages": 2})

    assert response.json()["num_messages"] == 2
    assert messages(hello, session) == [("user", "one"), ("assistant", HELLO)]
    assert hello.http.post(f"/v1/sessions/{session}/rewind", json={"num_messages": 3}).status_code == 400
    assert hello.http.post(f"/v1/sessions/{session}/rewind", json={"num_messages": -1}).status_code == 400


def test_a_deleted_session_is_gone(hello: RunningServer) -> None:
    session = make(hello)
    assert session in {each["id"] for each in hello.http.get("/v1/sessions").json()["data"]}

    assert hello.http.delete(f"/v1/sessions/{session}").json()["deleted"]

    for response in (hello.http.get(f"/v1/sessions/{session}"), say(hello, session)):
        assert (response.status_code, response.json()["error"]["code"]) == (404, "session_not_found")


@pytest.mark.parametrize("name", ["../x", "", "sess_", "x" * 5000, "a/../../b"])
def test_a_made_up_name_is_no_session(hello: RunningServer, name: str) -> None:
    assert say(hello, name).status_code == 404


def test_several_answers_and_another_model_do_not_fit_a_session(hello: RunningServer) -> None:
    session = make(hello)

    assert say(hello, session, n=2).json()["error"]["param"] == "n"
    assert say(hello, session, model="nobody").status_code == 404
    assert say(hello, session, model="hello").status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
def test_routes_that_know_no_sessions_refuse_the_header(hello: RunningServer, path: str) -> None:
    body = {"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}

    assert hello.http.post(path, json=body, headers={"x-session-id": "s"}).status_code == 400


def test_a_session_of_another_key_is_not_there(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, api_keys=("a", "b")).wait_ready()
    made = server.http.post("/v1/sessions", json={}, headers={"x-api-key": "a"}).json()["id"]

    foreign = server.http.get(f"/v1/sessions/{made}", headers={"x-api-key": "b"})
    own = server.http.get(f"/v1/sessions/{made}", headers={"x-api-key": "a"})

    assert (foreign.status_code, own.status_code) == (404, 200)
    assert server.http.get("/v1/sessions", headers={"x-api-key": "b"}).json()["data"] == []


def test_the_number_of_sessions_is_bounded(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, limits=Limits(max_sessions=2)).wait_ready()
    first, second = make(server), make(server)
    server.http.get(f"/v1/sessions/{first}")

    make(server)

    assert server.http.get(f"/v1/sessions/{second}").status_code == 404, "unused for longest"
    assert server.http.get(f"/v1/sessions/{first}").status_code == 200


def test_an_unused_session_is_forgotten() -> None:
    store = SessionStore(limit=10, max_bytes=10**6, ttl=0.0)
    session = store.create("me", "m")

    with pytest.raises(ApiError, match="no such session"):
        store.get(session.id, "me")


def test_ids_cannot_be_guessed() -> None:
    store = SessionStore(limit=1000, max_bytes=10**7, ttl=100.0)

    ids = {store.create("me", "m").id for _ in range(1000)}

    assert len(ids) == 1000
    assert all(len(each) >= 32 for each in ids)
