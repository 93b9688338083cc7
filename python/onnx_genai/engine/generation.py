"""One running request: :class:`Generation`."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_genai import _core
from onnx_genai.engine.chunks import TokenTable, join_chunks, to_chunk
from onnx_genai.types import Chunk, Result, SamplingParams

__all__ = ["Generation"]

# Ctrl-C is seen between two waits, so each is short.
_WAIT_MS = 100


class Generation:
    """One running request: iterate over its :class:`~onnx_genai.types.Chunk` s, or take the :meth:`result`.

    Used by one thread at a time. Leaving it (``close``, garbage collection, an exception in the loop body) aborts the
    request.
    """

    def __init__(self, core: _core.Engine, request: int, params: SamplingParams, table: TokenTable) -> None:
        self._core = core
        self._request = request
        self._params = params
        self._table = table
        self._done = False
        self._error: Exception | None = None

    @property
    def request_id(self) -> int:
        """Number of the request in its engine."""
        return self._request

    def __iter__(self) -> Iterator[Chunk]:
        """Yields pieces as they come.

        Raises:
            GenAIError: The request failed; what came before is valid.
        """
        yield from self._chunks(until_end=False)

    def _chunks(self, *, until_end: bool) -> Iterator[Chunk]:
        try:
            while not self._done or self._error is not None:
                yield from self.poll(_WAIT_MS, until_end=until_end)
        finally:
            self.close()

    def poll(self, timeout_ms: int, *, until_end: bool = False) -> list[Chunk]:
        """Returns what is there, waiting up to ``timeout_ms`` for the first piece; empty means none came.

        With ``until_end`` it waits for the last piece, and the engine does not wake this thread for each token.

        A failure is raised by the call after the one that returned the last valid pieces.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._done:
            return []
        chunks: list[Chunk] = []
        for event in self._core.wait(self._request, timeout_ms, until_end):
            self._done = self._done or event.last
            if event.error is not None:
                self._error = event.error
                break
            chunks.append(to_chunk(event, self._params, self._table))
        if not chunks and self._error is not None:
            return self.poll(0, until_end=until_end)
        return chunks

    @property
    def done(self) -> bool:
        """The last chunk was delivered."""
        return self._done

    def result(self) -> Result:
        """Waits for the end and returns everything that was not yet taken by iterating."""
        return join_chunks(self._chunks(until_end=True), self._params)

    def abort(self) -> None:
        """Ends the request within one step; the last chunks (finish reason ``abort``) still come."""
        if not self._done:
            self._core.abort(self._request)

    def close(self) -> None:
        """Ends the request and forgets what was not yet taken."""
        if not self._done:
            self._done = True
            self._core.drop(self._request)

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.close()
