"""Embeddings and reranking for asyncio: :class:`AsyncEmbedder`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from onnx_genai.package.encoder import PoolingMode
from onnx_genai.pipelines.background import closed
from onnx_genai.pipelines.encoder_model import EncoderModel, PreparedTexts, check_top_n
from onnx_genai.pipelines.text_model import Prompt
from onnx_genai.pipelines.text_queue import TextQueue
from onnx_genai.pipelines.vectors import Vectors
from onnx_genai.types import RankedDocument

__all__ = ["AsyncEmbedder"]

_ROUND = 2
"""Tokens of a round, in runs."""


class AsyncEmbedder(EncoderModel):
    """:class:`~onnx_genai.Embedder` for asyncio: the same names, awaited. Texts of several tasks share runs.

    The constructor loads the model and blocks meanwhile; in a running loop use
    ``await asyncio.to_thread(AsyncEmbedder, "minilm")``. Any number of tasks, event loops and threads may use one
    model. Cancelling a task that waits drops its texts that have not run.

    Example:
        >>> async with AsyncEmbedder("minilm") as embedder:  # doctest: +SKIP
        ...     vectors = await embedder.embed(["one text", "another"])
    """

    def __init__(
        self,
        model: str | Path,
        *,
        ep: str = "cpu",
        ep_options: Mapping[str, str] | None = None,
        ep_strict: bool = True,
        variant: str | None = None,
        threads: int | None = None,
        max_batch_tokens: int = 2048,
        max_length: int | None = None,
        pooling: PoolingMode | None = None,
    ) -> None:
        super().__init__(
            model,
            ep=ep,
            ep_options=ep_options,
            ep_strict=ep_strict,
            variant=variant,
            threads=threads,
            max_batch_tokens=max_batch_tokens,
            max_length=max_length,
            pooling=pooling,
        )
        self._queue = TextQueue(self._engine, max_tokens=_ROUND * max_batch_tokens)

    async def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = False,
    ) -> Vectors:
        """As :meth:`onnx_genai.Embedder.embed`."""
        dimensions = self._check_result(normalize, dimensions)
        prepare = partial(self.prepare, texts, prompt_name=prompt_name, prompt=prompt, truncate=truncate)
        return await self.embed_prepared(await asyncio.to_thread(prepare), normalize=normalize, dimensions=dimensions)

    async def embed_prepared(
        self, prepared: PreparedTexts, *, normalize: bool | None = None, dimensions: int | None = None
    ) -> Vectors:
        """:meth:`embed` for what :meth:`prepare` returned."""
        dimensions = self._check_result(normalize, dimensions)
        vectors = await self._encode(prepared)
        return await asyncio.to_thread(self._finished, vectors, normalize, dimensions)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
        raw_scores: bool = False,
    ) -> list[RankedDocument]:
        """As :meth:`onnx_genai.Embedder.rerank`."""
        check_top_n(top_n)
        prepared = await asyncio.to_thread(partial(self.prepare_pairs, query, documents, truncate=truncate))
        return await self.rerank_prepared(prepared, documents, top_n=top_n, raw_scores=raw_scores)

    async def rerank_prepared(
        self,
        prepared: PreparedTexts,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        raw_scores: bool = False,
    ) -> list[RankedDocument]:
        """:meth:`rerank` for what :meth:`prepare_pairs` returned."""
        vectors = await self._encode(prepared)
        return await asyncio.to_thread(self._ranked, vectors, documents, top_n=top_n, raw_scores=raw_scores)

    async def close(self) -> None:
        """Fails the calls that wait, and frees the model; a second call does nothing."""
        self._queue.close()
        await closed(self._engine.close)

    async def _encode(self, prepared: PreparedTexts) -> Vectors:
        if not prepared.texts:
            return self._engine.encode(())
        return await asyncio.wrap_future(self._queue.submit(prepared.texts))

    async def __aenter__(self) -> AsyncEmbedder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
