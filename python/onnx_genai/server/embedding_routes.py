"""``POST /v1/embeddings`` and ``POST /v1/rerank``: vectors of texts, and the order of documents for a query."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onnx_genai.errors import DeadlineError
from onnx_genai.server.config import Limits
from onnx_genai.server.encoder import ServedEncoder
from onnx_genai.server.large_json import json_answer
from onnx_genai.server.schemas.embeddings import EmbeddingRequest, RerankRequest
from onnx_genai.server.state import ServerState
from onnx_genai.server.wire import new_id
from onnx_genai.types import RankedDocument, Usage

__all__ = ["EmbeddingRoutes"]

T = TypeVar("T")


class EmbeddingRoutes:
    """The routes that encoders answer."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/v1/embeddings", self.embed, methods=["POST"]),
            *(Route(path, self.rerank, methods=["POST"]) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
        ]

    async def embed(self, request: Request) -> Response:
        """One vector for each text, in their order."""
        limits = self._state.config.limits
        body = await self._state.read(request, EmbeddingRequest)
        texts = body.texts(limits)
        async with self._state.encoding(request, "embeddings", body.model) as running:
            work = _embedded(running.model, texts, body, running.name)
            data, num_tokens = await running.live.run(_in_time(work, limits))
            running.meter.done(("stop",), Usage(prompt_tokens=num_tokens, completion_tokens=0))
            return Response(data, media_type="application/json")

    async def rerank(self, request: Request) -> Response:
        """The documents in the order in which they fit the query."""
        limits = self._state.config.limits
        body = await self._state.read(request, RerankRequest)
        documents = body.texts(limits)
        async with self._state.encoding(request, "rerank", body.model) as running:
            work = running.model.rerank(body.query, documents, top_n=body.top_n, truncate=bool(body.truncate))
            ranked, num_tokens = await running.live.run(_in_time(work, limits))
            running.meter.done(("stop",), Usage(prompt_tokens=num_tokens, completion_tokens=0))
            value = {
                "id": new_id("rerank-"),
                "model": running.name,
                "results": [_result(each, with_document=bool(body.return_documents)) for each in ranked],
                "usage": _usage(num_tokens),
            }
            return await json_answer(value)


async def _in_time(work: Awaitable[T], limits: Limits) -> T:
    try:
        return await asyncio.wait_for(work, limits.request_timeout)
    except asyncio.TimeoutError as error:
        raise DeadlineError(
            f"the texts were not ready within {limits.request_timeout:g} seconds; send fewer at once"
        ) from error


async def _embedded(
    model: ServedEncoder, texts: list[str | list[int]], body: EmbeddingRequest, name: str
) -> tuple[bytes, int]:
    vectors, num_tokens = await model.embed(texts, **body.options())
    return await asyncio.to_thread(_embeddings, vectors, body.encoding_format == "base64", name, num_tokens), num_tokens


def _embeddings(vectors: Any, as_base64: bool, name: str, num_tokens: int) -> bytes:
    """The whole answer as JSON. Written vector by vector: one large call would hold up all other threads."""
    entries = []
    for index, vector in enumerate(vectors):
        if as_base64:
            text = '"' + base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii") + '"'
        else:
            text = json.dumps(vector.tolist(), separators=(",", ":"))
        entries.append(f'{{"object":"embedding","index":{index},"embedding":{text}}}')
    tail = json.dumps({"model": name, "usage": _usage(num_tokens)})[1:]
    return f'{{"object":"list","data":[{",".join(entries)}],{tail}'.encode()


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _result(ranked: RankedDocument, *, with_document: bool) -> dict[str, Any]:
    value: dict[str, Any] = {"index": ranked.index, "relevance_score": ranked.score}
    return {**value, "document": {"text": ranked.document}} if with_document else value
