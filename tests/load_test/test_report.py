"""Figures of a load, against hand-made outcomes."""

from __future__ import annotations

import json

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.load_test import Goals, Load, Outcome, Report


def outcome(started: float, first: float, gap: float, tokens: int, **fields: object) -> Outcome:
    made = Outcome(
        started=started,
        first=first,
        gaps=[gap] * (tokens - 1),
        latency=first + gap * (tokens - 1),
        prompt_tokens=10,
        output_tokens=tokens,
        counted_by_server=True,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def report() -> Report:
    outcomes = [
        outcome(0.0, 0.1, 0.01, 11),
        outcome(0.0, 0.2, 0.02, 11),
        outcome(0.5, 0.3, 0.03, 11),
        outcome(1.0, 0.4, 0.0, 1),
        outcome(1.2, 0.1, 0.0, 1, error="status 500: no"),
        outcome(1.3, 0.1, 0.0, 1, error="interrupted"),
    ]
    return Report(load=Load(outcomes=outcomes, duration=2.0), goals=Goals.parse(["ttft:350", "tpot:25"]))


def test_counts_and_rates_are_of_completed_requests_over_the_whole_time(report: Report) -> None:
    figures = report.figures()

    assert (figures["completed"], figures["failed"]) == (4, 1)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (40, 34)
    assert figures["request_throughput"] == 2.0
    assert figures["output_throughput"] == 17.0
    assert figures["total_token_throughput"] == 37.0
    # The first and second keep both limits; the third is too slow a token, the fourth too late.
    assert figures["request_goodput"] == 1.0
    assert figures["total_chunks"] == 34


def test_times_are_milliseconds_with_the_percentiles_of_linear_interpolation(report: Report) -> None:
    figures = report.figures()

    assert figures["mean_ttft_ms"] == pytest.approx(250.0)
    assert figures["median_ttft_ms"] == pytest.approx(250.0)
    assert figures["std_ttft_ms"] == pytest.approx((5 * 2500) ** 0.5)  # squares of 150, 50, 50, 150 over four
    assert figures["p90_ttft_ms"] == pytest.approx(370.0)  # 0.9 * 3 = place 2.7 between 300 and 400
    # One token has no time between tokens.
    assert figures["mean_tpot_ms"] == pytest.approx(20.0)
    assert figures["p99_tpot_ms"] == pytest.approx(29.8)
    assert figures["mean_itl_ms"] == pytest.approx(20.0)
    assert figures["median_e2el_ms"] == pytest.approx(400.0)  # of 200, 400, 600, 400


def test_the_keys_are_those_that_plot_scripts_read(report: Report) -> None:
    figures = report.figures()

    names = ("ttft", "tpot", "itl", "e2el")
    heads = ("mean", "median", "std", "p50", "p90", "p95", "p99")
    assert {f"{head}_{name}_ms" for name in names for head in heads} <= figures.keys()
    assert {"duration", "completed", "total_input_tokens", "total_output_tokens"} <= figures.keys()
    assert {"request_throughput", "request_goodput", "output_throughput", "total_token_throughput"} <= figures.keys()
    json.dumps(figures, allow_nan=False)


def test_peaks_are_of_one_second_and_one_moment(report: Report) -> None:
    figures = report.figures()

    # In the first second: 11 and 11, and of the third those at 0.8, 0.83 ... 0.98.
    assert figures["max_output_tokens_per_s"] == 11 + 11 + 7
    assert figures["max_concurrent_requests"] == 2


def test_the_table_names_failures_and_goals(report: Report) -> None:
    table = report.table()

    assert "1 failed: status 500: no" in table
    assert "Good requests/s" in table
    assert "(TPOT)" in table
    assert "interrupted" not in table


def test_without_answers_times_are_missing_and_not_zero() -> None:
    report = Report(load=Load(outcomes=[outcome(0, 0.1, 0, 1, error="no")], duration=1.0))

    figures = report.figures()
    assert figures["mean_ttft_ms"] is None
    assert figures["request_goodput"] is None
    assert " -" in report.table()


def test_details_have_an_entry_for_each_request(report: Report) -> None:
    details = report.details()

    assert {len(values) for values in details.values()} == {6}
    assert details["errors"] == ["", "", "", "", "status 500: no", "interrupted"]


@pytest.mark.parametrize("goal", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "speed:5", "itl:5", "ttft:inf"])
def test_wrong_goals_are_refused(goal: str) -> None:
    with pytest.raises(InvalidArgumentError, match="goodput is"):
        Goals.parse([goal])


def test_no_goal_is_none() -> None:
    assert Goals.parse([]) is None
