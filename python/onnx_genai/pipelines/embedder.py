"""Vectors of texts, and the order of documents for a query: :class:`Embedder`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from onnx_genai.pipelines.encoder_model import EncoderModel, PreparedTexts, check_top_n
from onnx_genai.pipelines.text_model import Prompt
from onnx_genai.pipelines.vectors import Vectors
from onnx_genai.types import RankedDocument

__all__ = ["Embedder"]


class Embedder(EncoderModel):
    """An embedding model or reranker that is ready to use. Safe to use from many threads, which take turns.

    Args and errors: see the base class.

    Example:
        >>> with Embedder("minilm") as embedder:  # doctest: +SKIP
        ...     vectors = embedder.embed(["A man is eating food.", "A man is eating a piece of bread."])
        ...     print(vectors.shape, float(vectors[0] @ vectors[1]))
        (2, 384) 0.755...
    """

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = False,
    ) -> Vectors:
        """Returns one vector for each text, in the order of the texts.

        Texts are run in batches of similar length; which others are in a batch does not change a vector by more than
        rounding. Ctrl-C ends the call between two runs.

        Args:
            texts: A text, token ids (a list of ints or a 1-D int64/int32 array, taken as they are), or a list of
                those.
            normalize: True makes the length of each vector 1, False leaves it as the model made it; None does what
                the package says, and 1 if it says nothing.
            dimensions: Keep the first so many values, 1..``width``, and make the length 1 again if it was. Only models
                that were trained for it keep their quality.
            prompt_name: One of the package's ``prompts``, put before each text: ``query``, ``document``, ... None
                takes the package's default one, if it names one.
            prompt: A text of your own to put before each text, instead.
            truncate: Cut the end off texts that are too long, instead of refusing them.

        Returns:
            float32 [number of texts, ``width`` or ``dimensions``].

        Raises:
            InvalidArgumentError: An argument is refused; nothing was computed.
            ContextOverflowError: A text has more tokens than ``max_length``, and ``truncate`` is not set.
            UnsupportedError: The model is a reranker.
            BackendError: A run failed.
            AbortedError: The model was closed.
        """
        dimensions = self._check_result(normalize, dimensions)
        prepared = self.prepare(texts, prompt_name=prompt_name, prompt=prompt, truncate=truncate)
        return self.embed_prepared(prepared, normalize=normalize, dimensions=dimensions)

    def embed_prepared(
        self, prepared: PreparedTexts, *, normalize: bool | None = None, dimensions: int | None = None
    ) -> Vectors:
        """:meth:`embed` for what :meth:`prepare` returned."""
        dimensions = self._check_result(normalize, dimensions)
        return self._finished(self._engine.encode(prepared.texts), normalize, dimensions)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
        raw_scores: bool = False,
    ) -> list[RankedDocument]:
        """Returns the documents in the order in which they fit the query, best first.

        A reranker reads the query with each document; its score is brought to 0..1 by a sigmoid. An embedding model
        compares vectors, with the package's prompts for queries and documents if it has them; its score is the cosine.

        Args:
            query: What is looked for.
            documents: Texts to order; equal scores keep this order.
            top_n: Return so many at most; None returns all.
            truncate: Cut the end off documents that are too long, instead of refusing them.
            raw_scores: A reranker's score as the model gives it, without the sigmoid.

        Raises:
            InvalidArgumentError, ContextOverflowError, BackendError, AbortedError: As for :meth:`embed`.
        """
        check_top_n(top_n)
        prepared = self.prepare_pairs(query, documents, truncate=truncate)
        return self.rerank_prepared(prepared, documents, top_n=top_n, raw_scores=raw_scores)

    def rerank_prepared(
        self,
        prepared: PreparedTexts,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        raw_scores: bool = False,
    ) -> list[RankedDocument]:
        """:meth:`rerank` for what :meth:`prepare_pairs` returned."""
        return self._ranked(self._engine.encode(prepared.texts), documents, top_n=top_n, raw_scores=raw_scores)

    def close(self) -> None:
        """Fails the calls that wait, and frees the model; a second call does nothing."""
        self._engine.close()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
