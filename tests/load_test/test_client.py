"""Servers of all kinds, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.load_test import HttpClient, Load, NoAnswerError, Outcome, Sample, Target, first_model, run_load

SAMPLE = Sample(prompt="Say it", prompt_tokens=3, output_tokens=5)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(content: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}, **more}])


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


USAGE = event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 4})
DONE = b"data: [DONE]\n\n"
ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])


class Server:
    """Answers each request with the bytes that ``answer`` makes of its number and body, piece by piece."""

    def __init__(self, answer: Callable[[int, bytes], list[bytes]]) -> None:
        self._answer = answer
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.num_connections = 0
        self.stays_open = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append((first, headers, json.loads(body) if body else None))
                for piece in self._answer(len(self.requests), body):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if not self.stays_open:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[HttpClient]:
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        await client.close()
        listener.close()


def ask(answer: list[bytes], *, stays_open: bool = True, **options: Any) -> tuple[Outcome, Server]:
    server = Server(lambda _number, _body: answer)
    server.stays_open = stays_open

    async def run() -> Outcome:
        outcome = Outcome()
        async with served(server) as client:
            await asyncio.wait_for(Target(client=client, model="m", **options).ask(SAMPLE, outcome, 0.0), 60)
        return outcome

    return asyncio.run(run()), server


STREAM = [ROLE, text("a"), text("b"), text("c"), event(choices=[{"delta": {}, "finish_reason": "length"}]), USAGE, DONE]


@pytest.mark.parametrize(
    ("answer", "stays_open"),
    [
        ([CHUNKED, *map(chunk, STREAM), b"0\r\n\r\n"], True),
        ([CHUNKED, *map(chunk, STREAM), b"0\r\nX-Trailer: 1\r\n\r\n"], True),
        ([HEAD + f"Content-Length: {len(b''.join(STREAM))}\r\n\r\n".encode(), *STREAM], True),
        ([HEAD + b"\r\n", *STREAM], False),  # until the connection is closed
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n" + CHUNKED, *map(chunk, STREAM), b"0\r\n\r\n"], True),
        ([CHUNKED, *(chunk(each.replace(b"\n", b"\r\n")) for each in STREAM), b"0\r\n\r\n"], True),
        ([CHUNKED, chunk(b": a comment\n\n"), *map(chunk, STREAM), b"0\r\n\r\n"], True),
    ],
)
def test_a_stream_is_read_in_every_form_that_http_has(answer: list[bytes], stays_open: bool) -> None:
    outcome, _ = ask(answer, stays_open=stays_open)

    assert outcome.error is None
    assert outcome.text == "abc"
    assert (outcome.prompt_tokens, outcome.output_tokens) == (12, 4)
    assert outcome.finish_reason == "length"
    assert outcome.first is not None
    assert len(outcome.gaps) == 2
    assert outcome.latency == pytest.approx(outcome.first + sum(outcome.gaps))


def test_a_stream_cut_anywhere_is_read_the_same() -> None:
    whole = b"".join(STREAM)
    for size in (1, 3, 7, 50):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        outcome, _ = ask([CHUNKED, b"".join(map(chunk, pieces)), b"0\r\n\r\n"])
        assert (outcome.error, outcome.text, outcome.output_tokens) == (None, "abc", 4)


def test_the_first_token_is_the_first_that_has_text() -> None:
    answer = [CHUNKED, chunk(ROLE), *[chunk(b": wait\n\n")] * 20, chunk(text("a")), chunk(DONE), b"0\r\n\r\n"]

    outcome, _ = ask(answer)

    assert outcome.first is not None
    assert outcome.first >= 20 * 0.002


def test_without_usage_a_piece_counts_as_a_token() -> None:
    outcome, _ = ask([CHUNKED, *map(chunk, [ROLE, text("a"), text("b"), DONE]), b"0\r\n\r\n"])

    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.counted_by_server) == (2, 3, False)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "tool_calls"])
def test_reasoning_and_calls_are_output_as_well(field: str) -> None:
    value: object = [{"index": 0}] if field == "tool_calls" else "thought"
    delta = event(choices=[{"delta": {field: value}}])

    outcome, _ = ask([CHUNKED, chunk(delta), chunk(DONE), b"0\r\n\r\n"])

    assert outcome.error is None
    assert outcome.output_tokens == 1


def test_what_is_sent_is_what_openais_interface_wants() -> None:
    answer = [CHUNKED, chunk(text("a")), b"0\r\n\r\n"]

    _, chat = ask(answer, ignore_eos=True, extra={"temperature": 0.5, "top_k": 3})
    _, plain = ask([CHUNKED, chunk(event(choices=[{"text": "a"}])), b"0\r\n\r\n"], endpoint="completions")

    first, headers, body = chat.requests[0]
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Say it"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, _, body = plain.requests[0]
    assert first == "POST /v1/completions HTTP/1.1"
    assert (body["prompt"], "messages" in body, "ignore_eos" in body) == ("Say it", False, False)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([b'HTTP/1.1 400 No\r\nContent-Length: 34\r\n\r\n{"error": {"message": "too long"}}'], "status 400: too long"),
        ([b"HTTP/1.1 502 Bad\r\nContent-Length: 7\r\n\r\n<html> "], "status 502: <html>"),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"], "not a stream"),
        ([CHUNKED, chunk(text("a")), chunk(event(error={"message": "broke"})), b"0\r\n\r\n"], "with an error: broke"),
        ([CHUNKED, chunk(b"data: {nonsense\n\n"), b"0\r\n\r\n"], "property name"),
        ([CHUNKED, chunk(ROLE), chunk(DONE), b"0\r\n\r\n"], "no text"),
        ([CHUNKED, chunk(b"data: 5\n\n"), b"0\r\n\r\n"], "no object"),
        ([CHUNKED, b"zz\r\n"], "invalid literal"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "no HTTP server"),
    ],
)
def test_what_goes_wrong_is_told(answer: list[bytes], message: str) -> None:
    outcome, _ = ask(answer, stays_open=False)

    assert message in (outcome.error or "")


@pytest.mark.parametrize("answer", [[CHUNKED, chunk(text("a"))], [HEAD + b"Content-Length: 500\r\n\r\n", text("a")]])
def test_a_connection_that_breaks_off_is_a_failure(answer: list[bytes]) -> None:
    outcome, _ = ask(answer, stays_open=False)

    assert outcome.error == "the server closed the connection in the middle of the answer"


def test_a_request_that_does_not_end_in_time_is_a_failure() -> None:
    outcome, _ = ask([CHUNKED, chunk(text("a"))], timeout=0.2)

    assert outcome.error == "no end within 0.2 seconds"


def load(server: Server, count: int, *, times: list[float] | None = None, **options: Any) -> tuple[Load, float]:
    most = now = 0

    async def run() -> Load:
        nonlocal most, now
        found = Load()
        async with served(server) as client:
            target = Target(client=client, model="m")
            inner = target.ask

            async def counted(*arguments: Any) -> None:
                nonlocal most, now
                now += 1
                most = max(most, now)
                await inner(*arguments)
                now -= 1

            spy = type("Spy", (), {"ask": staticmethod(counted)})()
            work = run_load(spy, [SAMPLE] * count, times or [0.0] * count, load=found, **options)
            await asyncio.wait_for(work, 60)
        return found

    return asyncio.run(run()), most


def good(_number: int, _body: bytes) -> list[bytes]:
    return [CHUNKED, chunk(text("a")), chunk(DONE), b"0\r\n\r\n"]


def test_no_more_requests_are_open_than_allowed_and_connections_are_used_again() -> None:
    server = Server(good)

    found, most = load(server, 20, max_concurrency=3)

    assert [each.error for each in found.outcomes] == [None] * 20
    assert most == 3
    assert server.num_connections <= 3


def test_requests_do_not_wait_for_answers() -> None:
    server = Server(lambda _number, _body: [CHUNKED, *[chunk(b": wait\n\n")] * 100, *good(0, b"")[1:]])

    found, most = load(server, 10, times=[0.01 * number for number in range(10)])

    assert most > 5
    starts = [each.started for each in found.outcomes]
    assert starts == sorted(starts)
    assert all(start >= 0.01 * number for number, start in enumerate(starts))
    assert found.duration > 0.09


def test_a_connection_that_the_server_has_closed_meanwhile_is_no_failure() -> None:
    server = Server(good)
    server.stays_open = False

    found, _ = load(server, 6, max_concurrency=1)

    assert [each.error for each in found.outcomes] == [None] * 6
    assert server.num_connections == 6


def test_an_interrupted_load_keeps_what_was_done() -> None:
    def answer(number: int, body: bytes) -> list[bytes]:
        return good(number, body) if number <= 3 else [CHUNKED, *[chunk(text("x"))] * 100_000]

    async def run() -> Load:
        found, stop = Load(), asyncio.Event()
        async with served(Server(answer)) as client:

            def ended(_: Outcome) -> None:
                if sum(each.error is None and bool(each.text) for each in found.outcomes) == 3:
                    asyncio.get_running_loop().call_later(0.1, stop.set)

            target = Target(client=client, model="m")
            work = run_load(
                target, [SAMPLE] * 5, [0.05 * each for each in range(5)], load=found, stop=stop, on_end=ended
            )
            await asyncio.wait_for(work, 60)
        return found

    found = asyncio.run(run())

    assert found.interrupted
    assert [each.error for each in found.outcomes][:3] == [None] * 3
    assert {each.error for each in found.outcomes[3:]} == {"interrupted"}


def models(answer: bytes) -> str:
    async def run() -> str:
        body = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)
        async with served(Server(lambda _number, _body: [body])) as client:
            return await first_model(client)

    return asyncio.run(run())


def test_the_first_model_of_the_list_is_taken() -> None:
    assert models(b'{"data": [{"id": "one"}, {"id": "two"}]}') == "one"


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"data": []}', b"<html>"])
def test_a_server_without_models_is_told_with_the_way_out(answer: bytes) -> None:
    with pytest.raises(NoAnswerError, match="--model"):
        models(answer)


def test_a_server_that_is_not_there_is_told_with_its_address() -> None:
    with pytest.raises(NoAnswerError, match=r"cannot connect to http://127.0.0.1:9 \("):
        asyncio.run(first_model(HttpClient("http://127.0.0.1:9")))


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "http://x:99999"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="base URL is"):
        HttpClient(url)


def test_a_header_cannot_bring_lines_of_its_own() -> None:
    with pytest.raises(InvalidArgumentError, match="line break"):
        HttpClient("http://x", headers={"A": "b\r\nC: d"})


@pytest.mark.parametrize(
    ("path", "expected"), [("", "/v1/models"), ("/", "/v1/models"), ("/v1", "/v1/models"), ("/api/x/", "/api/x/models")]
)
def test_the_path_of_the_address_is_kept(path: str, expected: str) -> None:
    server = Server(lambda _number, _body: [b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"data": [{"id": "a"}]} '])

    async def run() -> None:
        async with served(server) as client:
            other = HttpClient(client.base_url + path)
            await first_model(other)
            await other.close()

    asyncio.run(run())

    assert server.requests[0][0] == f"GET {expected} HTTP/1.1"
