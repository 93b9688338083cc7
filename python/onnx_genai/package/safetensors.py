"""Reads tensors out of a .safetensors file: a JSON header, then the bytes of the tensors."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_genai.errors import PackageError
from onnx_genai.package.files import check_payload, parse_json

__all__ = ["TensorFile"]

_MAX_HEADER_BYTES = 100 * 1024 * 1024
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1", "BOOL": "?"}


@dataclass(frozen=True, slots=True)
class _Place:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """The tensors of one file; read-only, safe from any thread.

    Source: the format description of the safetensors library.
    """

    def __init__(self, path: Path) -> None:
        """Reads the header and checks it against the size of the file.

        Raises:
            PackageError: The file is missing, damaged, or a Git LFS pointer.
        """
        check_payload(path)
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise PackageError(f"{path}: cannot be read ({error})") from error
        length = int.from_bytes(self._data[:8], "little")
        if len(self._data) < 8 or length > min(_MAX_HEADER_BYTES, len(self._data) - 8):
            raise self._broken(f"its header has {length} bytes, the file {len(self._data)}")
        try:
            text = self._data[8 : 8 + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._broken("its header is not UTF-8") from error
        header = parse_json(text, path)
        if not isinstance(header, dict):
            raise self._broken("its header is no object")
        self._places = {
            name: self._place(name, value, 8 + length) for name, value in header.items() if name != "__metadata__"
        }

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: place.shape for name, place in self._places.items()}

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor of floats as float32; bfloat16 and halves are widened exactly.

        Raises:
            PackageError: There is no such tensor, or it holds no floats.
        """
        place = self._places.get(name)
        if place is None:
            raise PackageError(
                f"{self.path}: has no tensor {name!r}; it has {', '.join(sorted(self._places)[:6])}, ..."
            )
        raw = self._data[place.start : place.end]
        if place.dtype == "BF16":
            halves = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            return halves.view(np.float32).reshape(place.shape)
        if place.dtype not in ("F64", "F32", "F16"):
            raise PackageError(f"{self.path}: tensor {name!r} has the type {place.dtype}; expected F32, F16 or BF16")
        return np.frombuffer(raw, _DTYPES[place.dtype]).astype(np.float32, copy=False).reshape(place.shape)

    def _place(self, name: str, value: Any, base: int) -> _Place:
        try:
            dtype, shape, (start, end) = str(value["dtype"]), tuple(value["shape"]), value["data_offsets"]
            count = 1
            for size in shape:
                count *= int(size)
            item = 2 if dtype == "BF16" else np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else 0
            sound = 0 <= start <= end <= len(self._data) - base and (not item or end - start == count * item)
        except (KeyError, TypeError, ValueError) as error:
            raise self._broken(f"the entry of {name!r} is wrong") from error
        if not sound or not all(type(size) is int and size >= 0 for size in shape):
            raise self._broken(f"the bytes of {name!r} do not fit its shape or the file")
        return _Place(dtype, shape, base + start, base + end)

    def _broken(self, why: str) -> PackageError:
        return PackageError(f"{self.path}: is no complete safetensors file ({why}). Download it again.")
