"""When the requests of a load are sent: :func:`arrival_times`."""

from __future__ import annotations

import math

import numpy as np

from onnx_genai.errors import InvalidArgumentError

__all__ = ["arrival_times"]


def arrival_times(count: int, *, rate: float = math.inf, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Seconds from the start at which each request is sent; they do not wait for answers (an open loop).

    Args:
        count: Requests.
        rate: Requests a second on average; infinity sends all at once.
        burstiness: Shape of the gamma distribution of the gaps. 1 is a Poisson process, less comes in bursts, more is
            steadier, and infinity has equal gaps.
        seed: The same numbers give the same times.

    Raises:
        InvalidArgumentError: A rate or burstiness that is not above 0.
    """
    if not rate > 0:
        raise InvalidArgumentError(f"request rate is {rate}; allowed: requests a second above 0, or inf")
    if not burstiness > 0:
        raise InvalidArgumentError(f"burstiness is {burstiness}; allowed: above 0, 1 for Poisson, inf for equal gaps")
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [number / rate for number in range(count)]
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), max(count - 1, 0))
    return [0.0, *np.cumsum(gaps).tolist()][:count]
