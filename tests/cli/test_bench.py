"""The command ``bench``, on tiny models and with known times."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from onnx_genai import LLM, SamplingParams
from onnx_genai.cli import bench
from onnx_genai.cli.bench import tests_for as combinations
from tests.cli.conftest import Run


def test_combinations_have_the_names_of_llama_bench() -> None:
    names = [test.name for test in combinations((512,), (128,), (0, 1024), (1, 4))]

    assert names == [
        "pp512", "tg128", "pp512 @ d1024", "tg128 @ d1024",
        "pp512 b4", "tg128 b4", "pp512 @ d1024 b4", "tg128 @ d1024 b4",
    ]  # fmt: skip


def test_combinations_leave_out_what_is_zero() -> None:
    assert [test.name for test in combinations((0,), (8,), (0,), (1,))] == ["tg8"]
    with pytest.raises(click.UsageError, match="nothing to measure"):
        combinations((0,), (0,), (0,), (1,))


@pytest.mark.parametrize("style", ["gqa", "merged"])
def test_bench_prints_a_markdown_table(run: Run, checksum_package: Callable[..., Path], style: str) -> None:
    folder = checksum_package(style)

    ran = run("bench", folder, "-p", "16", "-n", "4", "-d", "0,32", "-r", "2", "-b", "1,2")

    assert ran.code == 0
    assert ("not measurable" in ran.err) == ("not measurable" in ran.out)
    head, rule, *rows = [line.strip("| ").split(" | ") for line in ran.out.splitlines()]
    assert head == ["model", "size", "backend", "threads", "test", "t/s"]
    assert set(rule) == {"---", "---:"}
    assert [row[4] for row in rows] == [
        "pp16", "tg4", "pp16 @ d32", "tg4 @ d32", "pp16 b2", "tg4 b2", "pp16 @ d32 b2", "tg4 @ d32 b2"
    ]  # fmt: skip
    for row in rows:
        if row[5] == "not measurable":  # a difference of two times: no prefix cache, or tokens that came at once
            assert row[4].startswith("tg") or style == "merged"
            continue
        mean, sign, deviation = row[5].split()
        assert sign == "±"
        assert float(mean) > 0
        assert float(deviation) >= 0


def test_bench_given_json_and_vs_compares_two_models(run: Run, checksum_package: Callable[..., Path]) -> None:
    command = ("bench", checksum_package("gqa"), "--vs", checksum_package("merged"), "-p", "16", "-n", "0", "-r", "3")

    report = json.loads(run(*command, "--json").out)
    table = run(*command).out.splitlines()

    first, second = report["models"]
    assert (first["decoder"], second["decoder"]) == ("paged", "copy")
    (test,) = report["tests"]
    assert (test["name"], test["num_tokens"], test["depth"], test["batch"]) == ("pp16", 16, 0, 1)
    means = []
    for result in test["tokens_per_second"]:
        assert len(result["samples"]) == 3
        assert result["mean"] == pytest.approx(statistics.fmean(result["samples"]))
        assert result["stddev"] == pytest.approx(statistics.stdev(result["samples"]))
        means.append(result["mean"])
    assert test["ratio"] == pytest.approx(means[1] / means[0])
    assert table[0].endswith("| t/s | ratio |")
    assert table[2].endswith("| 1.00 |")
    assert len(table) == 4


class _ClockedLLM:
    """Takes a second a token, as the clock of the benchmark has it, and what ``noise`` says in each run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: list[float], cached: int = 0) -> None:
        self.engine = SimpleNamespace(vocab_size=50, clear_prefix_cache=lambda: self.cleared.append(len(self.runs)))
        self.cleared: list[int] = []
        self.runs: list[int] = []
        self._noise = noise
        self._cached = cached
        self._now = 0.0
        monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: self._now))

    def info(self) -> dict[str, object]:
        return {}

    def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[Any]:
        known = self._cached if self.runs else 0
        self._now += sum(len(prompt) - known for prompt in prompts)
        self._now += (params.max_new_tokens or 1) - 1 + self._noise[len(self.runs)]
        self.runs.append(len(prompts[0]))
        return [SimpleNamespace(usage=SimpleNamespace(cached_tokens=known)) for _ in prompts]

    def stream(self, prompt: list[int], params: SamplingParams) -> Iterator[Any]:
        """All tokens come at once, as soon as the reader looks."""
        yield SimpleNamespace(token_ids=[1] * (params.max_new_tokens or 0))


@pytest.mark.parametrize(
    ("noise", "seconds"),
    [
        ([0.0] * 6, 8.0),
        ([0.0, 50.0, 0.0, 0.0, 0.0, 0.0], None),  # an outlier that the median alone would hide
        ([0.0, 1.0, 0.0, 2.0, 0.5, 0.0], 9.0),  # 9, 10 and 7.5
        ([0.0, 8.0, 0.0, -8.0, 0.0, 0.0], None),
        ([9.0, 0.0, 8.5, 0.0, 8.2, 0.0], None),  # the longer run was the faster one
    ],
)
def test_prefill_behind_a_depth_without_cache_is_the_median_difference_or_nothing(
    monkeypatch: pytest.MonkeyPatch, noise: list[float], seconds: float | None
) -> None:
    llm = _ClockedLLM(monkeypatch, noise)

    assert bench.prefill_seconds(cast("LLM", llm), 100, 8, 1) == seconds
    assert llm.runs == [100, 108] * 3
    assert llm.cleared == [2, 3, 4, 5]


def test_prefill_behind_a_depth_in_the_cache_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = _ClockedLLM(monkeypatch, [5.0, 0.5], cached=100)

    assert bench.prefill_seconds(cast("LLM", llm), 100, 8, 2) == 16.5
    assert llm.runs == [100, 108]


def test_prefill_behind_a_depth_half_in_the_cache_is_measured_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where KV of many sequences pushes each other out."""
    llm = _ClockedLLM(monkeypatch, [0.0] * 8, cached=50)

    assert bench.prefill_seconds(cast("LLM", llm), 100, 8, 1) == 8.0
    assert llm.runs == [100, 108] * 4


@pytest.mark.parametrize(("noise", "rate"), [([0.0] * 6, 1.0), ([0.0, 0.0, 30.0, 0.0, 30.0, 0.0], None)])
def test_tokens_that_come_in_one_piece_are_the_median_difference_or_nothing(
    monkeypatch: pytest.MonkeyPatch, noise: list[float], rate: float | None
) -> None:
    llm = _ClockedLLM(monkeypatch, noise)

    assert bench.rate_of(cast("LLM", llm), bench.Test(kind="tg", num_tokens=16, depth=0, batch=1)) == rate


def test_bench_given_nothing_that_can_be_measured_says_so(
    run: Run, checksum_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([5.0, 5.0, 5.0, 7.0, None, 5.0] * 2)  # warm-up of both, then in turns
    monkeypatch.setattr(bench, "rate_of", lambda llm, test: next(rates))
    folder = checksum_package("merged")
    command = ("bench", folder, "--vs", folder, "-p", "16", "-n", "0", "-d", "32", "-r", "2")

    table = run(*command)
    report = json.loads(run(*command, "--json").out)

    assert "pp16 @ d32: not measurable" in table.err
    first, second = [line.strip("| ").split(" | ") for line in table.out.splitlines()[2:]]
    assert first[5:] == ["5.00 ± 0.00", "1.00"]
    assert second[5:] == ["not measurable", "-"]
    (test,) = report["tests"]
    assert test["tokens_per_second"][1] == {"mean": None, "stddev": None, "samples": [7.0, None]}
    assert test["ratio"] is None


def test_bench_given_more_than_the_window_names_it(run: Run, checksum_package: Callable[..., Path]) -> None:
    ran = run("bench", checksum_package("gqa", context_length=64), "-p", "64", "-n", "0")

    assert (ran.code, ran.out) == (1, "")
    assert "pp64 needs 65 tokens (65/64" in ran.err


@pytest.mark.parametrize("arguments", [["-p", "x"], ["-p", "-1"], ["-p", "0", "-n", "0"], ["-b", "0"], ["-r", "0"]])
def test_bench_given_wrong_numbers_is_wrong_usage(
    run: Run, checksum_package: Callable[..., Path], arguments: list[str]
) -> None:
    assert run("bench", checksum_package("gqa"), *arguments).code == 2


def test_bench_serve_is_a_command_of_its_own(run: Run) -> None:
    ran = run("bench", "serve", "--help")

    assert ran.code == 0
    assert ran.out.startswith("Usage: onnx-genai bench serve")
    assert "--base-url" in ran.out
    assert "onnx-genai bench serve" in run("help", "bench", "serve").out
