"""Reads a GGUF file: header, metadata and tensors, with errors that name the offset and the value found there.

Source: the GGUF specification, versions 2 and 3 (``docs/gguf.md`` of the ggml project). Element formats are decoded by
the ``gguf`` package; only the container is read here, because a broken file must give a clear error.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from onnx_genai.errors import NotFoundError, PackageError, UnsupportedError

__all__ = ["FloatArray", "GgufFile", "TensorInfo"]

FloatArray = npt.NDArray[np.float32]

MAGIC = b"GGUF"
LFS_PREFIX = b"version https://git-lfs"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65535
CHUNK_ELEMENTS = 1 << 24
"""Rows are handed out in chunks of at most this many elements (64 MiB of float32), so that memory stays bounded."""

_SCALARS: dict[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Row-major: the last axis is contiguous (the reverse of the order in the file)."""
    type: GGMLQuantizationType
    offset: int
    """From the start of the file, bytes."""
    size_bytes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class _Cursor:
    """Reads little-endian values from a buffer and knows its position."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.position = 0

    def fail(self, what: str, at: int | None = None) -> PackageError:
        offset = self.position if at is None else at
        return PackageError(f"{self._path}: {what} at byte {offset} of {len(self._data)}; not a whole GGUF file")

    def take(self, size: int, what: str) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise self.fail(f"the file ends inside {what} ({size} bytes needed)")
        raw = self._data[self.position : end]
        self.position = end
        return raw

    def scalar(self, code: str, what: str) -> int | float | bool:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))
        return value  # type: ignore[no-any-return]

    def integer(self, code: str, what: str) -> int:
        return int(self.scalar(code, what))

    def text(self, what: str, limit: int | None = None) -> str:
        start = self.position
        size = self.integer("Q", f"the length of {what}")
        if limit is not None and size > limit:
            raise self.fail(f"{what} has length {size} (allowed: at most {limit})", start)
        return self.take(size, what).decode("utf-8", errors="replace")

    def value(self, kind: int, what: str) -> object:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self._array(what)
        raise self.fail(f"{what} has value type {kind} (known: 0..12)", self.position)

    def _array(self, what: str) -> list[object]:
        start = self.position
        kind = self.integer("I", f"the element type of {what}")
        count = self.integer("Q", f"the length of {what}")
        if kind == _STRING:
            if count * 8 > len(self._data) - self.position:
                raise self.fail(f"{what} claims {count} strings, more than the file can hold", start)
            return [self.text(what) for _ in range(count)]
        if kind in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[kind]) if kind != 7 else np.dtype(np.bool_)
            values: list[object] = np.frombuffer(self.take(count * dtype.itemsize, what), dtype).tolist()
            return values
        raise self.fail(f"{what} is an array of type {kind} (known: scalars and strings)", start)


class GgufFile:
    """An open GGUF file; tensors are read from a memory map on demand. One thread.

    Args:
        path: The file.

    Raises:
        NotFoundError: There is no such file.
        PackageError: It is not a GGUF file, is truncated, or is a Git LFS pointer.
        UnsupportedError: An old version, a big-endian file, a part of a split model, or an unknown tensor type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        if not path.is_file():
            raise NotFoundError(f"{path}: no such file; give the path of a .gguf file")
        self.size_bytes = path.stat().st_size
        if self.size_bytes < 24:
            raise PackageError(f"{path}: {self.size_bytes} bytes are too few for a GGUF header (24 bytes)")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the map; arrays from :meth:`chunks` are copies and stay valid. Idempotent."""
        self._map.close()

    def _read(self) -> None:
        cursor = _Cursor(self.path, self._map)
        self._check_magic(cursor)
        tensor_count = cursor.integer("Q", "the tensor count")
        key_count = cursor.integer("Q", "the metadata count")
        for index in range(key_count):
            at = cursor.position
            key = cursor.text(f"metadata key {index}", MAX_NAME_BYTES)
            if key in self.metadata:
                raise cursor.fail(f"metadata key {key!r} is there twice", at)
            self.metadata[key] = cursor.value(cursor.integer("I", f"the type of {key!r}"), repr(key))
        parts = self.integer("split.count", 1)
        if parts > 1:
            raise UnsupportedError(
                f"{self.path}: part {self.integer('split.no', 0) + 1} of {parts} of a split model; "
                "join the parts first (llama-gguf-split --merge) and import the result"
            )
        headers = [self._tensor_header(cursor, index) for index in range(tensor_count)]
        alignment = self.integer("general.alignment", DEFAULT_ALIGNMENT)
        if alignment < 1 or alignment & (alignment - 1):
            raise PackageError(f"{self.path}: general.alignment is {alignment}; allowed: a power of two")
        start = -(-cursor.position // alignment) * alignment
        for name, shape, kind, offset in headers:
            self._add_tensor(name, shape, kind, start + offset)

    def _check_magic(self, cursor: _Cursor) -> None:
        head = self._map[: len(LFS_PREFIX)]
        if head == LFS_PREFIX:
            raise PackageError(
                f"{self.path}: a Git LFS pointer of {self.size_bytes} bytes, not the model; "
                "fetch the real file with 'git lfs pull' or 'onnx-genai pull'"
            )
        magic = cursor.take(4, "the magic")
        if magic != MAGIC:
            raise PackageError(f"{self.path}: begins with {magic!r} at byte 0 where a GGUF file has {MAGIC!r}")
        version = cursor.integer("I", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            hint = "a big-endian file" if swapped in VERSIONS else "known: 2 and 3"
            raise UnsupportedError(f"{self.path}: GGUF version {version} at byte 4 ({hint}); convert it again")

    def _tensor_header(self, cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
        at = cursor.position
        name = cursor.text(f"the name of tensor {index}", MAX_NAME_BYTES)
        count = cursor.integer("I", f"the rank of tensor {name!r}")
        if not 1 <= count <= MAX_DIMENSIONS:
            raise cursor.fail(f"tensor {name!r} has rank {count} (allowed: 1..{MAX_DIMENSIONS})", at)
        shape = tuple(cursor.integer("Q", f"the shape of tensor {name!r}") for _ in range(count))[::-1]
        kind = cursor.integer("I", f"the type of tensor {name!r}")
        return name, shape, kind, cursor.integer("Q", f"the offset of tensor {name!r}")

    def _add_tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> None:
        if kind not in GGMLQuantizationType._value2member_map_:
            raise UnsupportedError(f"{self.path}: tensor {name!r} has the unknown element type {kind}; update gguf")
        quant = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[quant]
        if min(shape) < 1 or shape[-1] % block:
            raise PackageError(
                f"{self.path}: tensor {name!r} has shape {shape}; {quant.name} wants rows of a multiple of {block}"
            )
        size = math.prod(shape) // block * block_bytes
        if offset + size > self.size_bytes:
            raise PackageError(
                f"{self.path}: tensor {name!r} ends at byte {offset + size}, but the file has {self.size_bytes} bytes; "
                "it is truncated, fetch it again"
            )
        if name in self.tensors:
            raise PackageError(f"{self.path}: tensor {name!r} is there twice")
        self.tensors[name] = TensorInfo(name=name, shape=shape, type=quant, offset=offset, size_bytes=size)

    # Metadata -----------------------------------------------------------------------------------------------------

    def _typed(self, key: str, kinds: tuple[type, ...], expected: str) -> object:
        if key not in self.metadata:
            raise PackageError(f"{self.path}: the metadata key {key!r} is missing; expected {expected}")
        value = self.metadata[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            shown = repr(value)
            raise PackageError(f"{self.path}: {key} is {shown[:80]} ({type(value).__name__}); expected {expected}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """The whole number under ``key``; ``default`` when it is absent (None: an error)."""
        if default is not None and key not in self.metadata:
            return default
        value = self._typed(key, (int,), "a whole number")
        assert isinstance(value, int)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """The number under ``key``; ``default`` when it is absent (None: an error)."""
        if default is not None and key not in self.metadata:
            return default
        value = self._typed(key, (int, float), "a number")
        assert isinstance(value, (int, float))
        if not math.isfinite(value):
            raise PackageError(f"{self.path}: {key} is {value}; expected a finite number")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """The truth value under ``key``, or ``default`` when it is absent."""
        if key not in self.metadata:
            return default
        return bool(self._typed(key, (bool,), "true or false"))

    def text(self, key: str, default: str | None = None) -> str:
        """The string under ``key``; ``default`` when it is absent (None: an error)."""
        if default is not None and key not in self.metadata:
            return default
        return str(self._typed(key, (str,), "a string"))

    def items(self, key: str) -> list[object]:
        """The array under ``key``; empty when it is absent."""
        if key not in self.metadata:
            return []
        value = self._typed(key, (list,), "an array")
        assert isinstance(value, list)
        return value

    # Tensors ------------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> TensorInfo:
        """Header of a tensor; a :class:`PackageError` when the file has none of that name."""
        if name not in self.tensors:
            raise PackageError(f"{self.path}: the tensor {name!r} is missing")
        return self.tensors[name]

    def chunks(
        self, name: str, first_row: int = 0, rows: int | None = None, unit: int = 1
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Raw bytes of rows ``[first_row, first_row + rows)`` as uint8 ``[chunk rows, bytes a row]`` copies.

        Every chunk but the last holds a multiple of ``unit`` rows (a head, for example).
        """
        info = self.tensor(name)
        row_bytes = info.size_bytes // info.rows
        end = info.rows if rows is None else first_row + rows
        step = max(1, CHUNK_ELEMENTS // (info.columns * unit)) * unit
        for row in range(first_row, end, step):
            stop = min(row + step, end)
            raw = self._map[info.offset + row * row_bytes : info.offset + stop * row_bytes]
            yield np.frombuffer(raw, np.uint8).reshape(stop - row, row_bytes)

    def floats(self, raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> FloatArray:
        """float32 values of raw rows; a NaN or infinity in them is a :class:`PackageError`."""
        if kind == GGMLQuantizationType.F32:
            values = raw.view(np.float32)
        elif kind == GGMLQuantizationType.F16:
            values = raw.view(np.float16).astype(np.float32)
        else:
            try:
                values = np.asarray(dequantize(raw, kind), np.float32)
            except NotImplementedError as error:
                raise UnsupportedError(f"{self.path}: gguf cannot decode the element type {kind.name}") from error
        if not np.isfinite(values).all():
            raise PackageError(f"{self.path}: {np.sum(~np.isfinite(values))} values of type {kind.name} are not finite")
        return values

    def vector(self, name: str, size: int) -> FloatArray:
        """A tensor of one axis as float32 ``[size]``."""
        info = self.tensor(name)
        if info.shape != (size,):
            raise PackageError(f"{self.path}: tensor {name!r} has shape {info.shape}; expected ({size},)")
        (raw,) = self.chunks(name)
        return self.floats(raw, info.type).reshape(size)
