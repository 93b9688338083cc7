"""What a profiled command says: lines for people, one JSON object for programs. What was not measured is left out."""

from __future__ import annotations

import json
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx_genai.types import ChatChunk, Chunk, FinishReason, Usage
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM, AsyncLLM, Profile

__all__ = ["AnswerTimes", "KvPages", "Memory", "Report", "nearest_rank", "operator_lines", "size_text", "stage_lines"]

_LABEL = 24
_NUMBER = 10
_MAX_ROWS = 12
"""Rows of the table of operators."""


class AnswerTimes:
    """When the tokens of one answer came and how it ended; give it every piece. Times: ``time.perf_counter``."""

    def __init__(self, started: float | None = None) -> None:
        """``started``: when the answer was asked for; None is now."""
        self.started = time.perf_counter() if started is None else started
        self.finished: float | None = None
        self.token_times: list[float] = []
        """When each piece with tokens came; a piece with several counts as often."""
        self.usage: Usage | None = None
        self.finish_reason: FinishReason | None = None
        self.budget_cap: tuple[int, int] | None = None
        self.num_requests = 1

    def add(self, chunk: Chunk | ChatChunk) -> None:
        """Takes a piece when it has come."""
        now = time.perf_counter()
        self.token_times.extend([now] * len(chunk.token_ids))
        self.usage = chunk.usage or self.usage
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if isinstance(chunk, Chunk):
            self.budget_cap = chunk.budget_cap or self.budget_cap
        if chunk.usage is not None:
            self.finished = now

    @classmethod
    def of_requests(cls, profile: Profile, started: float, finished: float) -> AnswerTimes:
        """What the engine itself recorded, for commands with many answers or none."""
        times = cls(started)
        times.finished = finished
        done = [request for request in profile.requests if request.num_tokens]
        times.num_requests = len(profile.requests)
        if done:
            times.usage = Usage(
                prompt_tokens=sum(request.prompt_tokens for request in profile.requests),
                completion_tokens=sum(request.num_tokens for request in done),
                cached_tokens=sum(request.cached_tokens for request in profile.requests),
            )
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPages:
    """What happened to KV blocks during the run."""

    allocated: int
    freed: int
    hot_evictions: int
    prefix_evictions: int
    allocation_failures: int

    @classmethod
    def between(cls, before: Mapping[str, float], after: Mapping[str, float]) -> KvPages | None:
        """The difference of two readings of the engine's totals; None if nothing moved."""

        def moved(name: str) -> int:
            return int(after.get(name, 0) - before.get(name, 0))

        pages = cls(
            allocated=moved("kv_allocated_blocks"),
            freed=moved("kv_freed_blocks"),
            hot_evictions=moved("kv_swapped_out_blocks"),
            prefix_evictions=moved("kv_evicted_blocks"),
            allocation_failures=moved("kv_failed_reserves"),
        )
        return pages if any(pages.as_dict().values()) else None

    def as_dict(self) -> dict[str, int]:
        return {
            "allocated": self.allocated,
            "freed": self.freed,
            "hot_evictions": self.hot_evictions,
            "prefix_evictions": self.prefix_evictions,
            "allocation_failures": self.allocation_failures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, None where not measured."""

    peak_resident: int | None = None
    kv_budget: int | None = None
    kv_budget_tokens: int | None = None
    engine: int | None = None
    limit: int | None = None
    weights: int | None = None
    activations: int | None = None
    overhead: int | None = None
    kv: int | None = None
    kv_pages: int | None = None
    kv_page_bytes: int | None = None

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Rows of the breakdown that have something."""
        rows = (
            ("model weights", self.weights),
            ("activations", self.activations),
            ("runtime overhead", self.overhead),
            ("kv cache", self.kv),
        )
        return [(name, size) for name, size in rows if size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures of one turn. Durations are seconds."""

    model: str
    execution_provider: str
    decode_backend: str | None = None
    phases: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int | None = None
    generated_tokens: int = 0
    cached_tokens: int | None = None
    started: float = 0.0
    token_times: tuple[float, ...] = ()
    finished: float | None = None
    counters: tuple[tuple[str, float, str], ...] = ()
    finish_reason: str | None = None
    budget_cap: tuple[int, int] | None = None
    kv_pages: KvPages | None = None
    memory: Memory = field(default_factory=Memory)
    profile: Profile | None = None

    @classmethod
    def of(
        cls,
        llm: LLM | AsyncLLM,
        profile: Profile,
        *,
        metrics_before: Mapping[str, float],
        phases: Sequence[tuple[str, float]],
        counters: Sequence[tuple[str, float, str]],
        answer: AnswerTimes,
        finished: float,
    ) -> Report:
        """Brings together what the command, the engine and the system measured."""
        info = llm.info()
        usage = answer.usage
        memory = profile.memory
        # The engine knows when each token was made; several may come here at once.
        made = [request.token_times for request in profile.requests if request.token_times]
        token_times = made[0] if len(made) == 1 and answer.token_times else tuple(answer.token_times)
        return cls(
            model=str(llm.package.root),
            execution_provider=str(info["execution_provider"]),
            decode_backend=None if info.get("decoder") is None else str(info["decoder"]),
            phases=tuple(phases),
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            generated_tokens=len(answer.token_times) if usage is None else usage.completion_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            started=answer.started,
            token_times=token_times,
            finished=answer.finished or finished,
            counters=tuple(counters),
            finish_reason=answer.finish_reason,
            budget_cap=answer.budget_cap,
            kv_pages=KvPages.between(metrics_before, llm.metrics()),
            memory=Memory(
                peak_resident=memory.peak_resident_bytes,
                kv_budget=memory.kv_budget_bytes,
                kv_budget_tokens=memory.kv_budget_tokens,
                engine=memory.engine_bytes,
                limit=memory.limit_bytes,
                weights=memory.weights_bytes,
                activations=memory.scratch_bytes,
                kv=memory.kv_bytes,
                kv_pages=memory.kv_blocks,
                kv_page_bytes=memory.kv_block_bytes,
            ),
            profile=profile,
        )

    @property
    def time_to_first_token(self) -> float | None:
        return self.token_times[0] - self.started if self.token_times else None

    @property
    def wall(self) -> float | None:
        return None if self.finished is None else self.finished - self.started

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first token; without prefill and the end of the request."""
        if len(self.token_times) < 2:
            return None
        seconds = self.token_times[-1] - self.token_times[0]
        return (len(self.token_times) - 1) / seconds if seconds > 0 else None

    @property
    def end_to_end_rate(self) -> float | None:
        wall = self.wall
        return self.generated_tokens / wall if self.generated_tokens and wall else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in zip(self.token_times, self.token_times[1:], strict=False)]

    def lines(self, width: int | None = None) -> list[str]:
        """The report for people: a ruler, then one figure a line; at most ``width`` columns where that is given."""
        rows = [
            _text("model", self.model),
            _text("execution provider", self.execution_provider),
        ]
        if self.decode_backend is not None:
            rows.append(_text("decode backend", self.decode_backend))
        rows += [_milliseconds(name, seconds) for name, seconds in self.phases]
        rows += self._token_lines()
        rows += self._speed_lines()
        rows += [_line(name, f"{value:.2f}", unit) for name, value, unit in self.counters]
        if self.finish_reason is not None:
            rows.append(_text("finish reason", self.finish_reason))
        if self.budget_cap is not None:
            rows.append(_text("scheduler cap", f"{self.budget_cap[0]} -> {self.budget_cap[1]}"))
        rows += self._page_lines()
        rows += self._memory_lines()
        ruler = "── profile " + "─" * 50
        if width is not None:
            ruler = ruler[:width]
            wrapper = textwrap.TextWrapper(
                width, subsequent_indent=" " * min(_LABEL + 1, width // 2), break_on_hyphens=False
            )
            rows = [part for row in rows for part in wrapper.wrap(row)]
        if self.profile is not None:
            rows += stage_lines(self.profile, self.generated_tokens, width)
            rows += operator_lines(self.profile, width)
        return [ruler, *rows]

    def _token_lines(self) -> list[str]:
        rows = []
        if self.prompt_tokens is not None:
            rows.append(_line("prompt tokens", str(self.prompt_tokens)))
        if self.generated_tokens:
            rows.append(_line("generated tokens", str(self.generated_tokens)))
        if self.cached_tokens and self.prompt_tokens:
            share = 100 * self.cached_tokens / self.prompt_tokens
            rows.append(_line("prefix cache reuse", str(self.cached_tokens), f"tokens ({share:.0f}%)"))
        return rows

    def _speed_lines(self) -> list[str]:
        rows = []
        if self.time_to_first_token is not None:
            rows.append(_milliseconds("time to first token", self.time_to_first_token))
        if self.wall is not None:
            rows.append(_milliseconds("generation wall time", self.wall))
        if self.decode_rate is not None:
            rows.append(_line("decode throughput", f"{self.decode_rate:.2f}", "tok/s"))
        if self.end_to_end_rate is not None:
            rows.append(_line("end-to-end throughput", f"{self.end_to_end_rate:.2f}", "tok/s"))
        latency = _latency(self.gaps)
        if latency is not None:
            values = " / ".join(f"{latency[name]:.1f}" for name in ("mean", "p50", "p90", "p99", "max"))
            rows.append(_text("inter-token latency", f"{values} ms (mean / p50 / p90 / p99 / max)"))
        return rows

    def _page_lines(self) -> list[str]:
        pages = self.kv_pages
        if pages is None:
            return []
        rows = ["kv page activity", _line("  allocated", str(pages.allocated)), _line("  freed", str(pages.freed))]
        for name, count in (
            ("evicted from hot tier (pool under pressure)", pages.hot_evictions),
            ("reclaimed from prefixes", pages.prefix_evictions),
            ("allocation failures (pool exhausted)", pages.allocation_failures),
        ):
            if count > 0:
                rows.append(_line(f"  {name}", str(count)))
        return rows

    def _memory_lines(self) -> list[str]:
        memory = self.memory
        rows = []
        if memory.peak_resident is not None:
            rows.append(_text("peak resident memory", size_text(memory.peak_resident)))
        if memory.kv_budget is not None:
            tokens = "" if memory.kv_budget_tokens is None else f" ({counted(memory.kv_budget_tokens, 'token')})"
            rows.append(_text("kv cache budget", size_text(memory.kv_budget) + tokens))
        if memory.engine:
            rows.append(_text("engine host ram in use", size_text(memory.engine)))
        if memory.weights or memory.activations:
            rows.append("device memory breakdown")
            for name, size in memory.parts:
                share = f" ({100 * size / memory.limit:.1f}%)" if memory.limit else ""
                rows.append(_text(f"  {name}", size_text(size) + share))
            if memory.kv_pages and memory.kv_page_bytes:
                rows.append(_text("  kv pages", f"{memory.kv_pages} x {size_text(memory.kv_page_bytes)}"))
            rows.append("  (not measured: the code of the libraries and Python's own memory)")
        if memory.parts and memory.limit:
            used = sum(size for _, size in memory.parts)
            rows.append(_text("device memory in use", f"{size_text(used)} of {size_text(memory.limit)}"))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """JSON values; keys of what was not measured are absent."""
        values: dict[str, Any] = {
            "model": self.model,
            "execution_provider": self.execution_provider,
            "decode_backend": self.decode_backend,
            "finish_reason": self.finish_reason,
        }
        for name, seconds in self.phases:
            values[f"{name.replace(' ', '_')}_ms"] = round(1e3 * seconds, 3)
        values["prompt_tokens"] = self.prompt_tokens
        values["generated_tokens"] = self.generated_tokens or None
        values["prefix_cache_hit_tokens"] = self.cached_tokens
        if self.cached_tokens is not None and self.prompt_tokens:
            values["prefix_cache_hit_percent"] = round(100 * self.cached_tokens / self.prompt_tokens, 3)
        values["time_to_first_token_ms"] = _ms(self.time_to_first_token)
        values["generation_wall_ms"] = _ms(self.wall)
        values["decode_tokens_per_second"] = _rounded(self.decode_rate)
        values["end_to_end_tokens_per_second"] = _rounded(self.end_to_end_rate)
        latency = _latency(self.gaps)
        values["inter_token_latency_ms"] = None if latency is None else {k: round(v, 3) for k, v in latency.items()}
        for name, value, _ in self.counters:
            values[name.replace(" ", "_")] = value
        if self.budget_cap is not None:
            values["budget_cap"] = {
                "requested_max_new_tokens": self.budget_cap[0],
                "admitted_max_new_tokens": self.budget_cap[1],
            }
        values["kv_pages"] = None if self.kv_pages is None else self.kv_pages.as_dict()
        values.update(self._memory_dict())
        if self.profile is not None:
            values["engine"] = self.profile.as_dict()
            # By type is enough here; the timeline has each node.
            values["engine"].pop("nodes", None)
        return {name: value for name, value in values.items() if value is not None}

    def _memory_dict(self) -> dict[str, Any]:
        memory = self.memory
        used = sum(size for _, size in memory.parts)
        breakdown = {
            "model_weights_bytes": memory.weights,
            "activations_bytes": memory.activations,
            "runtime_overhead_bytes": memory.overhead,
            "kv_bytes": memory.kv,
            "kv_pages": memory.kv_pages,
            "kv_page_bytes": memory.kv_page_bytes,
        }
        return {
            "peak_resident_bytes": memory.peak_resident,
            "kv_cache_budget_bytes": memory.kv_budget,
            "kv_cache_max_tokens": memory.kv_budget_tokens,
            "engine_host_ram_bytes": memory.engine or None,
            "device_memory_bytes": used or None,
            "device_memory_limit_bytes": memory.limit if used else None,
            "device_memory_breakdown": {name: size for name, size in breakdown.items() if size} or None,
        }

    def json_line(self) -> str:
        """One JSON object and a line end."""
        return json.dumps(self.as_dict(), ensure_ascii=False) + "\n"


def stage_lines(profile: Profile, num_tokens: int, width: int | None = None) -> list[str]:
    """Where the time of the engine's thread went, one stage a line."""
    if not profile.stages:
        return []
    rows = [("stage", "total_ms", "calls", "us/call", "us/token")]
    for stage in profile.stages:
        a_token = f"{1e6 * stage.seconds / num_tokens:.1f}" if num_tokens else ""
        a_call = f"{1e6 * stage.seconds / stage.calls:.1f}"
        rows.append((stage.name, f"{1e3 * stage.seconds:.1f}", str(stage.calls), a_call, a_token))
    return _table(rows, _LABEL, width)


def operator_lines(profile: Profile, width: int | None = None) -> list[str]:
    """The operators that take most of the recorded runs, one a line."""
    if not profile.operators:
        return []
    heading = f"operator ({profile.num_profiled_runs} of {profile.num_runs} runs)"
    rows: list[tuple[str, ...]] = [(heading, "total_ms", "calls", "us/call", "share")]
    for operator in profile.operators[:_MAX_ROWS]:
        a_call, share = f"{1e6 * operator.seconds / operator.calls:.1f}", f"{100 * operator.share:.1f}%"
        rows.append((operator.name, f"{1e3 * operator.seconds:.1f}", str(operator.calls), a_call, share))
    if len(profile.operators) > _MAX_ROWS:
        rest = sum(operator.seconds for operator in profile.operators[_MAX_ROWS:])
        rows.append((f"({len(profile.operators) - _MAX_ROWS} more)", f"{1e3 * rest:.1f}"))
    return _table(rows, _LABEL + 12, width)


def _table(rows: Sequence[tuple[str, ...]], label: int, width: int | None) -> list[str]:
    """A column of names, ``label`` wide unless ``width`` is too small for it, and columns of numbers."""
    if width is not None:
        label = max(_NUMBER, min(label, width - _NUMBER * (len(rows[0]) - 1)))
    names = [name if len(name) <= label else f"{name[: label - 1]}…" for name, *_ in rows]
    numbers = ["".join(f"{number:>{_NUMBER}}" for number in row[1:]) for row in rows]
    return [f"{name:<{label}}{rest}".rstrip() for name, rest in zip(names, numbers, strict=True)]


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The smallest of ``values`` that at least ``percent`` of them do not exceed. Requires: there are values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def size_text(size_bytes: int) -> str:
    """``12.3 MiB``: one decimal, units of 1024."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _latency(gaps: Sequence[float]) -> dict[str, float] | None:
    if not gaps:
        return None
    return {
        "mean": 1e3 * sum(gaps) / len(gaps),
        "p50": 1e3 * nearest_rank(gaps, 50),
        "p90": 1e3 * nearest_rank(gaps, 90),
        "p99": 1e3 * nearest_rank(gaps, 99),
        "max": 1e3 * max(gaps),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _text(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def _line(label: str, number: str, unit: str = "") -> str:
    return f"{label:<{_LABEL}} {number:>{_NUMBER}} {unit}".rstrip()


def _milliseconds(label: str, seconds: float) -> str:
    return _line(label, f"{1e3 * seconds:.1f}", "ms")
