"""The window model does what it promises, shown with plain onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.models.window import WINDOW, build_window, window_next


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 30])
def test_window_model_given_any_chunks_follows_the_rule_and_drops_old_keys(chunk: int) -> None:
    session = ort.InferenceSession(build_window().SerializeToString(), providers=["CPUExecutionProvider"])
    ids = [int(number) for number in np.random.default_rng(1).integers(0, 97, 30)]
    past = np.zeros((1, 1, 0, 1), dtype=np.float32)

    for first in range(0, len(ids), chunk):
        feed = {"input_ids": np.array([ids[first : first + chunk]]), "past_key_values.0.key": past}
        logits, past = session.run(None, feed)
        expected = [window_next(ids[: first + place + 1]) for place in range(logits.shape[1])]
        assert logits[0].argmax(axis=-1).tolist() == expected

    assert past.shape == (1, 1, WINDOW - 1, 1)
    assert past.flatten().tolist() == ids[-WINDOW + 1 :]
