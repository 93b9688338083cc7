"""``run`` from a pipe: numbers, profiles and pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onnx_genai.cli.repl.diagnostic_commands import DIAGNOSTIC_COMMANDS
from onnx_genai.cli.repl.loop import Repl
from tests.chrome_trace import check_trace, read_trace
from tests.cli.conftest import Run
from tests.cli.repl.piped import ANSWER, Chat, answers

Package = Callable[..., Path]


def test_stats_are_off_until_asked_for_and_never_on_stdout(chat: Chat) -> None:
    off, on = chat("Hi", "/reset"), chat("/stats", "Hi", "/stats")

    assert " tok/s" not in off.err
    assert answers(on) == ["stats enabled", ANSWER, "stats disabled", ""]
    # One line, as stderr is no terminal.
    line = next(line for line in on.err.splitlines() if line.startswith("[ "))
    for part in (" in · ", " out · ", " · ctx ", " · backend ", " · ttft ", " · rss "):
        assert part in line


def test_second_turn_reuses_what_was_computed(run: Run, checksum_package: Package) -> None:
    words = " ".join(f"w{number}" for number in range(5, 70))
    stdin = f"/stats\n{words}\n{words} w5\n".encode()
    ran = run("run", checksum_package("gqa"), "--raw", "--max-new-tokens", "4", stdin=stdin)

    lines = [line for line in ran.err.splitlines() if line.startswith("[ ")]
    assert "cache 64/66 (97%)" in lines[1]


@pytest.mark.parametrize(
    ("limits", "pressure"),
    [
        # Pages have 16 tokens of 256 bytes. A turn takes 3 of 4, and 2 of them are kept for later; so the second turn
        # pushes one out: to the memory of the host, or, where that has no more room, for good.
        (("--vram-limit", "16384"), " hot-evict 1"),
        (("--vram-limit", "16384", "--host-ram-limit", "16384"), " prefix-evict 1"),
    ],
)
def test_numbers_tell_what_happened_to_pages(
    run: Run, checksum_package: Package, limits: tuple[str, ...], pressure: str
) -> None:
    first, second = (" ".join(f"w{number}" for number in range(start, start + 40)) for start in (5, 50))
    stdin = f"/stats\n{first}\n{second}\n".encode()
    ran = run("run", checksum_package("gqa"), "--raw", "--max-new-tokens", "4", *limits, stdin=stdin)

    lines = [line for line in ran.err.splitlines() if line.startswith("[ ")]
    assert " · pages +3 / -3 · rss " in lines[0]
    assert f" · pages +3 / -3{pressure} · rss " in lines[1]


def test_numbers_of_a_cache_without_pages_leave_them_out(chat: Chat) -> None:
    assert "pages" not in chat("/stats", "Hi").err.rpartition("[ ")[2]


def test_profile_tells_its_state_and_refuses_what_it_does_not_know(chat: Chat) -> None:
    ran = chat("/profile", "/profile nope", "/profile verbosity nope", "/profile verbosity OPS")

    assert answers(ran)[0] == "profile report off, timeline off"
    assert answers(ran)[3] == "profile verbosity ops"
    assert "decisions, ops, full" in ran.err
    assert ran.err.count("Usage: /profile") == 2


def test_profile_on_reports_after_each_turn_in_place_of_the_numbers(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = chat("/stats", "Hi", "/profile on", "Hi", "Hi", "/profile off", "Hi")

    before, *reports = re.split("(?m)^.*─ profile ─.*$", ran.err)
    assert before.count("[ ") == 1
    assert len(reports) == 2
    for report in reports:
        assert "prompt tokens" in report
        assert "time to first token" in report
    assert "[ " not in reports[0]
    assert reports[1].count("[ ") == 1  # of the turn after the report went off
    assert (tmp_path / "onnx-genai-session.perfetto.json").is_file()


def test_profile_given_to_run_reports_after_each_turn(chat: Chat) -> None:
    ran = chat("/stats", "Hi", "Hi", options=("--profile",))

    assert len(re.findall("(?m)^.*─ profile ─.*$", ran.err)) == 2
    assert "tok/s" not in "".join(line for line in ran.err.splitlines() if line.startswith("[ "))


def test_timeline_keeps_the_answers_before_a_change(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "my trace.json"

    chat(f'/profile trace "{file}"', "Hi", "/profile verbosity decisions", "Hi", "/backend ort", "Hi")

    events = read_trace(file)
    check_trace(events)
    turns = [event for event in events if event["name"] == "turn"]
    steps = [event["ts"] for event in events if event["name"] == "step"]
    assert len(turns) == 3
    for turn in turns:
        assert any(turn["ts"] <= step <= turn["ts"] + turn["dur"] for step in steps)


def test_pages_tell_how_full_the_cache_is(chat: Chat) -> None:
    assert "the KV cache of this model is not paged" in answers(chat("/pages"))[0]


def test_pages_given_a_paged_model_draw_a_bar_and_count(run: Run, checksum_package: Package) -> None:
    # 4 pages of 16 tokens. 43 tokens of a turn are run (the last of the 4 new ones is not), which fill 2 pages; those
    # are kept. The second turn needs 3 pages and finds 2, so 1 moves to the memory of the host.
    first, second = (" ".join(f"w{number}" for number in range(start, start + 40)) for start in (5, 50))
    stdin = f"/pages\n{first}\n/pages\n{second}\n/pages\n".encode()
    limits = ("--vram-limit", "16384")
    ran = run("run", checksum_package("gqa"), "--raw", "--max-new-tokens", "4", *limits, stdin=stdin)

    empty, after_one, after_two = (told.splitlines() for told in ran.out.split(">>> ")[1:6:2])
    assert empty[0] == f"KV pages {'·' * 32} 0 %"
    assert after_one[0] == f"KV pages {'▒' * 16}{'·' * 16} 50 %"
    assert _rows(after_one) == {
        "held by running requests": "0 of 4 pages of 16 tokens",
        "kept for later turns": "2 pages, 32 tokens",
        "free": "2 pages",
        "token slots in use": "32 of 64 tokens",
        "live sequences": "0 running, 0 waiting",
        "warm tier": "0 of 1048576 pages",
        "evicted so far": "0 pages",
        "reused so far": "0 of 40 prompt tokens",
    }
    assert after_two[0] == f"KV pages {'▒' * 24}{'·' * 8} 75 %"
    assert _rows(after_two) == {
        **_rows(after_one),
        "kept for later turns": "3 pages, 48 tokens",
        "free": "1 page",
        "token slots in use": "48 of 64 tokens",
        "warm tier": "1 of 1048576 pages",
        "evicted so far": "0 pages",
        "reused so far": "0 of 80 prompt tokens",
    }


def test_pages_given_running_requests_tell_what_they_hold() -> None:
    now = {
        "kv_hot_blocks": 64,
        "kv_hot_used_blocks": 16,
        "kv_hot_cached_blocks": 1,
        "kv_warm_blocks": 0,
        "kv_cold_blocks": 8,
        "kv_cold_used_blocks": 2,
        "kv_evicted_blocks": 1,
        "num_running": 2,
        "num_waiting": 1,
        "prefix_hit_tokens": 16,
        "prefix_queried_tokens": 40,
    }
    llm = SimpleNamespace(info=lambda: {"shares_blocks": True, "block_size": 16}, metrics=lambda: now)
    told: list[tuple[str, dict[str, str]]] = []
    screen = SimpleNamespace(table=lambda heading, rows: told.append((heading, dict(rows))))
    pages = next(command for command in DIAGNOSTIC_COMMANDS if command.name == "/pages")

    pages.run(cast(Repl, SimpleNamespace(host=SimpleNamespace(llm=llm, decoder="paged"), screen=screen)), "")

    # 17 of 64 pages are 27 %; of 32 cells, a quarter, and one for the page that is kept.
    assert told == [
        (
            f"KV pages {'█' * 8}▒{'·' * 23} 27 %",
            {
                "held by running requests": "16 of 64 pages of 16 tokens",
                "kept for later turns": "1 page, 16 tokens",
                "free": "47 pages",
                "token slots in use": "272 of 1024 tokens",
                "live sequences": "2 running, 1 waiting",
                "cold tier": "2 of 8 pages",
                "evicted so far": "1 page",
                "reused so far": "16 of 40 prompt tokens",
            },
        )
    ]


def _rows(lines: list[str]) -> dict[str, str]:
    """Label and value of each row beneath a heading."""
    rows = (re.split("  +", line.strip(), maxsplit=1) for line in lines[1:] if line.strip())
    return {row[0]: row[1] for row in rows}
