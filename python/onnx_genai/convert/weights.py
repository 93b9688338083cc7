"""Writes weights to the external data file, a piece at a time, and hands out graph values for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_genai.convert.blocks import Blocks, unpack
from onnx_genai.convert.formats import Encoded, Errors, Format, encode, square_sum, target_format
from onnx_genai.convert.gguf_file import FloatArray, GgufFile, TensorInfo
from onnx_genai.errors import PackageError

__all__ = ["DATA_FILE", "EMBEDDING", "MIN_BLOCK", "Part", "Progress", "StoredMatrix", "TensorReport", "WeightStore"]

DATA_FILE = "model.onnx.data"
EMBEDDING = "token_embd.weight"
MIN_BLOCK = 16
"""Smallest block that the quantised operators take."""
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


Element = TypeVar("Element", bound=np.generic)


def _in_order(rows: npt.NDArray[Element], head: int) -> npt.NDArray[Element]:
    """Rows of heads of ``head`` rows: row 2i is dimension i and row 2i + 1 is dimension i + head / 2."""
    return rows.reshape(-1, head // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _lookup_form(form: Format, columns: int) -> Format:
    """The form of the embedding, which ``GatherBlockQuantized`` reads too: whole blocks only."""
    if not form.quantized:
        return form
    block = math.gcd(form.block, columns)
    if block < MIN_BLOCK:
        return Format(bits=32)
    form = replace(form, block=block)
    # onnxruntime up to 1.25 reads 4-bit zero points from the wrong place when a row has an odd number of blocks.
    if form.bits == 4 and form.zero_points and form.blocks(columns) % 2:
        return Format(bits=8, block=block, zero_points=form.block_means)
    return form


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
        self._integers: dict[str, ir.Value] = {}

    def __enter__(self) -> WeightStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def form_of(self, tensor: str) -> Format:
        """The form that a matrix takes; matrices of equal form can be joined."""
        info = self.file.tensor(tensor)
        form = target_format(info.type, self._dtype, self._block)
        return _lookup_form(form, info.columns) if tensor == EMBEDDING else form

    # Small tensors --------------------------------------------------------------------------------------------------

    def constant(self, name: str, values: npt.NDArray[np.generic]) -> ir.Value:
        """An initializer inside ``model.onnx``."""
        tensor = ir.tensor(values, name=name)
        return self._add(name, tensor, tensor.dtype, values.shape)

    def table(self, name: str, values: FloatArray) -> ir.Value:
        """A float array in the data file, in the float type of the graph."""
        array = values.astype(self.float_type.numpy())
        return self._external(name, iter([array]), self.float_type, array.shape)

    def integers(self, name: str, values: Sequence[int]) -> ir.Value:
        """An int64 vector; the same name gives the same initializer again."""
        if name not in self._integers:
            self._integers[name] = self.constant(name, np.array(values, np.int64))
        return self._integers[name]

    def vector(self, name: str, tensor: str, size: int) -> ir.Value:
        """A norm tensor as an initializer inside ``model.onnx``."""
        return self.constant(name, self._vector(Part(tensor=tensor), size))

    def bias(self, name: str, parts: Sequence[Part], size: int) -> ir.Value:
        """Joined bias tensors of ``size`` elements together, inside ``model.onnx``."""
        arrays = [self._vector(part, self.file.tensor(part.tensor).elements) for part in parts]
        joined = np.concatenate(arrays)
        if joined.shape != (size,):
            raise PackageError(f"{self.file.path}: {parts[0].tensor} gives {joined.size} biases; expected {size}")
        return self.constant(name, joined)

    def _vector(self, part: Part, size: int) -> npt.NDArray[np.generic]:
        values = self.file.vector(part.tensor, size)
        if part.heads:
            values = _in_order(values[:, None], size // part.heads)[:, 0]
        stored = values.astype(self.float_type.numpy())
        errors = Errors()
        errors.add(stored.astype(np.float32) - values, square_sum(values))
        self._report(self.file.tensor(part.tensor), Format(bits=stored.dtype.itemsize * 8), errors, carried=False)
        return stored

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

        count = form.blocks(columns)
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
        assert isinstance(tensor, ir.ExternalTensor)
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
            yield _in_order(raw, head) if part.heads else raw

    def _float_rows(self, parts: Sequence[Part], form: Format) -> Iterator[npt.NDArray[np.generic]]:
        for part in parts:
            info = self.file.tensor(part.tensor)
            errors = Errors()
            for raw in self._raw(part):
                values = self.file.floats(raw, info.type)
                stored = values.astype(self.float_type.numpy())
                if self.float_type != ir.DataType.FLOAT:
                    errors.add(stored.astype(np.float32) - values, square_sum(values))
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
