"""One running request in asyncio: :class:`AsyncGeneration`."""

from __future__ import annotations

from collections import deque

from onnx_genai.engine.chunks import TokenTable, join_chunks, to_chunk
from onnx_genai.engine.event_reader import EventReader, Inbox
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import Chunk, Result, SamplingParams

__all__ = ["AsyncGeneration"]


class AsyncGeneration:
    """One running request: iterate over its chunks with ``async for``, or await the :meth:`result`.

    Used by one task at a time, in the event loop that started it. Leaving it (``aclose``, garbage collection, a
    cancelled task) aborts the request at once.
    """

    def __init__(
        self, reader: EventReader, inbox: Inbox, request: int, params: SamplingParams, table: TokenTable
    ) -> None:
        self._reader = reader
        self._inbox = inbox
        self._request = request
        self._params = params
        self._table = table
        self._chunks: deque[Chunk] = deque()
        self._done = False
        self._error: Exception | None = None

    @property
    def request_id(self) -> int:
        """Number of the request in its engine."""
        return self._request

    def __aiter__(self) -> AsyncGeneration:
        return self

    async def __anext__(self) -> Chunk:
        """Returns the next piece.

        Raises:
            GenAIError: The request failed; what came before is valid.
        """
        while not self._chunks:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._done:
                raise StopAsyncIteration
            try:
                await self._inbox.wait()
            except InvalidArgumentError:  # a mistake of the second reader, which must not end the first one's stream
                raise
            except BaseException:
                self.close()
                raise
            self._take()
        return self._chunks.popleft()

    def _take(self) -> None:
        for event in self._inbox.take():
            self._done = self._done or event.last
            if event.error is not None:
                self._error = event.error
                return
            self._chunks.append(to_chunk(event, self._params, self._table))

    async def result(self) -> Result:
        """Waits for the end and returns everything that was not yet taken by iterating."""
        return join_chunks([chunk async for chunk in self], self._params)

    def close(self) -> None:
        """Ends the request and forgets what was not yet taken."""
        if not self._done:
            self._done = True
            self._reader.forget(self._request)
            self._inbox.wake()
        self._chunks.clear()

    async def aclose(self) -> None:
        """:meth:`close`, under the name that ``contextlib.aclosing`` calls."""
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.close()
