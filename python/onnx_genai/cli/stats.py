"""The numbers after an answer, in one line or as a block of two. What was not measured is left out."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_genai.cli.profile_report import KvPages

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM

__all__ = [
    "Stats",
    "backend_name",
    "block_lines",
    "compact_line",
    "count_text",
    "finish_word",
    "page_counts",
    "resident_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Numbers of one request; times are seconds of ``time.perf_counter``."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    context_limit: int | None
    backend: str | None
    started: float
    first_token: float | None
    last_token: float | None
    budget_cap: tuple[int, int] | None = None
    resident: int | None = None
    finished: float | None = None
    finish: str | None = None
    """As :func:`finish_word` has it."""
    pages: KvPages | None = None
    """What happened to pages of KV meanwhile; None if nothing did, or the cache has no pages."""

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second; None below two tokens.

        The first token belongs to the prefill, so the rate is over the gaps between tokens.
        """
        if self.first_token is None or self.last_token is None:
            return None
        gaps, seconds = self.completion_tokens - 1, self.last_token - self.first_token
        return gaps / seconds if gaps >= 1 and seconds > 0 else None

    @property
    def whole_rate(self) -> float | None:
        """Tokens a second from the start of the request to its end."""
        if self.finished is None or not self.completion_tokens or self.finished <= self.started:
            return None
        return self.completion_tokens / (self.finished - self.started)

    @property
    def first_token_ms(self) -> float | None:
        return None if self.first_token is None else 1000 * (self.first_token - self.started)


def compact_line(stats: Stats) -> str:
    """``[ 12 in · 34 out · ... ]``."""
    parts = [f"{stats.prompt_tokens} in"]
    if stats.completion_tokens:
        parts.append(f"{stats.completion_tokens} out")
    if stats.cached_tokens is not None and stats.prompt_tokens:
        share = 100 * stats.cached_tokens / stats.prompt_tokens
        parts.append(f"cache {count_text(stats.cached_tokens)}/{count_text(stats.prompt_tokens)} ({share:.0f}%)")
    if stats.context_limit:
        used = stats.prompt_tokens + stats.completion_tokens
        parts.append(f"ctx {count_text(used)} / {count_text(stats.context_limit)}")
    if stats.budget_cap is not None:
        asked, granted = stats.budget_cap
        parts.append(f"max-new capped {asked} -> {granted}")
    if stats.backend:
        parts.append(f"backend {stats.backend}")
    if stats.decode_rate is not None:
        parts.append(f"{stats.decode_rate:.1f} tok/s")
    if stats.first_token_ms is not None:
        parts.append(f"ttft {stats.first_token_ms:.0f} ms")
    if stats.pages is not None:
        pressure = _pressure(stats.pages, "hot-evict", "prefix-evict", "fail")
        parts.append(f"pages +{count_text(stats.pages.allocated)} / -{count_text(stats.pages.freed)}{pressure}")
    if stats.resident is not None:
        parts.append(f"rss {_size(stats.resident)}")
    return f"[ {' · '.join(parts)} ]"


def block_lines(stats: Stats, width: int) -> list[str]:
    """Two lines, cut at parts if they are wider than ``width``: performance and end; cache, context and memory."""
    rows = [row for row in (_performance(stats), _memory(stats)) if row]
    if not rows:
        return ["[ no measurements for this turn ]"]
    lines = [line for row in rows for line in _filled(row, width - 4)]
    body = [f"{'[' if number == 0 else ' '} {line}" for number, line in enumerate(lines)]
    return [*body[:-1], f"{body[-1]} ]"]


def finish_word(reason: str | None, stop_reason: str | int | None, *, asked_length: bool) -> str | None:
    """How an answer ended, in a word.

    Args:
        reason: The finish reason; ``interrupt`` stays as it is.
        stop_reason: The stop string or id that ended it.
        asked_length: The caller bounded the number of new tokens.
    """
    if reason == "stop":
        return "eos" if stop_reason is None else "stop-seq" if isinstance(stop_reason, str) else "stop"
    if reason == "length" and asked_length:
        return "max"
    return reason


def _performance(stats: Stats) -> list[str]:
    parts = [f"{stats.prompt_tokens} in"] if stats.prompt_tokens else []
    if stats.completion_tokens:
        parts.append(f"{stats.completion_tokens} out")
    if parts and stats.backend:
        parts.append(f"backend {stats.backend}")
    if stats.decode_rate is not None:
        parts.append(f"{stats.decode_rate:.1f} tok/s")
    if stats.whole_rate is not None:
        parts.append(f"e2e {stats.whole_rate:.1f} tok/s")
    if stats.first_token_ms is not None:
        parts.append(f"ttft {stats.first_token_ms:.0f} ms")
    if stats.finish is not None:
        parts.append(f"finish {stats.finish}")
    if stats.budget_cap is not None:
        parts.append(f"cap {stats.budget_cap[0]}->{stats.budget_cap[1]}")
    return parts


def _memory(stats: Stats) -> list[str]:
    parts = []
    if stats.cached_tokens is not None and stats.prompt_tokens:
        share = 100 * stats.cached_tokens / stats.prompt_tokens
        parts.append(f"cache {count_text(stats.cached_tokens)}/{count_text(stats.prompt_tokens)} {share:.0f}%")
    used = stats.prompt_tokens + stats.completion_tokens
    if stats.context_limit and used:
        parts.append(f"ctx {count_text(used)}/{count_text(stats.context_limit)}")
    if stats.pages is not None:
        pressure = _pressure(stats.pages, "hot", "pref", "fail")
        parts.append(f"pg +{count_text(stats.pages.allocated)}/-{count_text(stats.pages.freed)}{pressure}")
    if stats.resident is not None:
        parts.append(f"rss {_size(stats.resident)}")
    return parts


def _pressure(pages: KvPages, hot: str, prefix: str, failed: str) -> str:
    """What only a pool that is short of pages has, by these names."""
    counts = ((hot, pages.hot_evictions), (prefix, pages.prefix_evictions), (failed, pages.allocation_failures))
    return "".join(f" {name} {count_text(count)}" for name, count in counts if count > 0)


def _filled(parts: list[str], width: int) -> list[str]:
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def resident_bytes() -> int | None:
    """Resident memory of this process now where the system tells, else its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def page_counts(llm: LLM) -> Mapping[str, float]:
    """Totals of the engine for :meth:`KvPages.between`; empty where the KV cache has no pages."""
    return llm.metrics() if llm.info().get("shares_blocks") else {}


def count_text(number: int) -> str:
    """``999``, ``1.2k``."""
    return f"{number / 1000:.1f}k" if number >= 1000 else str(number)


def _size(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def backend_name(info: Mapping[str, object]) -> str | None:
    """The decoder and the execution provider in use, from what ``LLM.info`` says; None without a decoder."""
    decoder = info.get("decoder")
    return None if decoder is None else f"{decoder} on {info.get('execution_provider', 'cpu')}"
