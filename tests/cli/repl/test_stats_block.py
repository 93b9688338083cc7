"""The numbers after an answer as a block."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("prompt_toolkit")

from onnx_genai.cli.profile_report import KvPages
from onnx_genai.cli.repl.screen import status_line
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
    pages=KvPages(allocated=5, freed=2, hot_evictions=0, prefix_evictions=0, allocation_failures=0),
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
    totals = dict.fromkeys(("kv_allocated_blocks", "kv_freed_blocks", "kv_failed_reserves"), 7.0)

    assert KvPages.between(totals, totals) is None
    assert KvPages.between({}, {}) is None
    assert "pg" not in block_lines(replace(FULL, pages=None), 120)[1]


def test_block_given_a_pool_under_pressure_says_what_was_pushed_out() -> None:
    before = {"kv_allocated_blocks": 10.0, "kv_freed_blocks": 4.0, "kv_swapped_out_blocks": 1.0}
    after = {
        "kv_allocated_blocks": 1510.0,
        "kv_freed_blocks": 7.0,
        "kv_swapped_out_blocks": 3.0,
        "kv_evicted_blocks": 1200.0,
        "kv_failed_reserves": 1.0,
    }

    pages = KvPages.between(before, after)

    assert block_lines(replace(FULL, pages=pages), 120)[1] == (
        "  cache 300/1.2k 25% · ctx 1.2k/8.2k · pg +1.5k/-3 hot 2 pref 1.2k fail 1 · rss 3.5 MiB ]"
    )


def test_status_beneath_an_answer_has_count_rate_first_token_and_context() -> None:
    assert status_line(FULL, 2.0) == "11 tok · 5.0 tok/s · ttft 250 ms · ctx 1.2k / 8.2k · Ctrl-C stops"
    one = replace(FULL, completion_tokens=1, last_token=10.25, context_limit=None)
    assert status_line(one, 0.3) == "1 tok · ttft 250 ms · Ctrl-C stops"


def test_status_before_the_first_token_tells_what_is_read() -> None:
    waiting = replace(FULL, completion_tokens=0, first_token=None, last_token=None)

    assert status_line(waiting, 1.25)[1:] == " reading 1200 tokens · 1.2 s · Ctrl-C stops"
    assert status_line(replace(waiting, prompt_tokens=1), 0.0)[1:] == " reading 1 token · 0.0 s · Ctrl-C stops"


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
