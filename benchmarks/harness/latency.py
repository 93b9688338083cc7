"""Times at which tokens arrived, and what is said of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Arrivals:
    """When the tokens of one request came; seconds by ``perf_counter``."""

    start: float
    times: list[float] = field(default_factory=list)

    def add(self, now: float, num_tokens: int = 1) -> None:
        self.times.extend([now] * num_tokens)

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.times[0] - self.start

    def gaps(self, begin: float = -math.inf, end: float = math.inf) -> list[float]:
        """Times between neighbouring tokens, of those whose later one came within ``begin`` to ``end``."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False) if begin <= b <= end]


def percentile(values: Sequence[float], p: float) -> float:
    """The smallest value that at least ``p`` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)]


def describe(values: Sequence[float]) -> dict[str, float]:
    """Mean, p50, p95, maximum and count; empty for no values."""
    if not values:
        return {}
    return {
        "mean": statistics.fmean(values),
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "max": max(values),
        "count": len(values),
    }
