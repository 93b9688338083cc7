"""What a load took, in the words and keys that vLLM's benchmark uses: :class:`Report`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.load_test.answer import Outcome
from onnx_genai.load_test.run import Load

__all__ = ["Goals", "Report"]

_METRICS: tuple[tuple[str, str, Callable[[Outcome], Sequence[float]]], ...] = (
    ("ttft", "Time to first token", lambda each: [each.first] if each.first is not None else []),
    ("tpot", "Time per later token", lambda each: [each.per_token] if each.per_token else []),
    ("itl", "Time between pieces", lambda each: each.gaps),
    ("e2el", "Whole request", lambda each: [each.latency]),
)
_LABEL_WIDTH = 42
_VALUE_WIDTH = 12


@dataclass(frozen=True, slots=True)
class Goals:
    """Limits, in seconds, that a good answer keeps; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @classmethod
    def parse(cls, goals: Sequence[str]) -> Goals | None:
        """Reads ``ttft:MS``, ``tpot:MS``, ``e2el:MS``; None for none.

        Raises:
            InvalidArgumentError: Another name, or no number above 0.
        """
        limits: dict[str, float] = {}
        for goal in goals:
            name, _, text = goal.partition(":")
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if name not in ("ttft", "tpot", "e2el") or not 0 < value < math.inf:
                raise InvalidArgumentError(
                    f"goodput is {goal!r}; write ttft:MS, tpot:MS or e2el:MS with milliseconds above 0"
                )
            limits[name] = value / 1e3
        return cls(**limits) if limits else None

    def met_by(self, outcome: Outcome) -> bool:
        """Whether an answer kept all limits."""
        values = (outcome.first, outcome.per_token, outcome.latency)
        limits = (self.ttft, self.tpot, self.e2el)
        return all(limit is None or (value or 0.0) <= limit for value, limit in zip(values, limits, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a load.

    Rates are of the whole load: divided by its duration. Times are of answers that were completed.
    """

    load: Load
    goals: Goals | None = None
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)

    @property
    def completed(self) -> list[Outcome]:
        """The requests that got a whole answer."""
        return [outcome for outcome in self.load.outcomes if outcome.error is None]

    @property
    def failures(self) -> Counter[str]:
        """How often requests failed for each reason; given up ones are not among them."""
        errors = (outcome.error for outcome in self.load.outcomes)
        return Counter(error for error in errors if error is not None and error != "interrupted")

    def figures(self) -> dict[str, Any]:
        """All numbers under vLLM's keys; times in milliseconds. What was not measured is None."""
        done = self.completed
        duration = self.load.duration or math.inf
        inputs = sum(each.prompt_tokens for each in done)
        outputs = sum(each.output_tokens for each in done)
        peak_tokens, peak_requests = _peaks(self.load.outcomes)
        value: dict[str, Any] = {
            "duration": self.load.duration,
            "completed": len(done),
            "failed": sum(self.failures.values()),
            "interrupted": self.load.interrupted,
            "total_input_tokens": inputs,
            "total_output_tokens": outputs,
            "request_throughput": len(done) / duration,
            "request_goodput": None,
            "output_throughput": outputs / duration,
            "total_token_throughput": (inputs + outputs) / duration,
            "max_output_tokens_per_s": peak_tokens,
            "max_concurrent_requests": peak_requests,
            "total_chunks": sum(len(each.gaps) + 1 for each in done),
            "tokens_counted_by": "server" if all(each.counted_by_server for each in done) else "chunks",
        }
        if self.goals is not None:
            value["request_goodput"] = sum(map(self.goals.met_by, done)) / duration
        for name, _, values_of in _METRICS:
            value.update(self._spread(name, [1e3 * each for outcome in done for each in values_of(outcome)]))
        return value

    def details(self) -> dict[str, Any]:
        """Lists with an entry for each request that was sent; times in seconds."""
        sent = self.load.outcomes
        return {
            "input_lens": [each.prompt_tokens for each in sent],
            "output_lens": [each.output_tokens for each in sent],
            "start_times": [each.started for each in sent],
            "ttfts": [each.first for each in sent],
            "itls": [each.gaps for each in sent],
            "latencies": [each.latency for each in sent],
            "generated_texts": [each.text for each in sent],
            "errors": [each.error or "" for each in sent],
        }

    def table(self) -> str:
        """The figures for people."""
        figures = self.figures()
        rows: list[tuple[str, object]] = [
            ("Completed requests", figures["completed"]),
            ("Failed requests", figures["failed"]),
            ("Duration (s)", figures["duration"]),
            ("Input tokens", figures["total_input_tokens"]),
            ("Output tokens", figures["total_output_tokens"]),
            ("Requests/s", figures["request_throughput"]),
        ]
        if figures["request_goodput"] is not None:
            rows.append(("Good requests/s", figures["request_goodput"]))
        rows += [
            ("Output tokens/s", figures["output_throughput"]),
            ("Output tokens/s, best second", figures["max_output_tokens_per_s"]),
            ("All tokens/s", figures["total_token_throughput"]),
            ("Most requests at once", figures["max_concurrent_requests"]),
        ]
        lines = [_line(label, [value]) for label, value in rows]
        if figures["tokens_counted_by"] == "chunks":
            lines.append("The server told no token counts: a piece of a stream counts as one token.")
        heads = ["mean", "median", "std", *(f"p{_number(p)}" for p in self.percentiles if p != 50)]
        lines += ["", _line("Times (ms)", heads)]
        for name, label, _ in _METRICS:
            lines.append(_line(f"{label} ({name.upper()})", [figures[f"{head}_{name}_ms"] for head in heads]))
        for reason, count in self.failures.most_common(5):
            lines.append(f"\n{count} failed: {reason}")
        return "\n".join(lines)

    def _spread(self, name: str, values: Sequence[float]) -> Mapping[str, float | None]:
        keys = ["mean", "median", "std", *(f"p{_number(p)}" for p in self.percentiles)]
        if not values:
            return {f"{key}_{name}_ms": None for key in keys}
        array = np.asarray(values)
        found = [array.mean(), np.median(array), array.std(), *np.percentile(array, self.percentiles)]
        return {f"{key}_{name}_ms": float(each) for key, each in zip(keys, found, strict=True)}


def _peaks(outcomes: Sequence[Outcome]) -> tuple[float, int]:
    """Most output tokens in one second of the load, and most requests that were open at once."""
    seconds: dict[int, float] = {}
    ends: list[tuple[float, int]] = []
    for each in outcomes:
        if each.first is None:
            continue
        ends += [(each.started, 1), (each.started + each.latency, -1)]
        arrivals = np.cumsum([each.started + each.first, *each.gaps])
        for second, count in zip(*np.unique(arrivals.astype(int), return_counts=True), strict=True):
            # A piece may hold several tokens.
            tokens = int(count) * each.output_tokens / (len(each.gaps) + 1)
            seconds[int(second)] = seconds.get(int(second), 0.0) + tokens
    most = now = 0
    for _, change in sorted(ends):
        now += change
        most = max(most, now)
    return float(max(seconds.values(), default=0)), most


def _line(label: str, values: Sequence[object]) -> str:
    return (label.ljust(_LABEL_WIDTH) + "".join(_cell(value).rjust(_VALUE_WIDTH) for value in values)).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float) -> str:
    return f"{value:g}"
