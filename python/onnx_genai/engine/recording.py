"""Recording what an engine does: :class:`Recording`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onnx_genai import _core
from onnx_genai.engine.memory_use import measure_memory
from onnx_genai.engine.op_profile import read_op_files
from onnx_genai.engine.profile import VERBOSITIES, Profile, Summary, Verbosity, check_verbosity
from onnx_genai.engine.trace import OpEvent, TraceEvents

__all__ = ["MAX_EVENTS", "Recording"]

MAX_EVENTS = 1_000_000
"""That a recording keeps; then the oldest go."""


class Recording:
    """A recording that runs. Thread-safe."""

    def __init__(
        self,
        core: _core.Engine,
        *,
        verbosity: Verbosity,
        model_files: Sequence[Path] = (),
        max_events: int = MAX_EVENTS,
    ) -> None:
        """Starts it; use :meth:`ModelEngine.start_profile`."""
        self.verbosity: Verbosity = check_verbosity(verbosity)
        self._core = core
        self._model_files = tuple(model_files)
        self._max_events = max_events
        self._lock = threading.Lock()
        self._result: Profile | None = None  # guarded by _lock, as all that follows
        self._chunks: list[npt.NDArray[np.void]] = []
        self._dropped = 0
        self._runs: dict[int, tuple[int, int]] = {}
        self._ops: list[OpEvent] = []
        self._folder: Path | None = None
        if verbosity != "decisions":
            self._folder = Path(tempfile.mkdtemp(prefix="onnx-genai-profile-"))
        self._end = weakref.finalize(self, _end, core, self._folder, os.getpid())
        try:
            _core.start_trace(
                core,
                level=1 + VERBOSITIES.index(verbosity),
                max_events=max_events,
                ops_folder="" if self._folder is None else str(self._folder),
            )
        except BaseException:
            self._end()
            raise
        self._begin = time.perf_counter_ns()
        self._mark = self._begin
        self._metrics: Mapping[str, float] = core.metrics()

    @property
    def is_running(self) -> bool:
        return self._result is None

    # The engine is never called with the lock held: its own thread may wait for the lock, in a user's processor.

    def mark(self) -> None:
        """From now on the figures count anew; the timeline keeps all."""
        metrics = self._core.metrics()
        with self._lock:
            self._mark = time.perf_counter_ns()
            self._metrics = metrics

    def snapshot(self) -> Profile:
        """What was recorded so far; waits for the step that runs. After :meth:`stop` always the same.

        Raises:
            InvalidArgumentError: Called from a logits processor or sampler.
        """
        data, lost = _core.take_trace(self._core)
        with self._lock:
            return self._result or self._profile(data, lost)

    def stop(self) -> Profile:
        """Ends the recording, and returns it. A second call returns the same.

        Raises:
            InvalidArgumentError: Called from a logits processor or sampler.
        """
        if self._result is None:
            _core.stop_trace(self._core)
        data, lost = _core.take_trace(self._core)
        with self._lock:
            if self._result is None:
                self._result = self._profile(data, lost)
                self._end()
            return self._result

    def _profile(self, data: npt.NDArray[np.uint8], lost: int) -> Profile:
        chunk = TraceEvents.parse(data)
        self._keep(chunk)
        # The engine has gone on, and this thread may have slept, since its last event was taken.
        end = int((chunk["start"] + chunk["duration"]).max()) if len(chunk) else time.perf_counter_ns()
        end = max(end, self._mark)
        events = TraceEvents(np.concatenate(self._chunks)) if self._chunks else TraceEvents.empty()
        profile = Summary(
            events=events.since(self._mark),
            ops=[op for op in self._ops if op.start_ns >= self._mark],
            before=self._metrics,
            after=self._core.metrics(),
            begin=self._mark,
            end=end,
        ).profile(self.verbosity, events=events, memory=measure_memory(self._core, self._model_files))
        return dataclasses.replace(
            profile, begin_ns=self._begin, end_ns=end, _ops=tuple(self._ops), num_lost_events=self._dropped + lost
        )

    def _keep(self, chunk: npt.NDArray[np.void]) -> None:
        if len(chunk):
            if not self._chunks and self._mark == self._begin:
                # The engine began a moment before the call that started it returned.
                self._begin = self._mark = min(self._begin, int(chunk["start"].min()))
            self._chunks.append(chunk)
        while len(self._chunks) > 1 and sum(map(len, self._chunks[1:])) >= self._max_events:
            self._dropped += len(self._chunks.pop(0))
        runs = TraceEvents(chunk).spans("run")
        for run in runs[runs["b"] > 0]:
            self._runs[int(run["b"]) - 1] = (int(run["start"]), int(run["start"] + run["duration"]))
        if self._folder is not None and self._runs:
            self._ops.extend(read_op_files(self._folder, self._runs))


def _end(core: _core.Engine, folder: Path | None, pid: int) -> None:
    """Also of a recording that nobody stopped. Not in a process that was forked from the one that made it."""
    if os.getpid() != pid:
        return
    _core.drop_trace(core)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
