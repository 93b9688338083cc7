"""Drops the weights from the serialized form of an ONNX model without parsing them.

A model with its weights inside may have gigabytes. The scan walks the length-delimited fields of the protobuf wire
format, skips over large tensor payloads, and writes a small model whose tensors point back into the same file as
external data (location, offset, length). Cost: O(number of nodes), not of bytes.

Source: https://protobuf.dev/programming-guides/encoding and the field numbers of onnx.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from mmap import mmap

__all__ = ["INLINE_BYTES", "WireError", "slim_model"]

INLINE_BYTES = 4096
"""Payloads up to this size stay in the model: biases and constants that the analysis may want to see."""

_Buffer = mmap | bytes

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 20, 25
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_FUNCTION_NODE = 7
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_TENSOR_DTYPE, _TENSOR_FLOAT_DATA, _TENSOR_RAW_DATA, _TENSOR_DOUBLE_DATA = 2, 4, 9, 10
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_DTYPE_FLOAT, _DTYPE_DOUBLE = 1, 11

_MAX_DEPTH = 64


class WireError(Exception):
    """The bytes are not a well-formed message."""

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(f"{text} at byte {offset}")
        self.offset = offset


@dataclass(slots=True)
class _Scan:
    buffer: _Buffer
    location: str
    """Name of the file itself, for external_data."""
    has_graph: bool = False
    moved_bytes: int = 0
    chunks: list[bytes] = field(default_factory=list)


def slim_model(buffer: _Buffer, location: str) -> tuple[bytes, int]:
    """Returns a serialized ModelProto without large payloads, and how many bytes were left out.

    Args:
        buffer: The whole file.
        location: File name to write into the external data references.

    Raises:
        WireError: The bytes are cut off or no ONNX model.
    """
    scan = _Scan(buffer=buffer, location=location)
    data = _model(scan, 0, len(buffer))
    if not scan.has_graph:
        raise WireError("no graph found", len(buffer))
    return data, scan.moved_bytes


def _varint(buffer: _Buffer, pos: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while pos < end:
        byte = buffer[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, pos
        shift += 7
        if shift > 63:
            raise WireError("a number is too long", pos)
    raise WireError("the data ends inside a number", pos)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(buffer: _Buffer, pos: int, end: int) -> tuple[int, int, int, int]:
    """Returns (number, wire type, start of the value, end of the field) of the field at ``pos``."""
    key, start = _varint(buffer, pos, end)
    number, kind = key >> 3, key & 7
    if number == 0:
        raise WireError("field number 0", pos)
    if kind == 2:
        length, start = _varint(buffer, start, end)
        stop = start + length
    elif kind == 0:
        _, stop = _varint(buffer, start, end)
    elif kind == 1:
        stop = start + 8
    elif kind == 5:
        stop = start + 4
    else:
        raise WireError(f"unknown wire type {kind}", pos)
    if stop > end:
        raise WireError(f"a field of {stop - start} bytes goes {stop - end} bytes past the end", pos)
    return number, kind, start, stop


def _message(number: int, body: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(body)) + body


def _model(scan: _Scan, pos: int, end: int) -> bytes:
    parts: list[bytes] = []
    buffer = scan.buffer
    while pos < end:
        number, kind, start, stop = _field(buffer, pos, end)
        if number == _MODEL_GRAPH and kind == 2:
            scan.has_graph = True
            parts.append(_message(number, _graph(scan, start, stop, 0)))
        elif number == _MODEL_FUNCTIONS and kind == 2 and stop - start > INLINE_BYTES:
            parts.append(_message(number, _nodes_of(scan, start, stop, _FUNCTION_NODE, 0)))
        elif number != _MODEL_TRAINING:
            parts.append(buffer[pos:stop])
        pos = stop
    return b"".join(parts)


def _graph(scan: _Scan, pos: int, end: int, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise WireError(f"graphs are nested more than {_MAX_DEPTH} deep", pos)
    parts: list[bytes] = []
    buffer = scan.buffer
    copied = pos  # start of the run of fields that are kept as they are
    while pos < end:
        number, kind, start, stop = _field(buffer, pos, end)
        if kind == 2 and stop - start > INLINE_BYTES and number in (_GRAPH_NODE, _GRAPH_INITIALIZER):
            parts.append(buffer[copied:pos])
            if number == _GRAPH_NODE:
                parts.append(_message(number, _node(scan, start, stop, depth)))
            else:
                parts.append(_message(number, _tensor(scan, start, stop)))
            copied = stop
        pos = stop
    parts.append(buffer[copied:end])
    return b"".join(parts)


def _nodes_of(scan: _Scan, pos: int, end: int, node_field: int, depth: int) -> bytes:
    """A function body: its nodes may hold constants."""
    parts: list[bytes] = []
    while pos < end:
        number, kind, start, stop = _field(scan.buffer, pos, end)
        if number == node_field and kind == 2 and stop - start > INLINE_BYTES:
            parts.append(_message(number, _node(scan, start, stop, depth)))
        else:
            parts.append(scan.buffer[pos:stop])
        pos = stop
    return b"".join(parts)


def _node(scan: _Scan, pos: int, end: int, depth: int) -> bytes:
    parts: list[bytes] = []
    while pos < end:
        number, kind, start, stop = _field(scan.buffer, pos, end)
        if number == _NODE_ATTRIBUTE and kind == 2 and stop - start > INLINE_BYTES:
            parts.append(_message(number, _attribute(scan, start, stop, depth)))
        else:
            parts.append(scan.buffer[pos:stop])
        pos = stop
    return b"".join(parts)


def _attribute(scan: _Scan, pos: int, end: int, depth: int) -> bytes:
    parts: list[bytes] = []
    while pos < end:
        number, kind, start, stop = _field(scan.buffer, pos, end)
        large = kind == 2 and stop - start > INLINE_BYTES
        if large and number in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
            parts.append(_message(number, _tensor(scan, start, stop)))
        elif large and number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
            parts.append(_message(number, _graph(scan, start, stop, depth + 1)))
        else:
            parts.append(scan.buffer[pos:stop])
        pos = stop
    return b"".join(parts)


def _tensor(scan: _Scan, pos: int, end: int) -> bytes:
    """Replaces a large payload that is plain little-endian data by a reference to its place in the file."""
    parts: list[bytes] = []
    payload: tuple[int, int, int] | None = None  # field number, start, length
    dtype = 0
    buffer = scan.buffer
    while pos < end:
        number, kind, start, stop = _field(buffer, pos, end)
        large = kind == 2 and stop - start > INLINE_BYTES
        if number == _TENSOR_DTYPE and kind == 0:
            dtype, _ = _varint(buffer, start, end)
        # A second payload field would have to be joined with the first: left as it is, for the parser to judge.
        if large and payload is None and number in (_TENSOR_RAW_DATA, _TENSOR_FLOAT_DATA, _TENSOR_DOUBLE_DATA):
            payload = (number, start, stop - start)
        else:
            parts.append(buffer[pos:stop])
        pos = stop
    if payload is None:
        return b"".join(parts)
    number, start, length = payload
    plain = (
        number == _TENSOR_RAW_DATA
        or (number == _TENSOR_FLOAT_DATA and dtype == _DTYPE_FLOAT)
        or (number == _TENSOR_DOUBLE_DATA and dtype == _DTYPE_DOUBLE)
    )
    if not plain:
        parts.append(_message(number, buffer[start : start + length]))
        return b"".join(parts)
    scan.moved_bytes += length
    for key, value in (("location", scan.location), ("offset", str(start)), ("length", str(length))):
        entry = _message(1, key.encode()) + _message(2, value.encode())
        parts.append(_message(_TENSOR_EXTERNAL, entry))
    parts.append(_encode_varint(_TENSOR_LOCATION << 3) + b"\x01")
    return b"".join(parts)
