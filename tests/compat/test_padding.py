"""What is padding and what is text in the rows that a generator is given, on the checksum model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from onnx_genai.compat.padding import find_padding
from tests.compat.calls import generator, sequences
from tests.models.checksum import EOS, checksum_generate

pytestmark = pytest.mark.boundary

PAD = 0
"""The package's pad id, which is also its end id."""


@pytest.fixture(scope="module")
def model(checksum_package: Callable[..., Path]) -> Iterator[og.Model]:
    with og.Model(str(checksum_package("gqa"))) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("rows", "ends", "sides"),
    [
        # A single pad id that ends texts, too, is text where nothing shows the side of the padding.
        ([[5, 6, 0], [1, 2, 3]], {0}, [(0, 0), (0, 0)]),
        ([[5, 6, 0], [1, 2, 3]], {9}, [(0, 1), (0, 0)]),
        ([[5, 6, 0], [1, 2, 0]], {9}, [(0, 0), (0, 0)]),
        ([[5, 0, 0], [1, 2, 3]], {0}, [(0, 2), (0, 0)]),
        ([[5, 0, 0], [1, 2, 0], [1, 2, 3]], {0}, [(0, 2), (0, 1), (0, 0)]),
        ([[5, 0, 0], [1, 2, 0]], {0}, [(0, 0), (0, 0)]),
        ([[0, 0, 5, 0], [1, 2, 3, 4]], {0}, [(2, 0), (0, 0)]),
        ([[0, 5, 6], [1, 2, 3]], {0}, [(1, 0), (0, 0)]),
        ([[0, 0, 5], [0, 2, 3]], {0}, [(1, 0), (0, 0)]),
        ([[0, 0, 0], [1, 2, 3]], {0}, [(3, 0), (0, 0)]),
        ([[5, 6, 0]], {0}, [(0, 0)]),
    ],
)
def test_find_padding(rows: list[list[int]], ends: set[int], sides: list[tuple[int, int]]) -> None:
    assert find_padding(rows, 0, frozenset(ends)) == sides


def test_text_that_may_be_padding_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="onnx_genai"):
        find_padding([[1, 2, 3], [5, 6, 0]], 0, frozenset({0}))
        find_padding([[1, 2, 3], [5, 0, 0]], 0, frozenset({0}))

    assert [record.args for record in caplog.records] == [(1, 0)]
    assert "attention_mask" in caplog.text


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", ["array", "mask", "list_with_mask", "tensor"])
def test_padded_rows_equal_rows_alone(side: str, how: str, model: og.Model) -> None:
    prompts = [[7], [5, 6, 7], [9, 8, 7, 6, 5]]
    width = 5
    ids = np.full((3, width), PAD, dtype=np.int64)
    mask = np.zeros((3, width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        place = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[row, place], mask[row, place] = prompt, 1
    made = generator(model, batch_size=3, max_length=20)
    given: Any = {"list_with_mask": ids.tolist(), "tensor": og.Tensor(ids)}.get(how, ids)
    made.append_tokens(given, attention_mask=mask if "mask" in how else None)

    found = sequences(made)

    for row, prompt in enumerate(prompts):
        assert found[row][:width] == ids[row].tolist()
        assert found[row][width:] == checksum_generate(prompt, 15)


def test_pad_id_is_text_where_nothing_says_otherwise(model: og.Model) -> None:
    whole = {"max_length": 8}
    alone = generator(model, **whole)
    alone.append_tokens(np.array([5, 6, PAD]))
    in_list = generator(model, **whole, batch_size=2)
    in_list.append_tokens([[5, 6, PAD], [1, 2, 3]])
    in_array = generator(model, **whole, batch_size=2)
    in_array.append_tokens(np.array([[5, 6, PAD], [1, 2, 3]], dtype=np.int32))
    begins_all = generator(model, **whole, batch_size=2)
    begins_all.append_tokens(np.array([[PAD, 5, 6], [PAD, 7, 8]]))

    expected = checksum_generate([5, 6, PAD], 5)
    expected = expected[: expected.index(EOS)] if EOS in expected else expected
    assert sequences(alone)[0][3:] == expected
    for made in (in_list, in_array):
        assert sequences(made)[0][3 : 3 + len(expected)] == expected
    assert sequences(begins_all)[1][3:] == checksum_generate([PAD, 7, 8], 5)


def test_batch_of_encoded_texts_knows_its_padding(model: og.Model) -> None:
    tokenizer = og.Tokenizer(model)
    tensor = tokenizer.encode_batch(["w5 w6 <eos>", "w7"])
    made = generator(model, batch_size=2, max_length=6)
    made.append_tokens(tensor)
    made.generate_next_token()

    assert made.get_next_tokens().tolist() == [checksum_generate([5, 6, 0], 1)[0], checksum_generate([7], 1)[0]]


def test_row_of_padding_alone_after_a_rewind_is_refused(model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=20)
    made.append_tokens(np.array([[PAD, PAD, 5], [1, 2, 3]]))
    made.rewind_to(2)
    with pytest.raises(errors.InvalidArgumentError, match="empty"):
        made.generate_next_token()

    made.append_tokens([[5], [3]])
    made.generate_next_token()
    assert made.get_next_tokens().tolist() == [checksum_generate([5], 1)[0], checksum_generate([1, 2, 3], 1)[0]]
