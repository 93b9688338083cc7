"""Timelines as Perfetto reads them: its trace processor against the file itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, SamplingParams
from tests.chrome_trace import outermost, read_trace, thread
from tests.trace_processor import ask

PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SPANS = """
    select slice.name, slice.ts, slice.dur, slice.depth, parent.ts as parent_ts, parent.dur as parent_dur,
        thread.name as thread
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    left join slice as parent on slice.parent_id = parent.id
    order by slice.ts, slice.depth
"""
STATES = """
    select track.name as request, slice.name from slice join track on slice.track_id = track.id
    where track.id not in (select id from thread_track)
"""
ARGUMENTS = """
    select slice.ts, args.key, args.int_value as value
    from slice join thread_track on slice.track_id = thread_track.id join args using (arg_set_id)
    where slice.name = 'step'
"""
COUNTERS = "select track.name, counter.value from counter join track on counter.track_id = track.id"
ARROWS = """
    select above.name as above, below.name as below
    from flow join slice as above on flow.slice_out = above.id join slice as below on flow.slice_in = below.id
"""


@pytest.fixture(params=["tiny", pytest.param("real", marks=pytest.mark.real_model)])
def model(request: pytest.FixtureRequest, checksum_package: Callable[..., Path]) -> Path:
    folder: Path = checksum_package("gqa") if request.param == "tiny" else request.getfixturevalue("smollm2")
    return folder


def test_perfetto_reads_every_event_as_it_was_meant(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with LLM(model, threads=1) as llm, llm.profile(path) as run:
        llm.generate([[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True))

    problems, spans, states, arguments, counters, arrows = ask(
        path, PROBLEMS, SPANS, STATES, ARGUMENTS, COUNTERS, ARROWS
    )

    events = read_trace(path)
    assert problems == []
    assert _names(spans) == Counter(event["name"] for event in events if event["ph"] == "X")
    assert _names(states) == Counter(event["name"] for event in events if event["ph"] in "bn")
    assert {each["request"] for each in states} == {"request 1", "request 2"}
    assert Counter((each["name"], each["value"]) for each in counters) == Counter(
        (f"{event['name']} value", event["args"]["value"]) for event in events if event["ph"] == "C"
    )
    assert len(arrows) == sum(event["ph"] in "tf" for event in events)

    # Each span lies in the one above it; those that lie in none are the engine thread's whole time.
    for span in spans:
        if span["depth"] > 0:
            assert span["parent_ts"] <= span["ts"]
            assert span["ts"] + span["dur"] <= span["parent_ts"] + span["parent_dur"]
    outer = [span for span in spans if span["thread"] == "engine" and span["depth"] == 0]
    assert _names(outer) == Counter(span["name"] for span in outermost(thread(events, "engine")))
    assert sum(span["dur"] for span in outer) == pytest.approx(1e9 * run.result.seconds, rel=0.05)

    steps = [event for event in events if event["ph"] == "X" and event["name"] == "step"]
    assert Counter((each["key"], each["value"]) for each in arguments) == Counter(
        (f"args.{name}", value) for event in steps for name, value in event["args"].items()
    )


def _names(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["name"] for row in rows)
