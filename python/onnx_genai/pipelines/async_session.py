"""Sessions for asyncio: :class:`AsyncSession`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType

from onnx_genai.engine import AsyncGeneration
from onnx_genai.pipelines.session import SessionTokens
from onnx_genai.types import Chunk, Result, SamplingParams

__all__ = ["AsyncSession", "AsyncSessionStream"]


class AsyncSession(SessionTokens):
    """:class:`~onnx_genai.pipelines.Session` for asyncio: what computes or writes is awaited, the rest is the same."""

    async def generate(
        self, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None
    ) -> Result:
        """As :meth:`Session.generate`; cancelling it leaves the session as before."""
        ids, own, options = self._begin(params, priority, timeout)
        new: tuple[int, ...] = ()
        try:
            result = await self._model.engine.submit_async(ids, own, options, until_end=True).result()
            if result.finish_reason != "abort":
                new = result.token_ids
        finally:
            self._end(new)
        return dataclasses.replace(result, prompt_token_ids=tuple(ids.tolist()))

    def stream(
        self, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None
    ) -> AsyncSessionStream:
        """As :meth:`Session.stream`."""
        ids, own, options = self._begin(params, priority, timeout)
        try:
            return AsyncSessionStream(self, self._model.engine.submit_async(ids, own, options))
        except BaseException:
            self._end()
            raise

    def fork(self) -> AsyncSession:
        """As :meth:`Session.fork`."""
        child = AsyncSession(self._model, cache_salt=self._cache_salt, adapters=self._adapters)
        child._take(self)
        return child

    async def save(self, path: str | Path) -> None:
        """As :meth:`Session.save`."""
        await asyncio.to_thread(self._save, path)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncSessionStream(AsyncIterator[Chunk]):
    """Pieces of one turn of a session. Used by one task."""

    def __init__(self, session: SessionTokens, generation: AsyncGeneration) -> None:
        self._session = session
        self._generation = generation
        self._tokens: list[int] = []
        self._is_open = True

    def __aiter__(self) -> AsyncSessionStream:
        return self

    async def __anext__(self) -> Chunk:
        try:
            chunk = await anext(self._generation)
        except BaseException:
            self.close()
            raise
        self._tokens.extend(chunk.token_ids)
        if chunk.usage is not None:
            self._finish(self._tokens if chunk.finish_reason != "abort" else [])
        return chunk

    def close(self) -> None:
        """Ends the turn; before its last piece that leaves the session as it was."""
        self._generation.close()
        self._finish([])

    async def aclose(self) -> None:
        """:meth:`close`, under the name that ``contextlib.aclosing`` calls."""
        self.close()

    def _finish(self, tokens: list[int]) -> None:
        if self._is_open:
            self._is_open = False
            self._session._end(tokens)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.close()
