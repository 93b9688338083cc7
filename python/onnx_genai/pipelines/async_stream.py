"""Streams for asyncio: :class:`AsyncTextStream`, :class:`AsyncChatStream`."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from onnx_genai.engine import AsyncGeneration
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import ChatChunk, Chunk, Result

__all__ = ["AsyncChatStream", "AsyncTextStream", "Begun"]

Piece = TypeVar("Piece")


@dataclasses.dataclass(frozen=True, slots=True)
class Begun(Generic[Piece]):
    """A request that was submitted, and how its pieces are read."""

    generation: AsyncGeneration
    read: Callable[[Chunk], Piece]


class _AsyncStream(Generic[Piece]):
    """The pieces of an answer, for ``async for``. Leaving it aborts the request."""

    def __init__(self, start: Callable[[], Awaitable[Begun[Piece]]] | Begun[Piece]) -> None:
        """Use ``AsyncLLM``. ``start`` is awaited for the first piece."""
        self._start = None if isinstance(start, Begun) else start
        self._begun = start if isinstance(start, Begun) else None
        self._is_starting = False
        self._is_closed = False

    async def __anext__(self) -> Piece:
        begun = await self._ready()
        if begun is None:
            raise StopAsyncIteration
        return begun.read(await anext(begun.generation))

    async def _ready(self) -> Begun[Piece] | None:
        """The request, which begins here if it has not; None if it was closed before."""
        if self._is_starting:
            raise InvalidArgumentError("two tasks read one stream at once; give each task a stream of its own")
        if self._begun is None and self._start is not None and not self._is_closed:
            self._is_starting = True
            try:
                self._begun = await self._start()
            except BaseException:
                self._is_closed = True
                raise
            finally:
                self._is_starting = False
        if self._begun is not None and self._is_closed:
            self._begun.generation.close()
        return self._begun

    def close(self) -> None:
        """Ends the request and forgets what was not yet taken."""
        self._is_closed = True
        if self._begun is not None:
            self._begun.generation.close()

    async def aclose(self) -> None:
        """:meth:`close`, under the name that ``contextlib.aclosing`` calls."""
        self.close()


class AsyncTextStream(_AsyncStream[Chunk]):
    """The pieces of a text, for ``async for``. Leaving it aborts the request."""

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def result(self) -> Result:
        """Waits for the end and returns everything that was not yet taken by iterating.

        Raises:
            InvalidArgumentError: It was closed before it began.
        """
        begun = await self._ready()
        if begun is None:
            raise InvalidArgumentError("the stream was closed before it began, so it has no result; start another")
        return await begun.generation.result()


class AsyncChatStream(_AsyncStream[ChatChunk]):
    """The pieces of a chat answer, for ``async for``. Leaving it aborts the request."""

    def __aiter__(self) -> AsyncChatStream:
        return self
