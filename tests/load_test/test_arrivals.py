"""When requests are sent."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.load_test import arrival_times

COUNT = 20_000


def gaps(**options: float) -> list[float]:
    times = arrival_times(COUNT + 1, rate=50, seed=7, **options)
    assert times[0] == 0.0
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_mean_and_spread_of_their_gamma_distribution(burstiness: float) -> None:
    found = gaps(burstiness=burstiness)

    # Mean 1/rate; the coefficient of variation of a gamma distribution is one over the root of its shape.
    variation = 1 / math.sqrt(burstiness)
    standard_error = variation / math.sqrt(COUNT)
    assert statistics.fmean(found) * 50 == pytest.approx(1.0, abs=5 * standard_error)
    # Standard error of the coefficient of variation, by a bound on the kurtosis of these shapes (6 / shape + 3).
    error = variation * math.sqrt((6 / burstiness + 2) / (4 * COUNT))
    assert statistics.stdev(found) * 50 == pytest.approx(variation, abs=6 * error)


def test_poisson_gaps_are_exponential() -> None:
    found = gaps()

    # P(gap > t) = exp(-rate t)
    for limit in (0.005, 0.02, 0.06):
        share = sum(gap > limit for gap in found) / COUNT
        expected = math.exp(-50 * limit)
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / COUNT))


def test_infinite_burstiness_gives_equal_gaps() -> None:
    assert arrival_times(5, rate=4, burstiness=math.inf) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(3) == [0.0, 0.0, 0.0]


def test_a_seed_fixes_the_times() -> None:
    assert arrival_times(9, rate=2, seed=1) == arrival_times(9, rate=2, seed=1)
    assert arrival_times(9, rate=2, seed=1) != arrival_times(9, rate=2, seed=2)


@pytest.mark.parametrize("count", [0, 1])
def test_few_requests_are_no_trap(count: int) -> None:
    assert arrival_times(count, rate=3) == [0.0] * count


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": -1}, {"rate": math.nan}, {"burstiness": 0}])
def test_wrong_values_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="allowed: "):
        arrival_times(3, **options)
