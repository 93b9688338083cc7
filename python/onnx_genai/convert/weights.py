"""Writes weights to the external data file, a piece at a time, and hands out graph values for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_genai.convert.blocks import Blocks, unpack
from onnx_genai.convert.formats import Encoded, Errors, Format, encode, target_format
from onnx_genai.convert.gguf_file import FloatArray, GgufFile, TensorInfo
from onnx_genai.errors import PackageError

__all__ = ["DATA_FILE", "Part", "Progress", "StoredMatrix", "TensorReport", "WeightStore"]

DATA_FILE = "model.onnx.data"
ALIGNMENT = 4096
"""Offsets in the data file are multiples of this, so that a runtime can map tensors."""

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done_bytes, total_bytes)``; ``what`` names the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """What became of one tensor of the file."""

    name: str
    shape: tuple[int, ...]
    source_type: str
    target: str
    """For example ``int4 block 32 + block means`` or ``float32``."""
    carried: bool
    """The file's own codes and scales were taken over; no weight was rounded anew."""
    relative_error: float
    """Root of the squared difference to the decoded source over its squared norm; 0 is exact."""
    max_error: float
    """Largest absolute difference to the decoded source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of a tensor that become output rows of a product."""

    tensor: str
    first_row: int = 0
    rows: int | None = None
    """None: all after ``first_row``."""
    heads: int = 0
    """Heads whose rows must be put back in order (pairs to halves); 0: rows are in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """Values of a stored matrix ``[rows, columns]``."""

    form: Format
    rows: int
    columns: int
    weight: ir.Value
    """Codes ``[rows, blocks, bytes]``, or floats ``[columns, rows]`` (``[rows, columns]`` for a lookup table)."""
    scales: ir.Value | None = None
    zero_points: ir.Value | None = None


class _DataFile:
    """Appends arrays to the external data file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def close(self) -> None:
        self._file.close()

    def append(self, pieces: Iterator[npt.NDArray[np.generic]]) -> tuple[int, int]:
        """Writes the pieces one after the other; returns offset and size in bytes."""
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        offset = self._file.tell()
        for piece in pieces:
            self._file.write(np.ascontiguousarray(piece).data)
        return offset, self._file.tell() - offset


class WeightStore:
    """Brings tensors of a GGUF file into their package form; one thread.

    Args:
        file: The open GGUF file.
        folder: Where ``model.onnx.data`` is written.
        dtype: See :func:`~onnx_genai.convert.formats.target_format`.
        block: Block size of what is rounded anew.
        progress: Told after each piece.
    """

    def __init__(
        self, file: GgufFile, folder: Path, *, dtype: str | None, block: int, progress: Progress | None
    ) -> None:
        self.file = file
        self.float_type = ir.DataType.FLOAT16 if dtype == "fp16" else ir.DataType.FLOAT
        self.reports: list[TensorReport] = []
        self.initializers: list[ir.Value] = []
        self._dtype = dtype
        self._block = block
        self._progress = progress
        self._done = 0
        self._total = sum(info.size_bytes for info in file.tensors.values())
        self._data = _DataFile(folder / DATA_FILE)
        self._aliases = 0

    def __enter__(self) -> WeightStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def form_of(self, tensor: str) -> Format:
        """The form that a matrix takes; matrices of equal form can be joined."""
        return target_format(self.file.tensor(tensor).type, self._dtype, self._block)

    # Small tensors --------------------------------------------------------------------------------------------------

    def constant(self, name: str, values: npt.NDArray[np.generic]) -> ir.Value:
        """An initializer inside ``model.onnx``."""
        tensor = ir.tensor(values, name=name)
        return self._add(name, tensor, tensor.dtype, values.shape)

    def table(self, name: str, values: FloatArray) -> ir.Value:
        """A float array in the data file, in the float type of the graph."""
        array = values.astype(self.float_type.numpy())
        return self._external(name, iter([array]), self.float_type, array.shape)

    def vector(self, name: str, tensor: str, size: int) -> ir.Value:
        """A norm or bias tensor as an initializer inside ``model.onnx``."""
        return self.vectors(name, [(tensor, size)])

    def vectors(self, name: str, tensors: Sequence[tuple[str, int]]) -> ir.Value:
        """Several vectors joined into one initializer."""
        arrays = []
        for tensor, size in tensors:
            values = self.file.vector(tensor, size)
            stored = values.astype(self.float_type.numpy())
            errors = Errors()
            errors.add(stored.astype(np.float32) - values, values)
            self._report(self.file.tensor(tensor), Format(bits=stored.dtype.itemsize * 8), errors, carried=False)
            arrays.append(stored)
        return self.constant(name, np.concatenate(arrays))

    # Matrices -------------------------------------------------------------------------------------------------------

    def matrix(self, name: str, parts: Sequence[Part], columns: int, *, lookup: bool = False) -> StoredMatrix:
        """Stores the rows of all parts below each other; the parts must have the same form.

        Args:
            name: Prefix of the initializers.
            parts: Where the rows are.
            columns: Expected width of every part.
            lookup: Floats stay ``[rows, columns]``, for ``Gather``; otherwise they are transposed for ``MatMul``.
        """
        form = self.form_of(parts[0].tensor)
        rows = sum(self._rows(part, columns) for part in parts)
        if not form.quantized:
            pieces = self._float_rows(parts, form)
            if lookup:
                weight = self._external(name, pieces, self.float_type, (rows, columns))
            else:
                whole = np.concatenate(list(pieces)).T
                weight = self._external(name, iter([whole]), self.float_type, (columns, rows))
            return StoredMatrix(form=form, rows=rows, columns=columns, weight=weight)
        return self._quantized(name, parts, form, rows, columns)

    def _quantized(self, name: str, parts: Sequence[Part], form: Format, rows: int, columns: int) -> StoredMatrix:
        scales: list[FloatArray] = []
        zeros: list[npt.NDArray[np.uint8]] = []

        def codes() -> Iterator[npt.NDArray[np.uint8]]:
            for encoded in self._encoded(parts, form):
                scales.append(encoded.scales)
                if encoded.zero_points is not None:
                    zeros.append(encoded.zero_points)
                yield encoded.codes

        count = math.ceil(form.width(columns) / form.block)
        shape = (rows, count, form.block * form.bits // 8)
        weight = self._external(f"{name}_q{form.bits}", codes(), ir.DataType.UINT8, shape)
        scale_type = self.float_type.numpy()
        scale = self._external(
            f"{name}_scales", (part.astype(scale_type) for part in scales), self.float_type, (rows, count)
        )
        zero = None
        if zeros:
            zero = self._external(f"{name}_zp", iter(zeros), ir.DataType.UINT8, (rows, zeros[0].shape[1]))
        return StoredMatrix(form=form, rows=rows, columns=columns, weight=weight, scales=scale, zero_points=zero)

    def alias(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """The same bytes of the data file under another shape and name."""
        tensor = value.const_value
        assert isinstance(tensor, ir.ExternalTensor) and tensor.offset is not None
        name = f"{value.name}_view"
        view = ir.ExternalTensor(
            DATA_FILE, tensor.offset, tensor.length, tensor.dtype, shape=ir.Shape(shape), name=name
        )
        return self._add(name, view, tensor.dtype, shape)

    # Pieces ---------------------------------------------------------------------------------------------------------

    def _rows(self, part: Part, columns: int) -> int:
        info = self.file.tensor(part.tensor)
        if len(info.shape) != 2 or info.columns != columns:
            raise PackageError(
                f"{self.file.path}: tensor {part.tensor!r} has shape {info.shape}; expected [rows, {columns}]"
            )
        return info.rows - part.first_row if part.rows is None else part.rows

    def _raw(self, part: Part) -> Iterator[npt.NDArray[np.uint8]]:
        """Raw rows of a part in the order that the graph wants."""
        info = self.file.tensor(part.tensor)
        rows = self._rows(part, info.columns)
        head = rows // part.heads if part.heads else 1
        for raw in self.file.chunks(part.tensor, part.first_row, rows, head):
            self._done += raw.nbytes
            if self._progress is not None:
                self._progress(part.tensor, min(self._done, self._total), self._total)
            if part.heads:
                # Row 2i of a head is dimension i, row 2i + 1 is dimension i + head / 2.
                raw = raw.reshape(-1, head // 2, 2, raw.shape[1]).swapaxes(1, 2).reshape(raw.shape)
            yield raw

    def _float_rows(self, parts: Sequence[Part], form: Format) -> Iterator[npt.NDArray[np.generic]]:
        for part in parts:
            info = self.file.tensor(part.tensor)
            errors = Errors()
            for raw in self._raw(part):
                values = self.file.floats(raw, info.type)
                stored = values.astype(self.float_type.numpy())
                errors.add(stored.astype(np.float32) - values, values)
                yield stored
            self._report(info, form, errors, carried=False)

    def _encoded(self, parts: Sequence[Part], form: Format) -> Iterator[Encoded]:
        for part in parts:
            info = self.file.tensor(part.tensor)
            carried = form.carries(info.type)
            errors = Errors()
            for raw in self._raw(part):
                source: Blocks | FloatArray
                source = unpack(raw, info.type) if carried else self.file.floats(raw, info.type)
                yield encode(form, source, errors)
            self._report(info, form, errors, carried=carried)

    def _report(self, info: TensorInfo, form: Format, errors: Errors, *, carried: bool) -> None:
        self.reports.append(
            TensorReport(
                name=info.name,
                shape=info.shape,
                source_type=info.type.name,
                target=form.label,
                carried=carried,
                relative_error=errors.relative,
                max_error=errors.largest,
            )
        )

    # Values ---------------------------------------------------------------------------------------------------------

    def _external(
        self, name: str, pieces: Iterator[npt.NDArray[np.generic]], dtype: ir.DataType, shape: Sequence[int]
    ) -> ir.Value:
        offset, size = self._data.append(pieces)
        if size != math.prod(shape) * dtype.itemsize:
            raise PackageError(f"{name}: {size} bytes were made for shape {tuple(shape)} of {dtype.name}")
        tensor = ir.ExternalTensor(DATA_FILE, offset, size, dtype, shape=ir.Shape(shape), name=name)
        return self._add(name, tensor, dtype, shape)

    def _add(self, name: str, tensor: ir.TensorProtocol, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype), const_value=tensor)
        self.initializers.append(value)
        return value
