"""The numbers after an answer as a block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnx_genai.cli.stats import Stats, block_lines, finish_word

FULL = Stats(
    prompt_tokens=1200,
    completion_tokens=11,
    cached_tokens=300,
    context_limit=8192,
    backend="slot",
    started=10.0,
    first_token=10.25,
    last_token=12.25,
    finished=12.45,
    finish="max",
    budget_cap=(50, 11),
    pages=(5, 2),
    resident=3 * 1024**2 + 512 * 1024,
)


def test_block_given_everything_has_performance_and_end_above_cache_and_memory() -> None:
    # 10 gaps in 2 s; 11 tokens in 2.45 s.
    assert block_lines(FULL, 120) == [
        "[ 1200 in · 11 out · backend slot · 5.0 tok/s · e2e 4.5 tok/s · ttft 250 ms · finish max · cap 50->11",
        "  cache 300/1.2k 25% · ctx 1.2k/8.2k · pg +5/-2 · rss 3.5 MiB ]",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_block_given_a_narrow_terminal_is_cut_between_parts(width: int) -> None:
    lines = block_lines(FULL, width)

    assert all(len(line) <= width for line in lines)
    parts = [part for line in block_lines(FULL, 500) for part in line.strip("[] ").split(" · ")]
    assert [part for line in lines for part in line.strip("[] ").split(" · ")] == parts


def test_block_given_nothing_measured_leaves_lines_out() -> None:
    nothing = Stats(
        prompt_tokens=0,
        completion_tokens=0,
        cached_tokens=None,
        context_limit=None,
        backend="slot",
        started=0.0,
        first_token=None,
        last_token=None,
    )

    assert block_lines(nothing, 80) == ["[ no measurements for this turn ]"]
    assert block_lines(replace(nothing, prompt_tokens=3), 80) == ["[ 3 in · backend slot ]"]
    assert block_lines(replace(nothing, resident=512), 80) == ["[ rss 512.0 B ]"]


def test_block_given_one_token_has_a_first_token_time_but_no_rate() -> None:
    first, _ = block_lines(replace(FULL, completion_tokens=1, last_token=10.25), 120)

    assert "ttft 250 ms" in first
    assert "5.0 tok/s" not in first


def test_block_given_an_idle_pool_has_no_pages() -> None:
    assert "pg" not in block_lines(replace(FULL, pages=(0, 0)), 120)[1]


@pytest.mark.parametrize(
    ("reason", "stop_reason", "asked", "word"),
    [
        ("stop", None, False, "eos"),
        ("stop", "END", False, "stop-seq"),
        ("stop", 7, False, "stop"),
        ("length", None, True, "max"),
        ("length", None, False, "length"),
        ("interrupt", None, False, "interrupt"),
        (None, None, False, None),
    ],
)
def test_finish_word_tells_how_it_ended(
    reason: str | None, stop_reason: str | int | None, asked: bool, word: str | None
) -> None:
    assert finish_word(reason, stop_reason, asked_length=asked) == word
