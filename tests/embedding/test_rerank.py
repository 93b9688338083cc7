"""Reranking with a cross-encoder and with an embedding model."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_genai import Embedder, RankedDocument
from onnx_genai.errors import ContextOverflowError, InvalidArgumentError, UnsupportedError
from tests.embedding.conftest import WritePackage, ids_of, pooled, text_of
from tests.models.encoder import EncoderFiles, EncoderStyle, encoder_score

SCORE = EncoderStyle(output="logits")
BARE = EncoderFiles(modules=None)
QUERY = (40, 41)
DOCUMENTS = [(5, 6, 7), (40,), tuple(range(4, 30)), (50, 51), ()]
TEXTS = [text_of(*words) for words in DOCUMENTS]
TOLERANCE = 1e-5


def logits() -> list[float]:
    query = ids_of(*QUERY)
    return [encoder_score([*query, *words, 1], [0] * len(query) + [1] * (len(words) + 1)) for words in DOCUMENTS]


def test_reranker_orders_by_the_score_of_each_pair(package: WritePackage) -> None:
    order = list(np.argsort([-value for value in logits()]))
    with Embedder(package(SCORE, BARE), max_batch_tokens=32) as reranker:
        ranked = reranker.rerank(text_of(*QUERY), TEXTS)
        raw = reranker.rerank(text_of(*QUERY), TEXTS, raw_scores=True)

    assert [each.index for each in ranked] == order
    assert [each.document for each in ranked] == [TEXTS[place] for place in order]
    np.testing.assert_allclose([each.score for each in raw], sorted(logits(), reverse=True), atol=TOLERANCE)
    np.testing.assert_allclose(
        [each.score for each in ranked],
        [1 / (1 + np.exp(-value)) for value in sorted(logits(), reverse=True)],
        atol=TOLERANCE,
    )


def test_top_n_keeps_the_best(package: WritePackage) -> None:
    with Embedder(package(SCORE, BARE)) as reranker:
        whole = reranker.rerank("w4", TEXTS)

        assert reranker.rerank("w4", TEXTS, top_n=2) == whole[:2]
        assert reranker.rerank("w4", TEXTS, top_n=99) == whole
        assert reranker.rerank("w4", []) == []
        with pytest.raises(InvalidArgumentError, match="top_n is 0; allowed: a whole number >= 1, or None"):
            reranker.rerank("w4", TEXTS, top_n=0)


def test_equal_documents_keep_their_order(package: WritePackage) -> None:
    with Embedder(package(SCORE, BARE)) as reranker:
        ranked = reranker.rerank("w4", ["w9", "w9", "w9"])

    assert [each.index for each in ranked] == [0, 1, 2]
    assert isinstance(ranked[0], RankedDocument)


def test_embedding_model_orders_by_cosine(package: WritePackage) -> None:
    query = pooled(QUERY)
    cosines = [float(query @ pooled(words)) for words in DOCUMENTS]
    with Embedder(package()) as embedder:
        ranked = embedder.rerank(text_of(*QUERY), TEXTS)

    assert [each.index for each in ranked] == list(np.argsort([-value for value in cosines]))
    np.testing.assert_allclose([each.score for each in ranked], sorted(cosines, reverse=True), atol=TOLERANCE)


def test_embedding_model_uses_the_prompts_of_both_sides(package: WritePackage) -> None:
    files = EncoderFiles(prompts={"query": "w58 ", "passage": "w59 "})
    with Embedder(package(files=files)) as embedder:
        ranked = embedder.rerank("w5", ["w6"])

    np.testing.assert_allclose(ranked[0].score, pooled((58, 5)) @ pooled((59, 6)), atol=TOLERANCE)


def test_long_document_is_an_error_unless_it_may_be_cut(package: WritePackage) -> None:
    files = EncoderFiles(modules=None, max_seq_length=10)
    with Embedder(package(SCORE, files)) as reranker:
        with pytest.raises(ContextOverflowError, match=r"text 2 has 31 tokens, .* allows 10"):
            reranker.rerank(text_of(*QUERY), TEXTS)
        ranked = reranker.rerank(text_of(*QUERY), TEXTS[2:3], truncate=True, raw_scores=True)
        with pytest.raises(ContextOverflowError, match="even without its last text; shorten the query"):
            reranker.rerank(text_of(*range(4, 20)), ["w4"], truncate=True)

    kept = [*ids_of(*QUERY), *DOCUMENTS[2][:5], 1]
    np.testing.assert_allclose(ranked[0].score, encoder_score(kept, [0] * 4 + [1] * 6), atol=TOLERANCE)


def test_reranker_makes_no_vectors(package: WritePackage) -> None:
    with (
        Embedder(package(SCORE, BARE)) as reranker,
        pytest.raises(UnsupportedError, match=r"is a reranker: .* Use rerank\(\), or an embedding model"),
    ):
        reranker.embed("w4")


def test_classifier_of_several_labels_is_refused(package: WritePackage) -> None:
    with pytest.raises(UnsupportedError, match="is a classifier with 3 labels; this version runs those with one"):
        Embedder(package(EncoderStyle(output="logits", num_labels=3), BARE))


@pytest.mark.parametrize(
    ("query", "documents", "text"),
    [
        (5, ["w4"], "query is a int; allowed: a text"),
        ("w4", "w5", "documents is a str; allowed: a list of texts"),
        ("w4", ["w5", 6], r"documents\[1\] is a int; allowed: a text"),
    ],
)
def test_wrong_arguments_are_refused(package: WritePackage, query: object, documents: object, text: str) -> None:
    with Embedder(package(SCORE, BARE)) as reranker, pytest.raises(InvalidArgumentError, match=text):
        reranker.rerank(query, documents)  # type: ignore[arg-type]
