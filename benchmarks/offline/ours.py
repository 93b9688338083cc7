"""This project as a contestant and by itself: opening a model and watching tokens arrive."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.latency import Arrivals
from benchmarks.offline.workload import LOWEST_ID
from onnx_genai import LLM, SamplingParams


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark of ours alone has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--our-options", type=json.loads, default={}, metavar="JSON", help="more arguments of LLM")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    return parser


def open_llm(folder: Path | str, **options: Any) -> LLM:
    """Opens the model; options that are None are left at their defaults.

    Raises:
        SystemExit: This version of the package does not know an option.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(LLM.__init__).parameters
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        names = ", ".join(sorted(known.keys() - {"self", "model"}))
        raise SystemExit(f"onnx_genai.LLM has no option {', '.join(unknown)}; this version has {names}")
    return LLM(folder, **given)


def greedy(new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)


def facts(llm: LLM) -> dict[str, object]:
    """What the report says of a loaded model."""
    return {key: value for key, value in llm.info().items() if key != "ort_path"}


def vocab_size(llm: LLM, bound: int = 40000) -> int:
    """Ids for random prompts are drawn below it."""
    size = llm.info().get("vocab_size")
    return max(LOWEST_ID + 1, min(bound, size)) if isinstance(size, int) else bound


def metrics_difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after if name in before}


class Stream:
    """One request with a thread of its own that notes when tokens come.

    Args:
        on_tokens: Called in that thread after each piece.
    """

    def __init__(
        self,
        llm: LLM,
        prompt: Sequence[int],
        new_tokens: int,
        *,
        on_tokens: Callable[[Stream], None] | None = None,
    ) -> None:
        self.token_ids: list[int] = []
        self.cached_tokens = 0
        self._on_tokens = on_tokens
        self._error: BaseException | None = None
        self.arrivals = Arrivals(time.perf_counter())
        self._chunks = llm.stream(list(prompt), greedy(new_tokens))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def join(self, timeout: float = 600.0) -> Stream:
        """Waits for the end.

        Raises:
            TimeoutError: It did not end in ``timeout`` seconds.
            GenAIError: The request failed.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"a request did not end within {timeout:g} s; it has {len(self.token_ids)} tokens")
        if self._error is not None:
            raise self._error
        return self

    def _read(self) -> None:
        try:
            for chunk in self._chunks:
                if chunk.token_ids:
                    self.arrivals.add(time.perf_counter(), len(chunk.token_ids))
                    self.token_ids.extend(chunk.token_ids)
                if chunk.usage is not None:
                    self.cached_tokens = chunk.usage.cached_tokens
                if self._on_tokens is not None:
                    self._on_tokens(self)
        except BaseException as error:  # noqa: BLE001 - join() raises it
            self._error = error
