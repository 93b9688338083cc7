"""A loaded encoder as the routes see it: :class:`ServedEncoder`. The only place that knows ``AsyncEmbedder``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from onnx_genai.errors import ContextOverflowError, InvalidArgumentError
from onnx_genai.pipelines import AsyncEmbedder, AsyncLLM, ModelKind
from onnx_genai.server.errors import ApiError, api_error
from onnx_genai.server.model import ServedModel
from onnx_genai.types import RankedDocument

__all__ = ["Served", "ServedEncoder", "served"]


class ServedEncoder:
    """A loaded embedding model or reranker."""

    def __init__(self, embedder: AsyncEmbedder) -> None:
        self._embedder = embedder

    @property
    def kind(self) -> ModelKind:
        return self._embedder.kind

    @property
    def context_limit(self) -> int | None:
        """Tokens that a text may have; None if nothing limits them."""
        return self._embedder.max_length

    @property
    def has_chat_template(self) -> bool:
        return False

    @property
    def is_closed(self) -> bool:
        """Nothing can be computed any more."""
        return self._embedder.closed

    def held_bytes(self) -> int:
        """Memory for weights: the size of their files."""
        return self._embedder.package.weights_bytes

    def info(self) -> dict[str, object]:
        """Facts, as ``AsyncEmbedder.info``, without places in the file system."""
        return {name: value for name, value in self._embedder.info().items() if not name.endswith("_path")}

    def metrics(self) -> dict[str, float]:
        """Numbers of the encoder; does not wait for it."""
        return {f"encoder_{name}": value for name, value in self._embedder.metrics().items()}

    async def embed(self, texts: Sequence[str | list[int]], **options: Any) -> tuple[Any, int]:
        """Vectors, float32 [n, d], and the tokens that were read.

        Args:
            texts: Texts or token ids.
            options: ``normalize``, ``dimensions``, ``prompt_name``, ``truncate``; see ``Embedder.embed``.

        Raises:
            ApiError: A text or an option is refused.
        """
        result = {name: options.pop(name) for name in ("normalize", "dimensions")}
        try:
            prepared = await asyncio.to_thread(partial(self._embedder.prepare, list(texts), **options))
            return await self._embedder.embed_prepared(prepared, **result), prepared.num_tokens
        except InvalidArgumentError as error:
            raise _of_field(error, "input") from error

    async def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None, truncate: bool
    ) -> tuple[list[RankedDocument], int]:
        """Documents by score, best first, and the tokens that were read.

        Raises:
            ApiError: A text is refused.
        """
        try:
            prepared = await asyncio.to_thread(
                partial(self._embedder.prepare_pairs, query, documents, truncate=truncate)
            )
            return await self._embedder.rerank_prepared(prepared, documents, top_n=top_n), prepared.num_tokens
        except InvalidArgumentError as error:
            raise _of_field(error, "documents") from error

    async def close(self) -> None:
        """Fails what waits and frees the model."""
        await self._embedder.close()


Served = ServedModel | ServedEncoder


def served(model: AsyncLLM | AsyncEmbedder) -> Served:
    """The model as routes see it."""
    return ServedEncoder(model) if isinstance(model, AsyncEmbedder) else ServedModel(model)


def _of_field(error: InvalidArgumentError, field: str) -> ApiError:
    """The answer for a text that is refused; other arguments are named already."""
    answer = api_error(error)
    if answer.param is None or isinstance(error, ContextOverflowError):
        answer.param = field
    return answer
