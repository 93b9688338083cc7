"""``POST /v1/embeddings`` and ``POST /v1/rerank``: the requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError
from onnx_genai.server.schemas.base import ListOf, ObjectsOf, RequestModel

__all__ = ["DocumentIn", "EmbeddingRequest", "RerankRequest"]


class EmbeddingRequest(RequestModel):
    """Texts to make vectors of. The last three fields are our own."""

    refused: ClassVar[Mapping[str, str]] = {
        "messages": "give texts or token ids in input",
        "truncate_prompt_tokens": "give truncate: true to cut texts to the model's limit",
    }

    model: str | None = None
    input: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None
    prompt_name: str | None = None
    """One of the package's prompts, put before each text."""
    normalize: bool | None = None
    """Make lengths 1, or leave vectors as the model made them; null does what the package says."""
    truncate: bool | None = None
    """Cut texts that are too long, instead of refusing them."""

    def texts(self, limits: Limits) -> list[str | list[int]]:
        """The texts, one entry each.

        Raises:
            ApiError: There is none, one is empty, or there are too many.
        """
        given = self.input
        texts: list[str | list[int]] = []
        if isinstance(given, str):
            texts = [given]
        elif given and all(isinstance(each, int) for each in given):
            texts = [[each for each in given if isinstance(each, int)]]
        else:
            texts = [each for each in given if not isinstance(each, int)]
        if not texts or not all(texts):
            raise _invalid("input", "input is empty or has an empty entry; give at least one character or token")
        _check_count("input", len(texts), limits)
        return texts

    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``ServedEncoder.embed``."""
        return {
            "dimensions": self.dimensions,
            "normalize": self.normalize,
            "prompt_name": self.prompt_name,
            "truncate": bool(self.truncate),
        }


class DocumentIn(RequestModel):
    """A document as an object."""

    text: str


class RerankRequest(RequestModel):
    """A query and the documents to order. ``truncate`` is our own."""

    refused: ClassVar[Mapping[str, str]] = {
        "rank_fields": "give documents as texts, or as objects with text",
        "max_chunks_per_doc": "cut documents before, or give truncate: true",
        "max_tokens_per_doc": "cut documents before, or give truncate: true",
    }

    model: str | None = None
    query: str
    documents: ObjectsOf[str | DocumentIn]
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    truncate: bool | None = None

    def texts(self, limits: Limits) -> list[str]:
        """The documents' texts.

        Raises:
            ApiError: There is none, too many, or the query is empty.
        """
        if not self.query:
            raise _invalid("query", "query is empty; give at least one character")
        if not self.documents:
            raise _invalid("documents", "documents is empty; give at least one")
        _check_count("documents", len(self.documents), limits)
        return [each if isinstance(each, str) else each.text for each in self.documents]


def _check_count(name: str, count: int, limits: Limits) -> None:
    if count > limits.max_inputs:
        raise _invalid(name, f"{name} has {count} entries; this server allows at most {limits.max_inputs}")


def _invalid(param: str, text: str) -> ApiError:
    return ApiError(400, text, param=param, code="invalid_value")
