"""What is done with the vectors of texts after the model: dense layers, length, fewer dimensions, similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from onnx_genai.errors import InvalidArgumentError, PackageError
from onnx_genai.package.encoder import Activation, DenseLayer
from onnx_genai.package.safetensors import TensorFile

__all__ = ["Dense", "Vectors", "check_dimensions", "finished", "load_steps", "sigmoid", "similarity", "unit"]

Vectors = npt.NDArray[np.float32]

_SMALL = 4096
"""Rows that a step works on at a time: bounds what it needs beside the result."""


class Dense:
    """A linear layer with its weights."""

    def __init__(self, layer: DenseLayer) -> None:
        tensors = TensorFile(layer.file)
        self._weight = tensors.float32(layer.weight).T
        self._bias = None if layer.bias is None else tensors.float32(layer.bias)
        self._activation = _ACTIVATIONS[layer.activation]
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def __call__(self, vectors: Vectors) -> Vectors:
        result = vectors @ self._weight
        return self._activation(result if self._bias is None else result + self._bias)


Step = Dense | Literal["normalize"]


def load_steps(layers: Sequence[DenseLayer | Literal["normalize"]], width: int) -> tuple[list[Step], int]:
    """The steps after pooling with their weights, and the width of what they return.

    Raises:
        PackageError: A layer takes another width than it gets, or its weights are broken.
    """
    steps: list[Step] = []
    for layer in layers:
        if isinstance(layer, DenseLayer):
            if layer.in_features != width:
                raise PackageError(f"{layer.file}: takes {layer.in_features} values, but gets {width}")
            steps.append(Dense(layer))
            width = layer.out_features
        else:
            steps.append(layer)
    return steps, width


def finished(vectors: Vectors, steps: Sequence[Step], *, normalize: bool | None, dimensions: int | None) -> Vectors:
    """The vectors after all steps.

    Args:
        vectors: float32 [n, d].
        steps: Of the package.
        normalize: None does what the steps say, False leaves their normalisation out, True makes lengths 1.
        dimensions: Keep so many values of each; lengths that were 1 are made 1 again.
    """
    is_unit = False
    for step in steps:
        if isinstance(step, Dense):
            vectors, is_unit = step(vectors), False
        elif normalize is not False:
            vectors, is_unit = unit(vectors), True
    if dimensions is not None and dimensions < vectors.shape[1]:
        vectors = np.ascontiguousarray(vectors[:, :dimensions])
        return unit(vectors) if is_unit or normalize else vectors
    return unit(vectors) if normalize and not is_unit else vectors


def unit(vectors: Vectors) -> Vectors:
    """Rows divided by their length; a row of zeros stays one. Lengths are computed in float64."""
    result = np.empty_like(vectors)
    for start in range(0, len(vectors), _SMALL):
        rows = vectors[start : start + _SMALL].astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        result[start : start + _SMALL] = rows / np.where(lengths > 0, lengths, 1.0)[:, None]
    return result


def similarity(query: Vectors, documents: Vectors) -> Vectors:
    """Cosines of one vector, [1, d], with many, [n, d]: float32 [n]."""
    cosines = unit(documents).astype(np.float64) @ unit(query)[0].astype(np.float64)
    result: Vectors = cosines.astype(np.float32)
    return result


def sigmoid(values: Vectors) -> Vectors:
    wide = values.astype(np.float64)
    # exp() of a large number would overflow.
    small = np.exp(-np.abs(wide))
    result: Vectors = (np.where(wide >= 0, 1.0, small) / (1.0 + small)).astype(np.float32)
    return result


def check_dimensions(dimensions: object, width: int) -> int | None:
    """``dimensions`` if it is allowed.

    Raises:
        InvalidArgumentError: It is not.
    """
    if dimensions is None:
        return None
    if isinstance(dimensions, bool) or not isinstance(dimensions, (int, np.integer)) or not 1 <= dimensions <= width:
        raise InvalidArgumentError(
            f"dimensions is {dimensions!r}; allowed: a whole number in 1..{width} (the model's width)"
        )
    return int(dimensions)


def _identity(values: Vectors) -> Vectors:
    return values


def _relu(values: Vectors) -> Vectors:
    result: Vectors = np.maximum(values, np.float32(0))
    return result


def _tanh(values: Vectors) -> Vectors:
    result: Vectors = np.tanh(values)
    return result


_ACTIVATIONS: dict[Activation, Callable[[Vectors], Vectors]] = {
    "identity": _identity,
    "tanh": _tanh,
    "relu": _relu,
    "sigmoid": sigmoid,
}
