"""all-MiniLM-L6-v2 against transformers on the same checkpoint; see golden/PROVENANCE.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from onnx_genai import Embedder

pytestmark = pytest.mark.real_model

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "encoders.npz")
TEXTS = [str(text) for text in GOLDEN["minilm_texts"]]
VECTORS = GOLDEN["minilm_vectors"]

# Of values up to about 0.2 in vectors of length 1.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(minilm: Path) -> Iterator[Embedder]:
    with Embedder(minilm) as embedder:
        yield embedder


def test_known_cosine_of_two_sentences(model: Embedder) -> None:
    food, bread = model.embed(TEXTS[:2])

    assert TEXTS[:2] == ["A man is eating food.", "A man is eating a piece of bread."]
    assert round(float(food @ bread), 4) == 0.7553


def test_facts_come_from_the_package(model: Embedder) -> None:
    info = model.info()

    assert (info["kind"], info["width"], info["max_length"], info["pooling"]) == ("embedding", 384, 256, "mean")
    assert info["normalizes"] is True


def test_ragged_batch_equals_transformers(model: Embedder) -> None:
    np.testing.assert_allclose(model.embed(TEXTS), VECTORS, atol=TOLERANCE)


def test_each_text_alone_equals_transformers(model: Embedder) -> None:
    alone = np.concatenate([model.embed(text) for text in TEXTS])

    np.testing.assert_allclose(alone, VECTORS, atol=TOLERANCE)
    np.testing.assert_allclose(alone, model.embed(TEXTS), atol=1e-6)


def test_order_of_a_shuffled_batch_is_kept(model: Embedder) -> None:
    order = np.random.default_rng(5).permutation(len(TEXTS) * 4) % len(TEXTS)

    vectors = model.embed([TEXTS[place] for place in order])

    np.testing.assert_allclose(vectors, VECTORS[order], atol=TOLERANCE)


def test_documents_are_ordered_by_meaning(model: Embedder) -> None:
    documents = ["Berlin is large.", "Bananas are yellow.", "Paris is the capital of France."]

    ranked = model.rerank("What is the capital of France?", documents)

    assert [each.index for each in ranked] == [2, 0, 1]
