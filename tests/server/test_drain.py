"""A server in a process of its own: start, signals, end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.running import chat_body, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
from onnx_genai.server import ModelSpec, Server, ServerConfig
from tests.server.running import SlowLLM
import logging
import time
logging.basicConfig(level=logging.INFO, format="%(message)s")
folder = Path(sys.argv[1])
class StuckLLM(SlowLLM):
    # Takes minutes to compile, and cannot be stopped.
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.engine.compile_grammar = lambda grammar: time.sleep(600)
server = Server([ModelSpec(name="slow", load=lambda: StuckLLM(folder, threads=1))],
                ServerConfig(port=0, drain_timeout=float(sys.argv[2])))
server.run()
print("ended", flush=True)
"""


class Process:
    """The server, and what it says."""

    def __init__(self, folder: Path, drain: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(drain)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self._wait_for(r"listening on (\S+)")
        self._wait_for("(ready)")

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.log.extend(iter(self._process.stderr.readline, ""))

    def _wait_for(self, pattern: str) -> str:
        end = time.perf_counter() + 30
        while time.perf_counter() < end:
            found = re.search(pattern, "".join(self.log))
            if found:
                return found.group(1)
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"no {pattern!r} in {''.join(self.log)}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str]:
        code = self._process.wait(20)
        self._reader.join(5)
        assert self._process.stdout is not None
        return code, self._process.stdout.read()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        self._reader.join(5)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start(scripted_package: Callable[..., Path]) -> Iterator[Callable[[float], Process]]:
    folder = scripted_package("slow words and no end to them " * 60)
    processes: list[Process] = []

    def go(drain: float) -> Process:
        processes.append(Process(folder, drain))
        return processes[-1]

    yield go
    for process in processes:
        process.kill()


def streamed(url: str, max_tokens: int, got: list[str], began: threading.Event) -> None:
    body = chat_body(stream=True, max_tokens=max_tokens)
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=20) as response:
        for line in response.iter_lines():
            began.set()
            got.append(line)


def test_a_signal_lets_what_runs_end_and_the_exit_code_is_0(start: Callable[[float], Process]) -> None:
    process = start(15)
    got: list[str] = []
    began = threading.Event()
    reader = threading.Thread(target=streamed, args=(process.url, 40, got, began))
    reader.start()
    assert began.wait(20)

    process.signal(signal.SIGTERM)
    code, out = process.end()
    reader.join(20)

    assert (code, out) == (0, "ended\n")
    assert "data: [DONE]" in got
    with pytest.raises(httpx.ConnectError):
        httpx.get(process.url + "/health")


def test_what_does_not_end_in_time_is_told_so(start: Callable[[float], Process]) -> None:
    process = start(0.5)
    got: list[str] = []
    began = threading.Event()
    reader = threading.Thread(target=streamed, args=(process.url, 1500, got, began))
    reader.start()
    assert began.wait(20)

    signalled = time.perf_counter()
    process.signal(signal.SIGTERM)
    code, _ = process.end()
    reader.join(20)

    assert code == 0
    assert time.perf_counter() - signalled < 10
    last = [line for line in got if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"


@pytest.mark.parametrize("times", [1, 2])
def test_no_end_waits_for_a_grammar_that_compiles(start: Callable[[float], Process], times: int) -> None:
    process = start(0.5 if times == 1 else 60)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
    statuses: list[int] = []

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            body = chat_body(response_format=form)
            statuses.append(httpx.post(process.url + "/v1/chat/completions", json=body, timeout=30).status_code)

    askers = [threading.Thread(target=ask) for _ in range(8)]
    for each in askers:
        each.start()
    wait_until(lambda: len(httpx.get(process.url + "/slots", timeout=20).json()) == 8, "the requests")

    for _ in range(times):
        process.signal(signal.SIGTERM)
        time.sleep(0.3)
    code, out = process.end()
    for each in askers:
        each.join(20)

    assert (code, out) == (0, "ended\n")
    assert statuses == [503] * 8 if times == 1 else 200 not in statuses


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(start: Callable[[float], Process], number: int) -> None:
    process = start(60)
    began = threading.Event()

    def read() -> None:
        with pytest.raises(httpx.HTTPError):
            streamed(process.url, 1500, [], began)

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(20)

    process.signal(number)
    time.sleep(0.5)
    process.signal(number)
    began_end = time.perf_counter()
    code, _ = process.end()
    reader.join(20)

    assert time.perf_counter() - began_end < 5
    assert code == 0
