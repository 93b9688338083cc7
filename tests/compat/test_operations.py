"""Random orders of calls on one generator, against the checksum model's formula."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import onnx_genai.compat as og
from tests.compat.calls import generator
from tests.models.checksum import EOS, VOCAB_SIZE, checksum_logits

pytestmark = pytest.mark.boundary

LENGTH = 48


@pytest.fixture(scope="module", params=["gqa", "concat"])
def model(request: pytest.FixtureRequest, checksum_package: Callable[..., Path]) -> Iterator[og.Model]:
    with og.Model(str(checksum_package(request.param))) as loaded:
        yield loaded


def without_end(ids: list[int]) -> int:
    """The token after ``ids`` where the end token is banned."""
    logits = np.asarray(checksum_logits(ids), dtype=np.float64)
    logits[EOS] = -np.inf
    return int(logits.argmax())


class Oracle:
    """Rows of cells: an id, and whether the model sees it."""

    def __init__(self, count: int) -> None:
        self.rows: list[list[tuple[int, bool]]] = [[] for _ in range(count)]

    def seen(self, row: int) -> list[int]:
        return [token for token, real in self.rows[row] if real]

    def step(self) -> None:
        for row, cells in enumerate(self.rows):
            cells.append((without_end(self.seen(row)), True))


def append(made: og.Generator, oracle: Oracle, draw: random.Random) -> None:
    """Appends rows that are padded at a random side by mask, or rows of one length without a mask."""
    width = draw.randint(1, 5)
    ids = [[draw.randrange(VOCAB_SIZE) for _ in range(width)] for _ in oracle.rows]
    kept = [draw.randint(1, width) for _ in oracle.rows]
    left = draw.random() < 0.5
    mask = [[(column >= width - count) if left else (column < count) for column in range(width)] for count in kept]
    if draw.random() < 0.4:
        mask = [[True] * width for _ in oracle.rows]
        made.append_tokens(ids)
    else:
        made.append_tokens(np.asarray(ids), attention_mask=mask)
    for cells, row, real in zip(oracle.rows, ids, mask, strict=True):
        cells.extend(zip(row, real, strict=True))


@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_calls_equals_the_formula(seed: int, model: og.Model) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 3)
    made = generator(model, batch_size=count, max_length=LENGTH, min_length=LENGTH)
    oracle = Oracle(count)
    append(made, oracle, draw)
    for _ in range(30):
        width = len(oracle.rows[0])
        action = draw.choice(["append", "step", "step", "steps", "rewind", "read", "set"])
        if width == 0 or (action == "append" and width <= LENGTH - 5):
            append(made, oracle, draw)
        elif action == "rewind" or made.is_done():
            length = draw.randint(0, width)
            made.rewind_to(length)
            oracle.rows = [cells[:length] for cells in oracle.rows]
        elif any(not oracle.seen(row) for row in range(count)):
            append(made, oracle, draw) if width <= LENGTH - 5 else made.rewind_to(0)
            oracle.rows = oracle.rows if made.token_count() else [[] for _ in oracle.rows]
        elif action in ("read", "set"):
            logits = made.get_logits()
            np.testing.assert_allclose(logits[:, 0], [checksum_logits(oracle.seen(row)) for row in range(count)])
            if action == "set":
                logits[:, 0, 90] = 1e6
                made.set_logits(logits)
                made.generate_next_token()
                for cells in oracle.rows:
                    cells.append((90, True))
        else:
            for _ in range(1 if action == "step" else draw.randint(1, 20)):
                if made.is_done():
                    break
                made.generate_next_token()
                oracle.step()
        assert made.token_count() == len(oracle.rows[0])
        assert [made.get_sequence(row).tolist() for row in range(count)] == [
            [token for token, _ in cells] for cells in oracle.rows
        ]
