"""A contestant: one runtime in a process of its own that takes jobs as JSON lines, so that contestants can alternate.

The process loads its model once and is idle (no spinning thread) while the others run. Loading and the first,
unmeasured job are not part of any figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any


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
        command: Python module and its arguments; it must speak the protocol of :func:`serve`.
        python: Interpreter of the environment that has the runtime.
    """

    def __init__(self, name: str, command: list[str], *, python: str = sys.executable) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.facts: dict[str, Any] = self._answer()

    def run(self, job: Job) -> Timing:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": job.prompts, "new_tokens": job.new_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Timing(answer["prefill_seconds"], answer["decode_seconds"], answer["token_ids"], answer.get("extra", {}))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"contestant {self.name} ended with exit code {self._process.wait()}")

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def serve(run: Any, facts: dict[str, Any]) -> None:
    """The contestant's side: answers each job line with a timing line until the input ends.

    Args:
        run: ``run(prompts, new_tokens) -> (first_token_time, end_time, token_ids, extra)``, times by ``perf_counter``
            relative to the call.
        facts: Printed first: versions, threads, whatever the report should hold.
    """
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        first, end, token_ids, extra = run(job["prompts"], job["new_tokens"])
        answer = {
            "prefill_seconds": first - start,
            "decode_seconds": end - first,
            "token_ids": token_ids,
            "extra": extra,
        }
        print(json.dumps(answer), flush=True)
