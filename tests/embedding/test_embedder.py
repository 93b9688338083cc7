"""Embedder on tiny graphs, against the same arithmetic in NumPy."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from onnx_genai import Embedder
from onnx_genai.errors import AbortedError, BackendError, ContextOverflowError, InvalidArgumentError, UnsupportedError
from tests.embedding.conftest import WritePackage, ids_of, pooled, text_of
from tests.models.encoder import VOCAB, WIDTH, EncoderFiles, EncoderStyle, encoder_vectors, write_safetensors

# float32 sums of up to 64 terms below 1, and a tanh, twice.
TOLERANCE = 4 * 64 * np.finfo(np.float32).eps

RAGGED = [
    tuple(4 + (place * 7 + text * 5) % (VOCAB - 4) for place in range(size))
    for text, size in enumerate((1, 9, 3, 30, 2, 30, 17))
]


def expected(texts: list[tuple[int, ...]], mode: str = "mean", *, unit: bool = True) -> np.ndarray:
    return np.stack([pooled(words, mode, unit=unit) for words in texts])


STYLES = {
    "bert": EncoderStyle(),
    "no_types": EncoderStyle(has_types=False),
    "no_mask": EncoderStyle(has_mask=False),
    "positions": EncoderStyle(has_positions=True, has_types=False),
    "int32_ids": EncoderStyle(ids_dtype="int32"),
    "token_embeddings": EncoderStyle(output="token_embeddings"),
    "sentence_embedding": EncoderStyle(output="token_embeddings", extra_outputs=("sentence_embedding",)),
    "sentence_embedding_alone": EncoderStyle(output="sentence_embedding"),
    "batch_of_one": EncoderStyle(batch=1),
    "empty_past": EncoderStyle(past_layers=2, has_types=False),
}


@pytest.mark.parametrize("name", STYLES)
def test_ragged_texts_give_the_vectors_of_numpy_in_their_order(package: WritePackage, name: str) -> None:
    with Embedder(package(STYLES[name]), max_batch_tokens=40) as embedder:
        vectors = embedder.embed([text_of(*words) for words in RAGGED])

        assert vectors.dtype == np.float32
        assert vectors.shape == (len(RAGGED), WIDTH)
        np.testing.assert_allclose(vectors, expected(RAGGED), atol=TOLERANCE)


@pytest.mark.parametrize("dtype", ["float16"])
def test_half_precision_output_is_widened(package: WritePackage, dtype: str) -> None:
    with Embedder(package(EncoderStyle(out_dtype=dtype))) as embedder:
        vectors = embedder.embed([text_of(*words) for words in RAGGED])

    # The graph rounds vectors of tokens to 11 bits.
    np.testing.assert_allclose(vectors, expected(RAGGED), atol=2.0**-10)


@pytest.mark.parametrize(
    ("flag", "mode"),
    [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_lasttoken", "last"),
        ("pooling_mode_weightedmean_tokens", "weighted_mean"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt"),
    ],
)
def test_pooling_comes_from_the_package(package: WritePackage, flag: str, mode: str) -> None:
    files = EncoderFiles(modules=("Transformer", "Pooling"), pooling={flag: True, "pooling_mode_other": False})
    with Embedder(package(files=files)) as embedder:
        vectors = embedder.embed([text_of(*words) for words in RAGGED])

        np.testing.assert_allclose(vectors, expected(RAGGED, mode, unit=False), atol=TOLERANCE)
        assert embedder.info()["pooling_source"] == "1_Pooling/config.json"


def test_several_poolings_stand_one_after_another(package: WritePackage) -> None:
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    files = EncoderFiles(modules=("Transformer", "Pooling"), pooling=pooling)
    with Embedder(package(files=files)) as embedder:
        vectors = embedder.embed(text_of(5, 6, 7))

        assert embedder.width == 2 * WIDTH
    words = [(5, 6, 7)]
    both = np.concatenate([expected(words, "cls", unit=False), expected(words, unit=False)], axis=1)
    np.testing.assert_allclose(vectors, both, atol=TOLERANCE)


def test_pooling_can_be_chosen(package: WritePackage) -> None:
    style = EncoderStyle(output="token_embeddings", extra_outputs=("sentence_embedding",))
    with Embedder(package(style), pooling="cls") as embedder:
        np.testing.assert_allclose(embedder.embed(text_of(9)), expected([(9,)], "cls"), atol=TOLERANCE)


def test_package_without_modules_gives_unit_means_and_says_so(package: WritePackage) -> None:
    with Embedder(package(files=EncoderFiles(modules=None))) as embedder:
        np.testing.assert_allclose(embedder.embed(text_of(9, 8)), expected([(9, 8)]), atol=TOLERANCE)
        assert "the mean is taken" in str(embedder.info()["pooling_source"])


def test_normalize_overrides_the_package(package: WritePackage) -> None:
    text, words = text_of(5, 6), [(5, 6)]
    with Embedder(package()) as embedder:
        np.testing.assert_allclose(embedder.embed(text, normalize=False), expected(words, unit=False), atol=TOLERANCE)
    with Embedder(package(files=EncoderFiles(modules=("Transformer", "Pooling")))) as embedder:
        np.testing.assert_allclose(embedder.embed(text), expected(words, unit=False), atol=TOLERANCE)
        np.testing.assert_allclose(embedder.embed(text, normalize=True), expected(words), atol=TOLERANCE)


def test_fewer_dimensions_are_normalised_again(package: WritePackage) -> None:
    full = expected([(5, 6)], unit=False)[:, :3]
    with Embedder(package()) as embedder:
        cut = embedder.embed(text_of(5, 6), dimensions=3)
        plain = embedder.embed(text_of(5, 6), dimensions=3, normalize=False)

        np.testing.assert_allclose(cut, full / np.linalg.norm(full), atol=TOLERANCE)
        np.testing.assert_allclose(plain, full, atol=TOLERANCE)
        with pytest.raises(InvalidArgumentError, match=r"dimensions is 9; allowed: a whole number in 1\.\.8"):
            embedder.embed("w4", dimensions=9)


def test_dense_layer_follows_pooling(package: WritePackage) -> None:
    random = np.random.default_rng(3)
    weight, bias = random.random((5, WIDTH), np.float32) - 0.5, random.random(5, np.float32)
    folder = package(files=EncoderFiles(modules=("Transformer", "Pooling", "Dense", "Normalize")))
    write_safetensors(folder / "2_Dense" / "model.safetensors", {"linear.weight": weight, "linear.bias": bias})
    config = (
        '{"in_features": 8, "out_features": 5, "bias": true, "activation_function": "torch.nn.modules.activation.Tanh"}'
    )
    (folder / "2_Dense" / "config.json").write_text(config, encoding="utf-8")

    with Embedder(folder) as embedder:
        vectors = embedder.embed(text_of(5, 6))

        assert embedder.width == 5
    made = np.tanh(expected([(5, 6)], unit=False) @ weight.T.astype(np.float64) + bias)
    np.testing.assert_allclose(vectors, made / np.linalg.norm(made), atol=TOLERANCE)


def test_company_in_a_batch_does_not_change_a_vector(package: WritePackage) -> None:
    texts = [text_of(*words) for words in RAGGED]
    with Embedder(package(), max_batch_tokens=10_000) as embedder:
        together = embedder.embed(texts)
        backwards = embedder.embed(texts[::-1])[::-1]
        alone = np.concatenate([embedder.embed(text) for text in texts])

    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(together, backwards, atol=1e-6)


def test_runs_stay_within_the_token_budget(package: WritePackage) -> None:
    with Embedder(package(), max_batch_tokens=40) as embedder:
        embedder.embed([text_of(*words) for words in RAGGED])
        metrics = embedder.metrics()

    # Lengths with [CLS] and [SEP]: 32 | 32 | 19 + 11 (38) | 5, 4, 3 (15).
    assert metrics["num_runs"] == 4
    assert metrics["num_texts"] == 7
    assert metrics["num_tokens"] == 32 + 32 + 19 + 11 + 5 + 4 + 3
    assert metrics["num_padding"] == 8 + 3


def test_token_ids_are_taken_as_they_are(package: WritePackage) -> None:
    with Embedder(package()) as embedder:
        given = embedder.embed([ids_of(5, 6), np.array([7, 8, 9], np.int32), "w5 w6"])
        single = embedder.embed([7, 8, 9])

        np.testing.assert_array_equal(given[0], given[2])
        raw = encoder_vectors([7, 8, 9]).mean(axis=0)
        np.testing.assert_allclose(given[1], raw / np.linalg.norm(raw), atol=TOLERANCE)
        np.testing.assert_allclose(single, given[1:2], atol=1e-6)
        with pytest.raises(
            InvalidArgumentError, match=r"text 0 has a token id beyond the vocabulary; allowed: 0\.\.60"
        ):
            embedder.embed([61])
        with pytest.raises(InvalidArgumentError, match="text 1 has no token"):
            embedder.embed([[4], []])


def test_no_texts_give_no_rows_and_an_empty_text_its_special_tokens(package: WritePackage) -> None:
    with Embedder(package()) as embedder:
        assert embedder.embed([]).shape == (0, WIDTH)
        np.testing.assert_allclose(embedder.embed(""), expected([()]), atol=TOLERANCE)


def test_long_text_is_an_error_unless_it_may_be_cut(package: WritePackage) -> None:
    words = tuple(range(4, 24))
    with Embedder(package(files=EncoderFiles(max_seq_length=12))) as embedder:
        with pytest.raises(
            ContextOverflowError,
            match=r"text 1 has 22 tokens, sentence_bert_config\.json max_seq_length allows 12: .*truncate=True",
        ):
            embedder.embed(["w4", text_of(*words)])
        cut = embedder.embed(text_of(*words), truncate=True)

        np.testing.assert_allclose(cut, expected([words[:10]]), atol=TOLERANCE)
        assert embedder.count_tokens(["w4", text_of(*words)]) == [3, 22]
        assert embedder.max_length == 12


def test_max_length_may_exceed_what_is_recommended_but_not_what_was_built(package: WritePackage) -> None:
    folder = package(files=EncoderFiles(max_seq_length=12))
    with Embedder(folder, max_length=30) as embedder:
        words = tuple(range(4, 24))
        np.testing.assert_allclose(embedder.embed(text_of(*words)), expected([words]), atol=TOLERANCE)
    with pytest.raises(InvalidArgumentError, match=r"max_length is 65; allowed: .* 1\.\.64 \(config\.json max_pos"):
        Embedder(folder, max_length=65)


def test_prompts_are_put_before_texts(package: WritePackage) -> None:
    files = EncoderFiles(prompts={"query": "w40 w41 ", "document": ""}, default_prompt_name="query")
    with Embedder(package(files=files)) as embedder:
        assert embedder.prompts == {"query": "w40 w41 ", "document": ""}
        np.testing.assert_allclose(embedder.embed("w5", prompt_name="document"), expected([(5,)]), atol=TOLERANCE)
        for options in ({}, {"prompt_name": "query"}, {"prompt": "w40 w41 "}):
            np.testing.assert_allclose(embedder.embed("w5", **options), expected([(40, 41, 5)]), atol=TOLERANCE)
        assert embedder.count_tokens("w5") == [5]
        with pytest.raises(InvalidArgumentError, match="prompt_name is 'other'; the package's prompts are: query, doc"):
            embedder.embed("w5", prompt_name="other")
        with pytest.raises(InvalidArgumentError, match="give only one of them"):
            embedder.embed("w5", prompt_name="query", prompt="x")


def test_prompt_can_be_left_out_of_pooling(package: WritePackage) -> None:
    files = EncoderFiles(
        prompts={"query": "w40 w41 "}, pooling={"pooling_mode_mean_tokens": True, "include_prompt": False}
    )
    with Embedder(package(files=files)) as embedder:
        vector = embedder.embed("w5 w6", prompt_name="query")
        plain = embedder.embed("w5 w6")

    rest = encoder_vectors(ids_of(40, 41, 5, 6))[3:].mean(axis=0)
    np.testing.assert_allclose(vector[0], rest / np.linalg.norm(rest), atol=TOLERANCE)
    np.testing.assert_allclose(plain, expected([(5, 6)]), atol=TOLERANCE)


def test_vector_that_is_not_finite_is_an_error(package: WritePackage) -> None:
    with Embedder(package(EncoderStyle(broken_id=13))) as embedder:
        embedder.embed("w12")
        with pytest.raises(BackendError, match="the vector of text 1 is not finite"):
            embedder.embed(["w12", "w13"])


def test_many_threads_get_their_own_vectors(package: WritePackage) -> None:
    texts = [[(4 + (caller + place) % 50,) * (place + 1) for place in range(6)] for caller in range(8)]
    results: dict[int, np.ndarray] = {}
    with Embedder(package(), max_batch_tokens=16) as embedder:

        def call(caller: int) -> None:
            for _ in range(10):
                results[caller] = embedder.embed([text_of(*words) for words in texts[caller]])

        threads = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    for caller, words in enumerate(texts):
        np.testing.assert_allclose(results[caller], expected(words), atol=TOLERANCE)


def test_closed_model_says_so(package: WritePackage) -> None:
    embedder = Embedder(package())
    embedder.close()
    embedder.close()

    assert embedder.closed
    with pytest.raises(AbortedError, match="the encoder is closed; open the model again"):
        embedder.embed("w4")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pooling": "median"}, "pooling is 'median'; allowed: mean, cls, max"),
        ({"max_batch_tokens": 0}, "max_batch_tokens is 0; allowed"),
        ({"threads": 0}, "threads is 0; allowed"),
    ],
)
def test_wrong_option_is_refused(package: WritePackage, options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        Embedder(package(), **options)  # type: ignore[arg-type]


def test_language_model_is_refused_with_what_to_use(scripted_package: object) -> None:
    folder: Path = scripted_package("Hello.")  # type: ignore[operator]
    with pytest.raises(
        UnsupportedError, match=r"is a language model: its graph has the output logits .*onnx_genai\.LLM"
    ):
        Embedder(folder)
