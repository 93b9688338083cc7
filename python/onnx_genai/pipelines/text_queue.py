"""Joins the texts of many callers into common runs of an encoder: :class:`TextQueue`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

import numpy as np

from onnx_genai.engine import EncoderEngine, EncoderText, StopFlag
from onnx_genai.errors import AbortedError, GenAIError
from onnx_genai.pipelines.vectors import Vectors

__all__ = ["TextQueue"]


class _Job:
    """The texts of one caller, longest first."""

    def __init__(self, texts: Sequence[EncoderText], width: int) -> None:
        self.texts = texts
        self.left = deque(sorted(range(len(texts)), key=lambda place: -len(texts[place].ids)))
        self.vectors: Vectors = np.empty((len(texts), width), np.float32)
        self.future: Future[Vectors] = Future()

    def take(self, max_tokens: int) -> list[int]:
        """Texts for the next round: one at least."""
        taken: list[int] = []
        tokens = 0
        while self.left and (not taken or tokens + len(self.texts[self.left[0]].ids) <= max_tokens):
            place = self.left.popleft()
            tokens += len(self.texts[place].ids)
            taken.append(place)
        return taken


class TextQueue:
    """One thread that runs an encoder in rounds; each takes some texts of every caller that waits.

    So the texts of many callers share runs, a caller with many texts does not hold up the others, and one who leaves
    is left out of the next round. Safe from any thread.
    """

    def __init__(self, engine: EncoderEngine, *, max_tokens: int) -> None:
        """``max_tokens``: of a round, shared by the callers."""
        self._engine = engine
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []  # guarded by _lock, as the next two
        self._is_running = False
        self._is_closed = False
        self._stop = StopFlag()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onnx-genai-embed")

    def submit(self, texts: Sequence[EncoderText]) -> Future[Vectors]:
        """Vectors of texts, in their order; cancelling the future drops the texts that have not run.

        Raises:
            AbortedError: The queue is closed.
        """
        job = _Job(texts, self._engine.width)
        with self._lock:
            if self._is_closed:
                raise _closed_error()
            self._jobs.append(job)
            if not self._is_running:
                self._is_running = True
                self._executor.submit(self._run)
        return job.future

    def close(self) -> None:
        """Fails what waits; a second call does nothing."""
        with self._lock:
            self._is_closed = True
        self._stop.set()
        self._executor.shutdown(wait=False)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._jobs = [job for job in self._jobs if not job.future.done()]
                jobs = list(self._jobs)
                if not jobs:
                    self._is_running = False
                    return
                # Who came first is not always the first to be taken from.
                self._jobs = [*self._jobs[1:], self._jobs[0]]
            share = max(self._max_tokens // len(jobs), 1)
            self._round([(job, job.take(share)) for job in jobs])

    def _round(self, parts: Sequence[tuple[_Job, list[int]]]) -> None:
        try:
            vectors = self._engine.encode(
                [job.texts[place] for job, places in parts for place in places], stop=self._stop
            )
        except GenAIError as error:
            if len(parts) == 1 or self._stop.is_set:
                for job, _ in parts:
                    _fail(job, _closed_error() if self._stop.is_set else error)
                return
            # Only the caller whose text is at fault shall see it.
            for part in parts:
                self._round([part])
            return
        except BaseException as error:  # noqa: BLE001  whoever waits must hear of it
            for job, _ in parts:
                _fail(job, error)
            return
        start = 0
        for job, places in parts:
            job.vectors[places] = vectors[start : start + len(places)]
            start += len(places)
            if not job.left:
                _finish(job)


def _closed_error() -> AbortedError:
    return AbortedError("the encoder is closed; open the model again to use it")


def _finish(job: _Job) -> None:
    try:
        job.future.set_result(job.vectors)
    except InvalidStateError:
        return  # cancelled meanwhile


def _fail(job: _Job, error: BaseException) -> None:
    try:
        job.future.set_exception(error)
    except InvalidStateError:
        return
