"""The clients of the storm: each does one thing after another, well-behaved or not, and checks what it is told.

Every finished answer of the checksum model is compared with the model's own arithmetic, and every answer of the
scripted model with its script.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.models.checksum import VOCAB_SIZE, checksum_generate

__all__ = ["CHECKSUM", "MAX_BODY_BYTES", "SCRIPT", "SCRIPTED", "Findings", "client", "do_one"]

CHECKSUM = "checksum"
SCRIPTED = "scripted"
SCRIPT = "Hello the world and all who sail in it, one and all, for ever and ever."
MAX_BODY_BYTES = 100_000
REFUSED = (429, 503)
"""The server is full or ends; both are answers."""
_TIMEOUT = 120.0
_SHARED = [3 + index % 90 for index in range(40)]


@dataclass
class Findings:
    """What a storm saw."""

    done: Counter[str] = field(default_factory=Counter)
    """How often each thing was done."""
    checked: int = 0
    """Answers that were compared."""
    wrong: list[str] = field(default_factory=list)
    """What should not have been; the first hundred."""

    def blame(self, text: str) -> None:
        if len(self.wrong) < 100:
            self.wrong.append(text)


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection to the server, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, receive_limit: int = 2**16) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=receive_limit))

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        head = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
        if method == "POST":
            head.setdefault("Content-Type", "application/json")
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        await self.writer.drain()

    async def head(self) -> Answer:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.split("\r\n")
        pairs = (line.split(": ", 1) for line in lines if ": " in line)
        return Answer(int(first.split(" ")[1]), {name.lower(): value for name, value in pairs})

    async def answer(self) -> Answer:
        """A whole answer."""
        answer = await self.head()
        if "content-length" in answer.headers:
            answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
        elif answer.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                answer.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
        return answer

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


async def client(port: int, seed: int, findings: Findings, stop: asyncio.Event, think: float) -> None:
    """Does one thing after another until ``stop``; pauses between them by ``think`` seconds on average."""
    draw = random.Random(seed)
    kinds = list(_KINDS)
    weights = [weight for weight, _ in _KINDS.values()]
    while not stop.is_set():
        name = draw.choices(kinds, weights)[0]
        await do_one(name, port, draw, findings)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), draw.expovariate(1 / think) if think else 0.001)


async def do_one(name: str, port: int, draw: random.Random, findings: Findings) -> None:
    """Does one of the things that clients do, and notes what was wrong."""
    try:
        await asyncio.wait_for(_KINDS[name][1](port, draw, findings), _TIMEOUT)
    except asyncio.TimeoutError:
        findings.blame(f"{name}: no answer within {_TIMEOUT:g} s")
    except (OSError, asyncio.IncompleteReadError) as error:
        findings.blame(f"{name}: the connection broke: {error!r}")
    findings.done[name] += 1


def _completion(draw: random.Random, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """A request and the words of its answer."""
    own = [draw.randrange(3, VOCAB_SIZE) for _ in range(draw.randint(1, 30))]
    prompt = _SHARED[: draw.choice([0, 16, 40])] + own
    count = draw.randint(1, 40)
    body = {"model": CHECKSUM, "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, **fields}
    return body, [f"w{token}" for token in checksum_generate(prompt, count) if token >= 3]


def _check(findings: Findings, what: str, answer: Answer, text: str, expected: list[str]) -> None:
    findings.checked += 1
    if text.split() != expected:
        findings.blame(f"{what}: {text[:200]!r} instead of {' '.join(expected)[:200]!r}")


def _is_answered(findings: Findings, what: str, answer: Answer) -> bool:
    if answer.status in REFUSED:
        findings.done[f"{what} refused with {answer.status}"] += 1
        return False
    if answer.status != 200:
        findings.blame(f"{what}: status {answer.status} {answer.body[:200]!r}")
        return False
    return True


async def _whole(port: int, draw: random.Random, findings: Findings) -> None:
    """Some requests on one connection."""
    connection = await Connection.open(port)
    try:
        for number in range(draw.randint(1, 3)):
            body, expected = _completion(draw)
            try:
                await connection.send("POST", "/v1/completions", json.dumps(body).encode())
                answer = await connection.answer()
            except (OSError, asyncio.IncompleteReadError) as error:
                if number and not getattr(error, "partial", b""):
                    findings.done["connection was idle for too long"] += 1
                    return
                raise
            if _is_answered(findings, "whole", answer):
                _check(findings, "whole", answer, answer.json()["choices"][0]["text"], expected)
    finally:
        connection.close()


async def _choices(port: int, draw: random.Random, findings: Findings) -> None:
    body, expected = _completion(draw, n=draw.randint(2, 3))
    answer = await _ask(port, "POST", "/v1/completions", body)
    if _is_answered(findings, "choices", answer):
        for choice in answer.json()["choices"]:
            _check(findings, "choices", answer, choice["text"], expected)


async def _stream(port: int, draw: random.Random, findings: Findings) -> None:
    await _read_stream(port, draw, findings, pause=0.0)


async def _slow_stream(port: int, draw: random.Random, findings: Findings) -> None:
    await _read_stream(port, draw, findings, pause=draw.uniform(0.01, 0.1))


async def _read_stream(port: int, draw: random.Random, findings: Findings, *, pause: float) -> None:
    connection = await Connection.open(port, receive_limit=1024 if pause else 2**16)
    try:
        body, expected = _completion(draw, stream=True)
        await connection.send("POST", "/v1/completions", json.dumps(body).encode(), Connection="close")
        answer = await connection.head()
        while piece := await connection.reader.read(256 if pause else 2**16):
            answer.body += piece
            await asyncio.sleep(pause)
    finally:
        connection.close()
    if _is_answered(findings, "stream", answer):
        text, complete = _stream_text(answer.body)
        if not complete:
            findings.blame("stream: it ended without its end mark")
        _check(findings, "stream", answer, text, expected)


def _stream_text(raw: bytes) -> tuple[str, bool]:
    """Text of a stream, whose chunks of the transfer are still there; each event is in one of them."""
    data = [line[6:] for line in raw.split(b"\r\n") for line in line.split(b"\n") if line.startswith(b"data: ")]
    chunks = [json.loads(each) for each in data if each != b"[DONE]"]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if "choices" in chunk), data[-1:] == [b"[DONE]"]


async def _leave(port: int, draw: random.Random, findings: Findings) -> None:
    """Hangs up somewhere in a long answer."""
    connection = await Connection.open(port)
    body, _ = _completion(draw, stream=draw.random() < 0.7, max_tokens=3000)
    await connection.send("POST", "/v1/completions", json.dumps(body).encode())
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(connection.reader.read(draw.randint(1, 4000)), draw.choice([0.001, 0.02, 0.2]))
    connection.abort() if draw.random() < 0.5 else connection.close()


async def _stuck(port: int, draw: random.Random, findings: Findings) -> None:
    """Takes nothing of a long stream for some time, then leaves."""
    connection = await Connection.open(port, receive_limit=512)
    try:
        body, _ = _completion(draw, stream=True, max_tokens=3500, logprobs=5)
        await connection.send("POST", "/v1/completions", json.dumps(body).encode())
        await asyncio.sleep(draw.uniform(0.5, 12.0))
    finally:
        connection.abort()


async def _oversized(port: int, draw: random.Random, findings: Findings) -> None:
    body = json.dumps({"prompt": "x" * draw.choice([MAX_BODY_BYTES + 1, 2 * MAX_BODY_BYTES])}).encode()
    connection = await Connection.open(port)
    try:
        await connection.send("POST", "/v1/completions", body)
        answer = await connection.answer()
    finally:
        connection.close()
    if answer.status not in (413, *REFUSED):
        findings.blame(f"oversized: status {answer.status}")


_MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"[]", 400),
    (b'{"prompt": 5}', 400),
    (b'{"prompt": "a", "max_tokens": -1}', 400),
    (b'{"prompt": "a", "temperature": NaN}', 400),
    (b'{"prompt": "a", "model": "nobody"}', 404),
    (b"\xff\xfe", 400),
    (b'{"prompt": [999999999]}', 400),
    (b'{"prompt": ' + b"[" * 3000 + b"]" * 3000 + b"}", 400),
)


async def _malformed(port: int, draw: random.Random, findings: Findings) -> None:
    body, expected = draw.choice(_MALFORMED)
    connection = await Connection.open(port)
    try:
        await connection.send("POST", "/v1/completions", body)
        answer = await connection.answer()
    finally:
        connection.close()
    if answer.status not in (expected, *REFUSED):
        findings.blame(f"malformed {body[:40]!r}: status {answer.status} instead of {expected}")


async def _garbage(port: int, draw: random.Random, findings: Findings) -> None:
    """Bytes that are no HTTP, or half of a head or body, and then silence or nobody."""
    connection = await Connection.open(port)
    try:
        connection.writer.write(
            draw.choice(
                [
                    draw.randbytes(200),
                    b"\x16\x03\x01\x02\x00\x01\x00",
                    b"GET / HTTP/1.1\r\nHost: loc",
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 500\r\n\r\n{",
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                    b"GET /health HTTP/9.9\r\n\r\n",
                    b"",
                ]
            )
        )
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            # Some stay until the server has had enough of them.
            await asyncio.wait_for(connection.reader.read(1000), draw.choice([0.01, 1.0, 8.0, 90.0]))
    finally:
        connection.abort()


async def _session(port: int, draw: random.Random, findings: Findings) -> None:
    """A session from its beginning to its end, or left behind."""
    made = await _ask(port, "POST", "/v1/sessions", {"model": SCRIPTED})
    if made.status not in (200, 201):
        findings.blame(f"session: status {made.status} {made.body[:200]!r}")
        return
    session = made.json()["id"]
    for turn in range(draw.randint(1, 3)):
        body = {"messages": [{"role": "user", "content": f"turn {turn} of {draw.random()}"}]}
        body |= {"max_tokens": 200, "temperature": 0}
        answer = await _ask(port, "POST", "/v1/chat/completions", body, X_Session_Id=session)
        if answer.status == 404:  # others' sessions have taken its place
            findings.done["session forgotten"] += 1
            return
        if _is_answered(findings, "session", answer):
            findings.checked += 1
            said = answer.json()["choices"][0]["message"]["content"]
            if said != SCRIPT:
                findings.blame(f"session: {said!r} instead of {SCRIPT!r}")
    if draw.random() < 0.5:
        await _ask(port, "POST", f"/v1/sessions/{session}/fork", {})
        await _ask(port, "POST", f"/v1/sessions/{session}/rewind", {"num_messages": 0})
    if draw.random() < 0.7:
        await _ask(port, "DELETE", f"/v1/sessions/{session}", None)


async def _look(port: int, draw: random.Random, findings: Findings) -> None:
    path = draw.choice(["/metrics", "/slots", "/props", "/v1/models", "/openapi.json", "/nothing"])
    answer = await _ask(port, "GET", path, None)
    if answer.status != (404 if path == "/nothing" else 200):
        findings.blame(f"{path}: status {answer.status}")


async def _ask(port: int, method: str, path: str, body: dict[str, Any] | None, **headers: str) -> Answer:
    connection = await Connection.open(port)
    try:
        await connection.send(method, path, b"" if body is None else json.dumps(body).encode(), **headers)
        return await connection.answer()
    finally:
        connection.close()


_KINDS: Mapping[str, tuple[int, Callable[[int, random.Random, Findings], Awaitable[None]]]] = {
    "whole": (20, _whole),
    "stream": (20, _stream),
    "slow stream": (8, _slow_stream),
    "choices": (5, _choices),
    "leave": (20, _leave),
    "stuck": (4, _stuck),
    "oversized": (3, _oversized),
    "malformed": (6, _malformed),
    "garbage": (6, _garbage),
    "session": (5, _session),
    "look": (3, _look),
}
"""How often each thing is done, and what it is."""
