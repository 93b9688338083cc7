"""The command ``bench``, on tiny models and with known times."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import click
import pytest

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

    assert (ran.code, ran.err) == (0, "")
    head, rule, *rows = [line.strip("| ").split(" | ") for line in ran.out.splitlines()]
    assert head == ["model", "size", "backend", "threads", "test", "t/s"]
    assert set(rule) == {"---", "---:"}
    assert [row[4] for row in rows] == [
        "pp16", "tg4", "pp16 @ d32", "tg4 @ d32", "pp16 b2", "tg4 b2", "pp16 @ d32 b2", "tg4 @ d32 b2"
    ]  # fmt: skip
    for row in rows:
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
