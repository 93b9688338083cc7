"""Checks of Chrome Trace Event JSON, field by field, by the format's own description."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

COMMON = {"name": str, "ph": str, "pid": int, "tid": int, "ts": (int, float)}
FIELDS: dict[str, dict[str, Any]] = {
    "X": {"dur": (int, float), "cat": str, "args": dict},
    "C": {"args": dict, "cat": str},
    "b": {"id": str, "cat": str, "args": dict},
    "e": {"id": str, "cat": str},
    "n": {"id": str, "cat": str, "args": dict},
    "s": {"id": int, "cat": str},
    "t": {"id": int, "cat": str},
    "f": {"id": int, "cat": str, "bp": str},
    "M": {"args": dict},
}


def read_trace(path: Path) -> list[Event]:
    """The events of a file that has nothing else in it."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert set(whole) == {"traceEvents", "displayTimeUnit"}
    assert whole["displayTimeUnit"] == "ms"
    events: list[Event] = whole["traceEvents"]
    return events


def check_trace(events: list[Event]) -> None:
    """Fails unless the events are what a viewer can show without guessing."""
    _check_fields(events)
    _check_order(events)
    _check_nesting(events)
    _check_states(events)
    _check_flows(events)


def thread(events: list[Event], name: str) -> list[Event]:
    """The spans of the thread of this name."""
    ids = [e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == name]
    assert len(ids) == 1, f"{len(ids)} threads are named {name}"
    return [event for event in events if event["ph"] == "X" and event["tid"] == ids[0]]


def outermost(spans: list[Event]) -> list[Event]:
    """Those that lie in no other. Times have three decimals, so a nanosecond is the tolerance."""
    found: list[Event] = []
    end = -1.0
    for span in sorted(spans, key=lambda each: (each["ts"], -each["dur"])):
        if span["ts"] >= end - 1e-3:
            found.append(span)
            end = span["ts"] + span["dur"]
    return found


def _check_fields(events: list[Event]) -> None:
    for event in events:
        wanted = {**COMMON, **FIELDS[event["ph"]]}
        assert set(event) == set(wanted), event
        for field, kind in wanted.items():
            assert isinstance(event[field], kind), (field, event)
            assert not isinstance(event[field], bool), (field, event)
        assert event["name"]
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        assert event.get("bp", "e") == "e"
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
    assert len({event["pid"] for event in events}) == 1


def _check_order(events: list[Event]) -> None:
    latest: dict[int, float] = defaultdict(float)
    for event in events:
        if event["ph"] != "M":
            assert event["ts"] >= latest[event["tid"]], event
            latest[event["tid"]] = event["ts"]
    named = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] != "M"} <= named


def _check_nesting(events: list[Event]) -> None:
    """Spans of a thread lie in each other or apart. Times have three decimals, so a nanosecond is the tolerance."""
    ends: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        open_ends = ends[event["tid"]]
        while open_ends and open_ends[-1] <= event["ts"] + 1e-3:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + 2e-3, event
        open_ends.append(end)


def _check_states(events: list[Event]) -> None:
    """Each begin has its end: the last that is open is the first to be closed, by its own name."""
    stacks: dict[tuple[str, str], list[str]] = defaultdict(list)
    opened: set[tuple[str, str]] = set()
    for event in events:
        if event["ph"] not in "ben":
            continue
        key = event["cat"], event["id"]
        if event["ph"] == "b":
            assert stacks[key] or key not in opened, f"{key} is used twice"
            opened.add(key)
            stacks[key].append(event["name"])
        elif event["ph"] == "e":
            assert stacks[key], event
            assert stacks[key].pop() == event["name"], event
        else:
            assert stacks[key], event
    assert not any(stacks.values()), stacks


def _check_flows(events: list[Event]) -> None:
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    spans: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["tid"]].append(event)
    for steps in flows.values():
        phases = "".join(step["ph"] for step in steps)
        assert phases in ("sf", "stf"), phases
        assert len({(step["name"], step["cat"]) for step in steps}) == 1
        for step in steps:
            covered = any(s["ts"] - 1e-3 <= step["ts"] <= s["ts"] + s["dur"] + 1e-3 for s in spans[step["tid"]])
            assert covered, f"no span holds {step}"
