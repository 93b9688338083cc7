"""The line of numbers after an answer. What was not measured is left out."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Stats", "compact_line", "resident_bytes"]


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


def compact_line(stats: Stats) -> str:
    """``[ 12 in · 34 out · ... ]``."""
    parts = [f"{stats.prompt_tokens} in"]
    if stats.completion_tokens:
        parts.append(f"{stats.completion_tokens} out")
    if stats.cached_tokens is not None and stats.prompt_tokens:
        share = 100 * stats.cached_tokens / stats.prompt_tokens
        parts.append(f"cache {_count(stats.cached_tokens)}/{_count(stats.prompt_tokens)} ({share:.0f}%)")
    if stats.context_limit:
        used = stats.prompt_tokens + stats.completion_tokens
        parts.append(f"ctx {_count(used)} / {_count(stats.context_limit)}")
    if stats.budget_cap is not None:
        asked, granted = stats.budget_cap
        parts.append(f"max-new capped {asked} -> {granted}")
    if stats.backend:
        parts.append(f"backend {stats.backend}")
    if stats.first_token is not None and stats.last_token is not None:
        # The first token belongs to the prefill, so the rate is over the gaps between tokens.
        gaps, seconds = stats.completion_tokens - 1, stats.last_token - stats.first_token
        if gaps >= 1 and seconds > 0:
            parts.append(f"{gaps / seconds:.1f} tok/s")
        parts.append(f"ttft {1000 * (stats.first_token - stats.started):.0f} ms")
    if stats.resident is not None:
        parts.append(f"rss {_size(stats.resident)}")
    return f"[ {' · '.join(parts)} ]"


def resident_bytes() -> int | None:
    """Resident memory of this process now where the system tells, else its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _count(number: int) -> str:
    return f"{number / 1000:.1f}k" if number >= 1000 else str(number)


def _size(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
