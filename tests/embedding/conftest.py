"""Fixtures of the tests of encoders."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.models.encoder import EncoderFiles, EncoderStyle, encoder_vectors, write_encoder_package

WritePackage = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path) -> WritePackage:
    """``package(style, files, graph=...)``: folder of a tiny encoder; see `write_encoder_package`."""
    numbers = itertools.count()

    def write(
        style: EncoderStyle | None = None, files: EncoderFiles | None = None, *, graph: str = "model.onnx"
    ) -> Path:
        return write_encoder_package(tmp_path / f"encoder_{next(numbers)}", style, files, graph=graph)

    return write


def text_of(*words: int) -> str:
    return " ".join(f"w{word}" for word in words)


def ids_of(*words: int) -> list[int]:
    return [0, *words, 1]


def pooled(words: tuple[int, ...], mode: str = "mean", *, unit: bool = True) -> npt.NDArray[np.float64]:
    """The vector of a text of these words, in float64."""
    tokens = encoder_vectors(ids_of(*words))
    places = np.arange(1, len(tokens) + 1)[:, None]
    vector = {
        "mean": tokens.mean(axis=0),
        "cls": tokens[0],
        "max": tokens.max(axis=0),
        "last": tokens[-1],
        "weighted_mean": (tokens * places).sum(axis=0) / places.sum(),
        "mean_sqrt": tokens.sum(axis=0) / np.sqrt(len(tokens)),
    }[mode]
    return vector / np.linalg.norm(vector) if unit else vector
