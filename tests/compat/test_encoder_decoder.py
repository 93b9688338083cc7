"""Encoder-decoders through compat: what is appended is the source, what is generated stands apart from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from tests.compat.calls import generator, model, sequences
from tests.models.encoder_decoder import EOS, START, VOCAB, decoder_logits, greedy_answer, write_encoder_decoder

pytestmark = pytest.mark.boundary

SOURCES = [[6, 3, 5], [5, 4], [4, 4, 6, 2]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[og.Model]:
    with model(write_encoder_decoder(tmp_path_factory.mktemp("compat"), "state")) as made:
        yield made


def without_end(ids: list[int]) -> list[int]:
    return ids[:-1] if ids[-1] == EOS else ids


def test_sequences_are_source_and_answer(loaded: og.Model) -> None:
    for source in SOURCES:
        made = generator(loaded, max_length=30)
        made.append_tokens(source)

        answer = greedy_answer("state", [*source, EOS], 30 - len(source))
        assert sequences(made) == [[*source, *without_end(answer)]]


def test_rows_of_a_batch_are_those_of_single_rows(loaded: og.Model) -> None:
    made = generator(loaded, batch_size=3, max_length=24)
    made.append_tokens(SOURCES)
    found = sequences(made)

    for source, row in zip(SOURCES, found, strict=True):
        answer = greedy_answer("state", [*source, EOS], 20)
        assert row[: len(source)] == source
        assert row[len(source) :][: len(answer)] in (answer, without_end(answer))


def test_logits_of_the_next_token(loaded: og.Model) -> None:
    source = SOURCES[0]
    made = generator(loaded, max_length=30)
    made.append_tokens(source)
    np.testing.assert_allclose(made.get_logits()[0, 0], decoder_logits("state", [*source, EOS], [START]), rtol=1e-4)
    np.testing.assert_array_equal(made.get_output("logits"), made.get_logits())

    made.generate_next_token()
    answer = made.get_sequence(0).tolist()[len(source) :]
    expected = decoder_logits("state", [*source, EOS], [START, *answer])
    np.testing.assert_allclose(made.get_logits()[0, 0], expected, rtol=1e-4)


def test_source_is_fixed_when_the_answer_has_begun(loaded: og.Model) -> None:
    made = generator(loaded, max_length=30, min_length=30)
    made.append_tokens(SOURCES[0][:1])
    made.append_tokens(SOURCES[0][1:])
    for _ in range(4):
        made.generate_next_token()
    whole = made.get_sequence(0).tolist()
    with pytest.raises(errors.UnsupportedError, match="its source is fixed then"):
        made.append_tokens([3])

    made.rewind_to(5)
    for _ in range(2):
        made.generate_next_token()
    assert made.get_sequence(0).tolist() == whole
    made.rewind_to(0)
    made.append_tokens(SOURCES[1])
    made.generate_next_token()
    logits = decoder_logits("state", [*SOURCES[1], EOS], [START])
    logits[EOS] = -np.inf
    assert made.get_sequence(0).tolist() == [*SOURCES[1], int(logits.argmax())]


def test_beams_step_by_step(loaded: og.Model) -> None:
    """Against the two best continuations of the two best ones, by the sum of log-probabilities."""
    source = SOURCES[0]
    made = generator(loaded, num_beams=2, num_return_sequences=2, max_length=20, min_length=20)
    made.append_tokens(source)

    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(4):
        made.generate_next_token()
        found = []
        for score, tokens in beams:
            row = decoder_logits("state", [*source, EOS], [START, *tokens]).astype(np.float64)
            row -= np.log(np.exp(row).sum())
            found += [(score + row[token], [*tokens, token]) for token in range(VOCAB) if token != EOS]
        beams = sorted(found, key=lambda beam: -beam[0])[:2]

        assert [made.get_sequence(rank).tolist() for rank in range(2)] == [[*source, *tokens] for _, tokens in beams]
        assert made.get_next_tokens().tolist() == [tokens[-1] for _, tokens in beams]
        assert made.get_logits().shape == (2, 1, VOCAB)
