"""The line of numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnx_genai.cli.profile_report import KvPages
from onnx_genai.cli.stats import Stats, compact_line, resident_bytes

FULL = Stats(
    prompt_tokens=1200,
    completion_tokens=11,
    cached_tokens=300,
    context_limit=8192,
    backend="slot",
    started=10.0,
    first_token=10.25,
    last_token=12.25,
    budget_cap=(50, 11),
    resident=3 * 1024**2 + 512 * 1024,
)


def test_line_given_everything_has_the_parts_in_order() -> None:
    assert compact_line(FULL) == (
        "[ 1200 in · 11 out · cache 300/1.2k (25%) · ctx 1.2k / 8.2k · max-new capped 50 -> 11 · backend slot"
        " · 5.0 tok/s · ttft 250 ms · rss 3.5 MiB ]"
    )


def test_line_given_one_token_has_a_first_token_time_but_no_rate() -> None:
    line = compact_line(replace(FULL, completion_tokens=1, last_token=10.25))

    assert "ttft 250 ms" in line
    assert "tok/s" not in line


def test_line_given_nothing_measured_leaves_the_parts_out() -> None:
    stats = Stats(
        prompt_tokens=3,
        completion_tokens=0,
        cached_tokens=None,
        context_limit=None,
        backend=None,
        started=0.0,
        first_token=None,
        last_token=None,
    )

    assert compact_line(stats) == "[ 3 in ]"


@pytest.mark.parametrize(
    ("hot", "prefix", "failed", "text"),
    [
        (0, 0, 0, "pages +5 / -2"),
        (3, 0, 0, "pages +5 / -2 hot-evict 3"),
        (0, 4, 0, "pages +5 / -2 prefix-evict 4"),
        (0, 0, 1, "pages +5 / -2 fail 1"),
        (3, 4, 1, "pages +5 / -2 hot-evict 3 prefix-evict 4 fail 1"),
    ],
)
def test_line_given_page_activity_names_what_happened(hot: int, prefix: int, failed: int, text: str) -> None:
    pages = KvPages(allocated=5, freed=2, hot_evictions=hot, prefix_evictions=prefix, allocation_failures=failed)

    assert f" · ttft 250 ms · {text} · rss 3.5 MiB ]" in compact_line(replace(FULL, pages=pages))


@pytest.mark.parametrize(("size", "text"), [(512, "512.0 B"), (2048, "2.0 KiB"), (5 * 1024**3, "5.0 GiB")])
def test_line_given_a_size_picks_the_unit(size: int, text: str) -> None:
    assert f"rss {text} ]" in compact_line(replace(FULL, resident=size))


def test_resident_bytes_is_a_plausible_size() -> None:
    size = resident_bytes()

    assert size is not None
    assert 2**20 < size < 2**40
