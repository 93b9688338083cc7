"""The requests that are open now: admission, abort, and what ``/slots`` shows. One event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from starlette.requests import Request

from onnx_genai.errors import AbortedError
from onnx_genai.server.errors import ApiError, ClientGone, api_error, late
from onnx_genai.types import RequestTimes

__all__ = ["LiveRequest", "LiveRequests"]

T = TypeVar("T")

_GRACE_SECONDS = 0.25


class LiveRequest:
    """One open request; leaving its ``with`` block gives its place back."""

    def __init__(self, owner: LiveRequests, request: Request, route: str, time_limit: float | None) -> None:
        """Use :meth:`LiveRequests.admit`."""
        self._owner = owner
        self._request = request
        self.id: str = request.scope.get("state", {}).get("request_id", "")
        self.route = route
        self.model: str | None = None
        self.arrived = time.perf_counter()
        self.time_limit = time_limit
        """Seconds from ``arrived`` to the last token; None is no limit."""
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.finish_reasons: tuple[str, ...] = ()
        self.times: RequestTimes | None = None
        self.is_stream = False
        self.outcome = "abort"
        """``done``, ``refused`` or ``error`` once that is known."""
        self.aborted = asyncio.Event()
        """Set when the server wants the request to end."""

    def __enter__(self) -> LiveRequest:
        self._owner.open[id(self)] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._owner.open.pop(id(self), None)

    def note_model(self, model: str) -> None:
        """Says which model answers; for ``/slots`` and the access log."""
        self.model = model
        self._facts()["model"] = model

    def note_end(self, reasons: tuple[str, ...], times: RequestTimes | None) -> None:
        """Says that it was answered, how, and where its time went."""
        self.outcome = "done"
        self.finish_reasons, self.times = reasons, times

    def note_usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Says how many tokens it took; for the access log."""
        self.prompt_tokens, self.completion_tokens = prompt_tokens, completion_tokens
        self._facts().update(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)

    def note_failure(self, error: Exception) -> None:
        """Says why there is no answer; for the metrics."""
        if not isinstance(error, ClientGone):
            # What the client did wrong is no answer that failed.
            self.outcome = "error" if api_error(error).status >= 500 else "refused"

    @property
    def time_left(self) -> float | None:
        """Seconds until the request has to be ended here; None: never.

        The engine ends what it has a little earlier, and knows more about it.
        """
        if self.time_limit is None:
            return None
        return max(self.arrived + self.time_limit + _GRACE_SECONDS - time.perf_counter(), 0.0)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work`` while watching client and clock; cancels it when nobody waits for the answer any more.

        Raises:
            ClientGone: The client hung up.
            AbortedError: The server is shutting down.
            DeadlineError: The time of the request is over.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(wait_for_hang_up(self._request))
        aborted = asyncio.ensure_future(self.aborted.wait())
        try:
            await asyncio.wait({task, gone, aborted}, timeout=self.time_left, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if aborted.done():
                raise AbortedError("the server is shutting down; send the request to another one, or later")
            if gone.done():
                raise ClientGone
            raise late(self.time_limit)
        finally:
            for each in (task, gone, aborted):
                each.cancel()
            await asyncio.gather(task, gone, aborted, return_exceptions=True)

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self._request.scope["state"].setdefault("log", {})
        return facts


class LiveRequests:
    """All open requests of a server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_read = 0
        self.open: dict[int, LiveRequest] = {}
        self.is_draining = False

    def admit(self, request: Request, route: str, time_limit: float | None = None) -> LiveRequest:
        """A place for a request that may take ``time_limit`` seconds.

        Raises:
            ApiError: 429 there is none; 503 the server is shutting down. Both say when to try again.
        """
        refusal = self._refusal(len(self.open))
        if refusal is not None:
            raise refusal
        return LiveRequest(self, request, route, time_limit)

    @contextmanager
    def reading(self) -> Iterator[ApiError | None]:
        """While a large body is read, which counts as an open request for other bodies; why it need not be read."""
        refusal = self._refusal(len(self.open) + self._num_read)
        self._num_read += 1
        try:
            yield refusal
        finally:
            self._num_read -= 1

    def _refusal(self, num_open: int) -> ApiError | None:
        if self.is_draining:
            return ApiError(
                503,
                "The server is shutting down.",
                code="shutting_down",
                headers={"Retry-After": "5", "Connection": "close"},
            )
        if num_open >= self._limit:
            return ApiError(
                429,
                f"The server is at its limit of {self._limit} open requests; try again.",
                code="overloaded",
                headers={"Retry-After": "1"},
            )
        return None

    def abort_all(self) -> None:
        """Ends all open requests with an error."""
        for each in list(self.open.values()):
            each.aborted.set()


async def wait_for_hang_up(request: Request) -> None:
    """Returns when the client has closed the connection. The body must have been read."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
