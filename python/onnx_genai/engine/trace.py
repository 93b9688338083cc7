"""What the engine recorded, and how it is written for timeline viewers.

Source: Trace Event Format (Google, "Trace Event Format", 2016): phases X, C, b/e, n, s/t/f, M.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onnx_genai import _core

__all__ = [
    "HostSpan",
    "OpEvent",
    "RequestTrack",
    "TraceEvents",
    "chrome_events",
    "merged_events",
    "request_tracks",
    "write_chrome_trace",
]

_DTYPE = np.dtype(
    [
        ("start", "<i8"),
        ("duration", "<i8"),
        ("id", "<u8"),
        ("a", "<i8"),
        ("b", "<i8"),
        ("name", "u1"),
        ("kind", "u1"),
        ("thread", "u1"),
        ("padding", "V5"),
    ]
)
"""``TraceEvent`` of ``cpp/genai/base/trace.h``; times are nanoseconds of ``time.perf_counter_ns``."""

_SPAN, _REQUEST_SPAN, _POINT, _COUNTER = range(4)
_THREADS = ("engine", "grammar")
FINISH_REASONS = ("stop", "length", "abort", "error")

_HOST_TID = 90
_OPS_TID = 100

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "step": ("prompt_tokens", "other_tokens"),
    "kv": ("operations",),
    "execute": ("tokens", "sequences"),
    "run": ("tokens",),
    "sample": ("rows",),
    "chunk": ("tokens", "tokens_before"),
}

HostSpan = tuple[str, int, int]
"""Name, begin and end of a part of the program's own time; nanoseconds of ``time.perf_counter_ns``."""


class OpEvent(NamedTuple):
    """One operator of a recorded run."""

    node: str
    op: str
    provider: str
    start_ns: int
    duration_ns: int
    thread: int
    run: int
    """Number of the recorded run."""


class _Event(NamedTuple):
    start: int
    duration: int
    id: int
    a: int
    b: int
    name: str
    kind: int
    thread: int


class TraceEvents:
    """Events in the order of their begin."""

    def __init__(self, data: npt.NDArray[np.void]) -> None:
        self._names = _core.trace_names()
        self._data = data[np.argsort(data["start"], kind="stable")]

    @classmethod
    def empty(cls) -> TraceEvents:
        return cls(np.empty(0, _DTYPE))

    @staticmethod
    def parse(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
        """The records that :func:`_core.take_trace` gave as bytes."""
        return data.view(_DTYPE)

    def __len__(self) -> int:
        return len(self._data)

    def since(self, start_ns: int) -> TraceEvents:
        """Those that end after ``start_ns``, and what requests have had before is left out."""
        return TraceEvents(self._data[self._data["start"] + self._data["duration"] >= start_ns])

    def __iter__(self) -> Iterator[_Event]:
        names = self._names
        for start, duration, request, a, b, name, kind, thread, _ in self._data.tolist():
            yield _Event(start, duration, request, a, b, names[name], kind, thread)

    def spans(self, name: str) -> npt.NDArray[np.void]:
        """The engine thread's spans of one name: fields ``start``, ``duration``, ``a``, ``b``."""
        which = (self._data["kind"] == _SPAN) & (self._data["name"] == self._names.index(name))
        found: npt.NDArray[np.void] = self._data[which & (self._data["thread"] == 0)]
        return found

    def points(self) -> Iterator[_Event]:
        """Moments of requests."""
        return iter(TraceEvents(self._data[self._data["kind"] == _POINT]))


@dataclass(slots=True, kw_only=True)
class RequestTrack:
    """When a request went through its states; nanoseconds, None where that was not recorded."""

    id: int
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    queued: int | None = None
    open: int | None = None
    """It was there when recording began, in this state: 0 queued, 1 in its prompt, 2 decoding."""
    open_state: int = 0
    scheduled: int | None = None
    tokens: list[tuple[int, int]] = field(default_factory=list)
    """When tokens came and how many; only the first, unless each was recorded."""
    finished: int | None = None
    finish_reason: str | None = None
    num_tokens: int | None = None
    """Of all choices, at the end."""

    def states(self, begin: int, end: int) -> list[tuple[str, int, int]]:
        """Name, begin and end of each state, without gaps, between two times."""
        first_token = self.tokens[0][0] if self.tokens and self.open_state < 2 else None
        start = self.queued if self.queued is not None else begin
        stop = self.finished if self.finished is not None else end
        moments = [("queued", start), ("prefill", self.scheduled), ("decode", first_token)]
        if self.queued is None:
            missing = self.open_state if self.open is not None else 2 if first_token is None else 1
            moments[: missing + 1] = [(("queued", "prefill", "decode")[missing], start)]
        known = [(name, min(max(at, start), stop)) for name, at in moments if at is not None]
        ends = [at for _, at in known[1:]] + [stop]
        return [(name, at, max(at, until)) for (name, at), until in zip(known, ends, strict=True)]


def request_tracks(events: TraceEvents) -> list[RequestTrack]:
    """One track a request, in the order in which they are met."""
    tracks: dict[int, RequestTrack] = {}
    for event in events.points():
        track = tracks.setdefault(event.id, RequestTrack(id=event.id))
        match event.name:
            case "queued":
                track.queued, track.prompt_tokens = event.start, event.a
            case "open":
                track.open, track.prompt_tokens, track.open_state = event.start, event.a, event.b
            case "scheduled":
                track.scheduled, track.cached_tokens = event.start, event.a
            case "first_token" | "token":
                track.tokens.append((event.start, event.a))
            case "finished":
                track.finished, track.num_tokens = event.start, event.b
                track.finish_reason = FINISH_REASONS[event.a]
    return list(tracks.values())


def chrome_events(
    events: TraceEvents,
    *,
    begin_ns: int,
    end_ns: int,
    ops: Sequence[OpEvent] = (),
    host_spans: Sequence[HostSpan] = (),
) -> list[dict[str, Any]]:
    """Returns the objects of ``traceEvents``: metadata, then all others in the order of their time.

    Args:
        events: What the engine recorded.
        begin_ns: When recording began; states of requests that were there before begin here.
        end_ns: When it ended; what is open ends here.
        ops: Operators of the recorded runs.
        host_spans: Parts of the program's own time.
    """
    pid = os.getpid()
    timed = [*_thread_events(events, pid), *_op_events(ops, pid), *_host_events(host_spans, pid)]
    timed += _request_events(events, begin_ns, end_ns, pid)
    timed.sort(key=_order)
    return [*_metadata(timed, pid), *timed]


def merged_events(earlier: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """:func:`chrome_events` of a recording, with those of recordings before it in the same process."""
    named = [event for event in events if event["ph"] == "M"]
    known = [{key: event.get(key) for key in ("name", "tid")} for event in named]
    named += [e for e in earlier if e["ph"] == "M" and {key: e.get(key) for key in ("name", "tid")} not in known]
    return [*named, *sorted((event for event in (*earlier, *events) if event["ph"] != "M"), key=_order)]


def _order(event: Mapping[str, Any]) -> tuple[float, bool, float]:
    """What begins at one time: the outer span first, and the end of a state before the next begins."""
    return event["ts"], event["ph"] != "e", -event.get("dur", 0)


def write_chrome_trace(path: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file for ui.perfetto.dev or chrome://tracing."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for index, event in enumerate(events):
            file.write((",\n" if index else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _thread_events(events: TraceEvents, pid: int) -> Iterator[dict[str, Any]]:
    for event in events:
        common = {"pid": pid, "tid": 1 + event.thread, "ts": _us(event.start)}
        arguments = dict(zip(_ARGUMENTS.get(event.name, ()), (event.a, event.b), strict=False))
        if event.kind == _SPAN:
            yield {
                "name": event.name,
                "cat": _THREADS[event.thread],
                "ph": "X",
                "dur": _us(event.duration),
                **common,
                "args": arguments,
            }
        elif event.kind == _COUNTER:
            yield {"name": event.name, "cat": "counter", "ph": "C", **common, "args": {"value": event.a}}
        elif event.kind == _REQUEST_SPAN:
            piece = {"name": event.name, "cat": "request", "id": hex(event.id), **common}
            yield {**piece, "ph": "b", "args": arguments}
            yield {**piece, "ph": "e", "ts": _us(event.start + event.duration)}


def _op_events(ops: Sequence[OpEvent], pid: int) -> Iterator[dict[str, Any]]:
    threads = {thread: index for index, thread in enumerate(sorted({op.thread for op in ops}))}
    for op in ops:
        yield {
            "name": op.node,
            "cat": "op",
            "ph": "X",
            "pid": pid,
            "tid": _OPS_TID + threads[op.thread],
            "ts": _us(op.start_ns),
            "dur": _us(op.duration_ns),
            "args": {"op": op.op, "provider": op.provider, "run": op.run},
        }


def _host_events(spans: Sequence[HostSpan], pid: int) -> Iterator[dict[str, Any]]:
    for name, start, end in spans:
        yield {
            "name": name,
            "cat": "host",
            "ph": "X",
            "pid": pid,
            "tid": _HOST_TID,
            "ts": _us(start),
            "dur": _us(end - start),
            "args": {},
        }


def _request_events(events: TraceEvents, begin_ns: int, end_ns: int, pid: int) -> Iterator[dict[str, Any]]:
    inboxes = events.spans("inbox")
    ends = inboxes["start"] + inboxes["duration"]
    for track in request_tracks(events):
        states = track.states(begin_ns, end_ns)
        common = {"cat": "request", "id": hex(track.id), "pid": pid, "tid": 1}
        facts = {
            "prompt_tokens": track.prompt_tokens,
            "cached_tokens": track.cached_tokens,
            "tokens": track.num_tokens,
            "finish": track.finish_reason,
        }
        arguments = {key: value for key, value in facts.items() if value is not None}
        name = f"request {track.id}"
        yield {"name": name, "ph": "b", **common, "ts": _us(states[0][1]), "args": arguments}
        for state, start, end in states:
            if end == start:
                continue
            yield {"name": state, "ph": "b", **common, "ts": _us(start), "args": {}}
            yield {"name": state, "ph": "e", **common, "ts": _us(end)}
        for at, count in track.tokens:
            if not states[0][1] <= at <= states[-1][2]:
                continue
            yield {"name": "token", "ph": "n", **common, "ts": _us(at), "args": {"tokens": count}}
        yield {"name": name, "ph": "e", **common, "ts": _us(states[-1][2])}
        place = int(np.searchsorted(ends, track.queued, side="right")) if track.queued is not None else len(ends)
        if place < len(ends) and track.finished is not None and track.finished >= inboxes["start"][place]:
            # From where the engine took the request to the step that ended it.
            flow = {"name": name, "cat": "flow", "id": track.id, "pid": pid, "tid": 1}
            yield {**flow, "ph": "s", "ts": _us(int(inboxes["start"][place]))}
            if track.scheduled is not None:
                yield {**flow, "ph": "t", "ts": _us(track.scheduled)}
            yield {**flow, "ph": "f", "bp": "e", "ts": _us(track.finished)}


def _metadata(timed: Sequence[Mapping[str, Any]], pid: int) -> list[dict[str, Any]]:
    names = {1 + index: name for index, name in enumerate(_THREADS)} | {_HOST_TID: "command"}
    found = [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "onnx-genai"}}]
    for tid in sorted({event["tid"] for event in timed}):
        name = names.get(tid, f"operators {tid - _OPS_TID}" if tid > _OPS_TID else "operators")
        common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
        found.append({"name": "thread_name", **common, "args": {"name": name}})
        found.append({"name": "thread_sort_index", **common, "args": {"sort_index": tid}})
    return found
