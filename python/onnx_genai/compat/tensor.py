"""Arrays as scripts hand them around: :class:`Tensor` and :class:`NamedTensors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_genai.errors import InvalidArgumentError, NotFoundError

__all__ = ["NamedTensors", "Tensor"]


class Tensor:
    """An array. One that :meth:`Tokenizer.encode_batch` made also knows which of its ids are padding.

    Args:
        array: Any numpy array; it is not copied.
        mask: bool ``[batch, seq]``, False where ``array`` has padding; None leaves that open.
    """

    def __init__(self, array: npt.NDArray[Any], *, mask: npt.NDArray[np.bool_] | None = None) -> None:
        if not isinstance(array, np.ndarray):
            raise InvalidArgumentError(f"array is {type(array).__name__}; allowed: a numpy array")
        self._array = array
        self.mask = mask

    def as_numpy(self) -> npt.NDArray[Any]:
        """The array itself."""
        return self._array

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._array.shape)

    def type(self) -> str:
        """Name of its element type, such as ``int32``."""
        return self._array.dtype.name


class NamedTensors:
    """Tensors by name, for :meth:`Generator.set_inputs`."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def keys(self) -> list[str]:
        """The names, in the order in which they were set."""
        return list(self._tensors)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError as error:
            raise NotFoundError(
                f"there is no tensor {name!r}; there are: {', '.join(self._tensors) or 'none'}"
            ) from error

    def __setitem__(self, name: str, value: Tensor | npt.NDArray[Any]) -> None:
        self._tensors[name] = value if isinstance(value, Tensor) else Tensor(value)

    def __delitem__(self, name: str) -> None:
        self[name]  # raises where there is none
        del self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)
