"""One running request in asyncio: :class:`AsyncGeneration`."""

from __future__ import annotations

import asyncio
import time

from onnx_genai.engine.chunks import TokenTable, join_chunks, to_chunk
from onnx_genai.engine.event_reader import EventReader, Inbox
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import Chunk, Result, SamplingParams

__all__ = ["AsyncGeneration"]

_TURN_SECONDS = 0.002


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
        self._done = False

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
        while not self._done:
            try:
                event = await self._inbox.take()
            except InvalidArgumentError:  # a mistake of the second reader, which must not end the first one's stream
                raise
            except BaseException:
                self.close()
                raise
            if event is not None:
                self._done = event.last
                if event.error is not None:
                    raise event.error
                return to_chunk(event, self._params, self._table)
        raise StopAsyncIteration

    async def result(self) -> Result:
        """Waits for the end and returns everything that was not yet taken by iterating."""
        chunks = []
        turn_began = time.perf_counter()
        async for chunk in self:
            chunks.append(chunk)
            if time.perf_counter() - turn_began > _TURN_SECONDS:
                # Nothing is waited for when all is there already; other tasks must have their turn nevertheless.
                try:
                    await asyncio.sleep(0)
                except BaseException:
                    self.close()
                    raise
                turn_began = time.perf_counter()
        return join_chunks(chunks, self._params)

    def close(self) -> None:
        """Ends the request and forgets what was not yet taken."""
        if not self._done:
            self._done = True
            self._reader.forget(self._request)
            self._inbox.wake()
        self._inbox.clear()

    async def aclose(self) -> None:
        """:meth:`close`, under the name that ``contextlib.aclosing`` calls."""
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.close()
