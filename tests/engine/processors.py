"""Logits processors that hold, slow down or watch the engine's thread; they leave the logits alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from onnx_genai import LLM, AsyncLLM

__all__ = ["Gate", "Log", "Slow", "StepGate", "settled"]

Rows = Sequence[npt.NDArray[np.int32]]
Logits = npt.NDArray[np.float32]


class Gate:
    """Stops the engine's thread at the first token of a request until it is opened."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self._is_open = threading.Event()

    def open(self) -> None:
        self._is_open.set()

    def process(self, token_ids: Rows, logits: Logits) -> None:
        self.is_reached.set()
        assert self._is_open.wait(60)


class StepGate:
    """Stops the engine's thread at every token of a request, until it is opened."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._may_go = threading.Semaphore(0)
        self._is_open = False

    def wait(self) -> None:
        """Returns when the thread stands."""
        assert self._arrived.acquire(timeout=60)

    def step(self) -> None:
        """Lets it go on to the next token."""
        self._may_go.release()
        self.wait()

    def open(self) -> None:
        self._is_open = True
        self._may_go.release()

    def process(self, token_ids: Rows, logits: Logits) -> None:
        self._arrived.release()
        assert self._is_open or self._may_go.acquire(timeout=60)


class Slow:
    """Makes each step last a while."""

    def __init__(self, seconds: float = 0.002) -> None:
        self._seconds = seconds

    def process(self, token_ids: Rows, logits: Logits) -> None:
        time.sleep(self._seconds)


class Log:
    """Writes down which prompt's row is sampled, by its first id."""

    def __init__(self) -> None:
        self.first_ids: list[int] = []

    def process(self, token_ids: Rows, logits: Logits) -> None:
        self.first_ids.extend(int(row[0]) for row in token_ids)


def settled(model: LLM | AsyncLLM, is_so: Callable[[dict[str, float]], bool], seconds: float = 10.0) -> bool:
    """Whether the metrics become so; they are those of the last whole step."""
    deadline = time.monotonic() + seconds
    while not is_so(model.metrics()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
