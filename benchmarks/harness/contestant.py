"""A contestant: one runtime in a process of its own that takes requests as JSON lines, so that contestants take turns.

The process loads its model once and is idle (no spinning thread) while the others run. Loading and the first,
unmeasured job are not part of any figure.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""Where contestants run, so that their interpreter finds this package."""

LOAD_TIMEOUT = 300.0
JOB_TIMEOUT = 1800.0


class ContestantError(RuntimeError):
    """A contestant failed, ended or did not answer in time."""


@dataclass(frozen=True)
class Job:
    """Prompts (token ids, all of one length) and how many tokens to make for each; greedy, EOS ignored."""

    prompts: list[list[int]]
    new_tokens: int


@dataclass(frozen=True)
class Timing:
    """What one job took. The first token ends the prefill; decode is all later tokens."""

    prefill_seconds: float
    decode_seconds: float
    token_ids: list[list[int]]
    extra: dict[str, float]

    def prefill_rate(self, job: Job) -> float:
        return sum(map(len, job.prompts)) / self.prefill_seconds

    def decode_rate(self, job: Job) -> float:
        return len(job.prompts) * (job.new_tokens - 1) / self.decode_seconds


class Contestant:
    """A running contestant process.

    Args:
        name: How it is called in the report.
        command: Arguments of the interpreter, such as ``["-m", "benchmarks.offline.x_worker", folder]``; the module
            must speak the protocol of :func:`serve`.
        python: Interpreter of the environment that has the runtime.
        load_timeout: Seconds until the first line must have come.

    Raises:
        ContestantError: It did not start.
    """

    def __init__(
        self, name: str, command: list[str], *, python: str = sys.executable, load_timeout: float = LOAD_TIMEOUT
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.facts: dict[str, Any] = self._answer(load_timeout)

    def run(self, job: Job) -> Timing:
        answer = self.ask({"prompts": job.prompts, "new_tokens": job.new_tokens})
        return Timing(answer["prefill_seconds"], answer["decode_seconds"], answer["token_ids"], answer.get("extra", {}))

    def ask(self, request: Mapping[str, Any], *, timeout: float = JOB_TIMEOUT) -> dict[str, Any]:
        """Sends one request and returns the answer.

        Raises:
            ContestantError: It answered with an error, ended, or took longer than ``timeout`` seconds.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ContestantError(f"contestant {self.name} does not read any more: {error}") from error
        return self._answer(timeout)

    def close(self) -> None:
        """Lets the process end by itself, and ends it if it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # runtimes print lines of their own
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            self._process.kill()
            raise ContestantError(f"contestant {self.name} did not answer within {timeout:g} s") from None
        if answer is None:
            code = self._process.wait()
            raise ContestantError(f"contestant {self.name} ended with exit code {code}; its error output is above")
        if "error" in answer:
            self.close()
            raise ContestantError(f"contestant {self.name}: {answer['error']}")
        return answer

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(handle: Callable[[dict[str, Any]], Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """The contestant's side: answers each request line with an answer line until the input ends.

    Args:
        handle: Takes a request, returns the answer. An exception is answered as ``{"error": text}``
            and ends the process.
        facts: Printed first: versions, threads, whatever the report should hold.
    """
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            raise
        print(json.dumps(answer), flush=True)


def serve_generate(run: Callable[[list[list[int]], int], Any], facts: Mapping[str, Any]) -> None:
    """:func:`serve` for :class:`Job`.

    Args:
        run: ``run(prompts, new_tokens) -> (first_token_time, end_time, token_ids, extra)``, times by ``perf_counter``.
        facts: As for :func:`serve`.
    """

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        first, end, token_ids, extra = run(request["prompts"], request["new_tokens"])
        return {
            "prefill_seconds": first - start,
            "decode_seconds": end - first,
            "token_ids": token_ids,
            "extra": extra,
        }

    serve(handle, facts)
