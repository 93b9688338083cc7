"""What a model did and where time and memory went: :class:`Profile`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onnx_genai.engine.memory_use import MemoryUse
from onnx_genai.engine.trace import (
    HostSpan,
    OpEvent,
    RequestTrack,
    TraceEvents,
    chrome_events,
    merged_events,
    request_tracks,
    write_chrome_trace,
)
from onnx_genai.errors import InvalidArgumentError

__all__ = [
    "VERBOSITIES",
    "Distribution",
    "KvActivity",
    "NodeTime",
    "OperatorTime",
    "Profile",
    "RequestProfile",
    "Stage",
    "Summary",
    "Verbosity",
    "check_verbosity",
]

Verbosity = Literal["decisions", "ops", "full"]
"""What is recorded: steps, requests and KV; and operators of a part of the runs; and each token."""

VERBOSITIES: tuple[Verbosity, ...] = ("decisions", "ops", "full")

_STEP_PARTS = ("schedule", "kv", "execute", "sample", "emit", "update")
_EXECUTE_PARTS = ("inputs", "run", "logits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of durations in seconds; percentiles are nearest-rank."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float] | npt.NDArray[np.float64]) -> Distribution | None:
        """None without values."""
        ordered = np.sort(np.asarray(seconds, dtype=np.float64))
        if not len(ordered):
            return None

        def rank(percent: float) -> float:
            return float(ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)])

        return cls(
            count=len(ordered),
            mean=float(ordered.mean()),
            p50=rank(50),
            p90=rank(90),
            p99=rank(99),
            max=float(ordered[-1]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A kind of work of the engine's thread. The seconds of all stages are the time of the thread."""

    name: str
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProfile:
    """One request; durations in seconds, None where it did not get so far while it was recorded."""

    id: int
    prompt_tokens: int
    cached_tokens: int
    num_tokens: int
    """Of all choices; below verbosity ``full`` and until it has ended only those of its first piece."""
    queued_seconds: float | None
    time_to_first_token: float | None
    """From its submission."""
    seconds: float | None
    """From its submission to its end."""
    decode_tokens_per_second: float | None
    """After its first token, all choices together; once it has ended."""
    finish_reason: str | None
    token_times: tuple[float, ...] = field(default=(), repr=False)
    """When each token was made, of ``time.perf_counter``; with verbosity ``full``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvActivity:
    """Blocks of KV that were moved while it was recorded."""

    allocated: int
    freed: int
    evicted: int
    copied: int
    swapped_out: int
    swapped_in: int
    cold_writes: int
    cold_reads: int
    failed_reserves: int
    """Times that no block was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """All recorded calls of one operator type."""

    name: str
    seconds: float
    calls: int
    share: float
    """Of the time of all recorded operators, 0..1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """All recorded calls of one node of the graph."""

    name: str
    operator: str
    provider: str
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """What was recorded. Durations are seconds; what was not measured is None or empty.

    Example:
        >>> with llm.profile() as run:  # doctest: +SKIP
        ...     llm.generate("The sky is")
        >>> run.result.decode_tokens_per_second  # doctest: +SKIP
    """

    verbosity: Verbosity
    seconds: float
    """That were recorded."""
    stages: tuple[Stage, ...]
    """In the order of a step; with ``wait``, which is idle time."""
    own_share: float | None
    """Of the engine's busy time, what was spent outside of ONNX Runtime and of moving KV; 0..1."""
    num_steps: int
    step_seconds: Distribution | None
    """Of steps that ran something."""
    prompt_tokens: int
    """That ran; cached ones did not."""
    generated_tokens: int
    prefill_tokens_per_second: float | None
    """Over the steps that ran only prompts."""
    decode_tokens_per_second: float | None
    """Over the steps that ran no prompt, all sequences together."""
    requests: tuple[RequestProfile, ...]
    time_to_first_token: Distribution | None
    inter_token_latency: Distribution | None
    """Between the pieces of each request; with verbosity ``full``."""
    kv: KvActivity
    memory: MemoryUse
    operators: tuple[OperatorTime, ...]
    """By type, the most expensive first."""
    nodes: tuple[NodeTime, ...]
    """By node, the most expensive first."""
    num_runs: int
    num_profiled_runs: int
    """Runs whose operators were recorded: the others were left alone, as recording slows them."""
    num_lost_events: int
    """Events that were dropped because there were more than a recording keeps; figures from events lack them."""
    begin_ns: int = field(repr=False)
    end_ns: int = field(repr=False)
    _events: TraceEvents = field(repr=False)
    _ops: tuple[OpEvent, ...] = field(repr=False)

    def trace_events(self, *, host_spans: Sequence[HostSpan] = ()) -> list[dict[str, Any]]:
        """The timeline as objects of the Trace Event Format; ``host_spans`` are put on a thread of their own."""
        return chrome_events(
            self._events, begin_ns=self.begin_ns, end_ns=self.end_ns, ops=self._ops, host_spans=host_spans
        )

    def write_trace(
        self, path: str | Path, *, host_spans: Sequence[HostSpan] = (), earlier: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Writes the timeline for ui.perfetto.dev or chrome://tracing; an old file is replaced. ``earlier``: events of
        recordings before this one, whose ids differ from its own.
        """
        write_chrome_trace(Path(path), merged_events(earlier, self.trace_events(host_spans=host_spans)))

    def as_dict(self) -> dict[str, Any]:
        """JSON values; keys of what was not measured are absent."""
        return {name: value for name, value in _plain(self).items() if value not in (None, [])}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Makes figures of what was recorded between two moments; nanoseconds."""

    events: TraceEvents
    ops: Sequence[OpEvent]
    before: Mapping[str, float]
    after: Mapping[str, float]
    begin: int
    end: int

    def profile(self, verbosity: Verbosity, *, events: TraceEvents, memory: MemoryUse) -> Profile:
        steps = self.events.spans("step")
        steps = steps[(steps["a"] + steps["b"]) > 0]
        tracks = [
            track for track in request_tracks(self.events) if track.finished is None or track.finished > self.begin
        ]
        requests = tuple(_request(track, has_tokens=verbosity == "full") for track in tracks)
        runs = self.events.spans("run")
        return Profile(
            verbosity=verbosity,
            seconds=(self.end - self.begin) / 1e9,
            stages=self._stages(),
            own_share=self._own_share(),
            num_steps=len(steps),
            step_seconds=Distribution.of(steps["duration"] / 1e9),
            prompt_tokens=int(self._moved("num_prompt_tokens")),
            generated_tokens=int(self._moved("num_generated_tokens")),
            prefill_tokens_per_second=_rate(steps[steps["b"] == 0], "a"),
            decode_tokens_per_second=_rate(steps[steps["a"] == 0], "b"),
            requests=requests,
            time_to_first_token=Distribution.of(
                [each.time_to_first_token for each in requests if each.time_to_first_token is not None]
            ),
            inter_token_latency=Distribution.of(
                [gap for track in tracks for gap in _gaps(track)] if verbosity == "full" else []
            ),
            kv=self._kv(),
            memory=memory,
            operators=_operators(self.ops),
            nodes=_nodes(self.ops),
            num_runs=len(runs),
            num_profiled_runs=int((runs["b"] > 0).sum()),
            num_lost_events=0,
            begin_ns=self.begin,
            end_ns=self.end,
            _events=events,
            _ops=(),
        )

    def _moved(self, name: str) -> float:
        return self.after.get(name, 0) - self.before.get(name, 0)

    def _stages(self) -> tuple[Stage, ...]:
        found: dict[str, Stage] = {}
        for name in ("wait", "inbox", *_STEP_PARTS, *_EXECUTE_PARTS, "step", "publish"):
            spans = self.events.spans(name)
            # A wait that began before the mark counts from there.
            seconds = np.minimum(spans["duration"], spans["start"] + spans["duration"] - self.begin).sum() / 1e9
            found[name] = Stage(name=name, seconds=float(seconds), calls=len(spans))

        def rest(name: str, whole: str, parts: Sequence[str]) -> Stage:
            seconds = found[whole].seconds - sum(found[part].seconds for part in parts)
            return Stage(name=name, seconds=max(0.0, seconds), calls=found[whole].calls)

        order = [found[name] for name in ("wait", "inbox", "schedule", "kv", "inputs", "run", "logits")]
        order.append(rest("decoder, other", "execute", _EXECUTE_PARTS))
        order += [found[name] for name in ("sample", "emit", "update")]
        order.append(rest("step, other", "step", _STEP_PARTS))
        order.append(found["publish"])
        return tuple(stage for stage in order if stage.calls)

    def _own_share(self) -> float | None:
        busy = self._moved("step_seconds") + self._moved("publish_seconds")
        if busy <= 0:
            return None
        return max(0.0, 1 - (self._moved("run_seconds") + self._moved("move_seconds")) / busy)

    def _kv(self) -> KvActivity:
        def moved(name: str) -> int:
            return int(self._moved(name))

        return KvActivity(
            allocated=moved("kv_allocated_blocks"),
            freed=moved("kv_freed_blocks"),
            evicted=moved("kv_evicted_blocks"),
            copied=moved("kv_copied_blocks"),
            swapped_out=moved("kv_swapped_out_blocks"),
            swapped_in=moved("kv_swapped_in_blocks"),
            cold_writes=moved("kv_cold_writes"),
            cold_reads=moved("kv_cold_reads"),
            failed_reserves=moved("kv_failed_reserves"),
        )


def check_verbosity(verbosity: object) -> Verbosity:
    """Returns it.

    Raises:
        InvalidArgumentError: It is none.
    """
    for known in VERBOSITIES:
        if verbosity == known:
            return known
    raise InvalidArgumentError(f"verbosity is {verbosity!r}; allowed: {', '.join(VERBOSITIES)}")


def _rate(steps: npt.NDArray[np.void], tokens: str) -> float | None:
    seconds = float(steps["duration"].sum()) / 1e9
    count = int(steps[tokens].sum())
    return count / seconds if count and seconds > 0 else None


def _gaps(track: RequestTrack) -> list[float]:
    times = [at for at, _ in track.tokens]
    return [(after - before) / 1e9 for before, after in itertools.pairwise(times)]


def _request(track: RequestTrack, *, has_tokens: bool) -> RequestProfile:
    first = track.tokens[0][0] if track.tokens and track.open_state < 2 else None
    rate = None
    if first is not None and track.finished is not None and track.num_tokens is not None:
        nanoseconds = track.finished - first
        rate = (track.num_tokens - 1) * 1e9 / nanoseconds if track.num_tokens > 1 and nanoseconds > 0 else None

    def seconds(begin: int | None, end: int | None) -> float | None:
        return None if begin is None or end is None else (end - begin) / 1e9

    return RequestProfile(
        id=track.id,
        prompt_tokens=track.prompt_tokens or 0,
        cached_tokens=track.cached_tokens,
        num_tokens=track.num_tokens if track.num_tokens is not None else sum(count for _, count in track.tokens),
        queued_seconds=seconds(track.queued, track.scheduled),
        time_to_first_token=seconds(track.queued, first),
        seconds=seconds(track.queued, track.finished),
        decode_tokens_per_second=rate,
        finish_reason=track.finish_reason,
        token_times=tuple(at / 1e9 for at, count in track.tokens for _ in range(count)) if has_tokens else (),
    )


def _operators(ops: Sequence[OpEvent]) -> tuple[OperatorTime, ...]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for op in ops:
        sums[op.op][0] += op.duration_ns
        sums[op.op][1] += 1
    total = sum(duration for duration, _ in sums.values()) or 1
    found = [
        OperatorTime(name=name, seconds=duration / 1e9, calls=calls, share=duration / total)
        for name, (duration, calls) in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.name)))


def _nodes(ops: Sequence[OpEvent]) -> tuple[NodeTime, ...]:
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for op in ops:
        entry = sums[op.node, op.op, op.provider]
        entry[0] += op.duration_ns
        entry[1] += 1
    found = [
        NodeTime(name=node, operator=op, provider=provider, seconds=duration / 1e9, calls=calls)
        for (node, op, provider), (duration, calls) in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.name)))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _plain(getattr(value, each.name))
            for each in dataclasses.fields(value)
            if each.repr and getattr(value, each.name) is not None
        }
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
