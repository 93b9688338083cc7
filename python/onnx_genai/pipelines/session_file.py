"""The file of a saved session.

All numbers are little-endian; each part is followed by the CRC-32 of what stands before it since the part before:

    magic       8 bytes, "ONNXGAIS"
    version     uint32, 1
    size        uint32, bytes of the header
    header      JSON, UTF-8: identity (what makes KV interchangeable), num_tokens, kv_tokens, block_size, block_bytes
    CRC-32      uint32
    tokens      int32 [num_tokens]
    CRC-32      uint32
    and for each of the kv_tokens / block_size blocks:
      KV        block_bytes bytes, as the engine exports them
      CRC-32    uint32
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError, ResourceExhaustedError

__all__ = ["SavedSession", "read_session", "write_session"]

MAGIC = b"ONNXGAIS"
VERSION = 1
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession:
    """What a file holds."""

    identity: Mapping[str, object]
    tokens: tuple[int, ...]
    kv_tokens: int
    """The first so many tokens have their KV in ``kv``; a multiple of the block size."""
    kv: npt.NDArray[np.uint8]
    """[kv_tokens / block_size * block_bytes]."""
    damage: str = ""
    """What is wrong with the KV behind ``kv_tokens``; empty if nothing is. Header and tokens are always right."""


def write_session(
    path: Path,
    *,
    identity: Mapping[str, object],
    tokens: Sequence[int],
    kv_tokens: int,
    block_size: int,
    kv: npt.NDArray[np.uint8],
) -> None:
    """Writes the file as a whole or not at all: an earlier file of that name stays until the new one is complete.

    Raises:
        InvalidArgumentError: The path cannot be written.
        ResourceExhaustedError: The disk is full.
    """
    num_blocks = kv_tokens // block_size if kv_tokens else 0
    block_bytes = kv.size // num_blocks if num_blocks else 0
    header = {
        "identity": identity,
        "num_tokens": len(tokens),
        "kv_tokens": kv_tokens,
        "block_size": block_size,
        "block_bytes": block_bytes,
    }
    text = json.dumps(header).encode("utf-8")
    _check_path(path)
    try:
        if _is_special(path):  # it would be replaced by a file
            raise InvalidArgumentError(f"{path}: is no regular file, so no session is saved there; name another file")
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, MAGIC + struct.pack("<II", VERSION, len(text)) + text)
                _write(file, np.asarray(tokens, dtype="<i4").tobytes())
                for block in kv.reshape(num_blocks, block_bytes):
                    _write(file, block.tobytes())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ResourceExhaustedError(
                f"{path}: the session cannot be saved: {error.strerror}; make room, or name another folder"
            ) from error
        raise InvalidArgumentError(
            f"{path}: the session cannot be saved: {error.strerror}; name a file in a folder that can be written"
        ) from error


def read_session(path: Path) -> SavedSession:
    """Reads and checks a file.

    Raises:
        NotFoundError: There is none.
        InvalidArgumentError: It may not be read.
        PackageError: It is no session file, is of another version, or its header or tokens are damaged.
        ResourceExhaustedError: It announces more than the memory holds.
    """
    _check_path(path)
    try:
        if _is_special(path):  # opening a pipe would wait for its other end
            raise PackageError(f"{path}: is no regular file, so no session file; check the path")
        with path.open("rb") as file:
            return _Reader(path, file, os.fstat(file.fileno()).st_size).read()
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such session file; check the path") from error
    except OSError as error:
        raise InvalidArgumentError(f"{path}: the session cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise ResourceExhaustedError(f"{path}: there is no memory for what its header announces") from error


def _is_special(path: Path) -> bool:
    """It is a device, a pipe or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_path(path: Path) -> None:
    """Raises InvalidArgumentError for a path that no system call would take."""
    try:
        is_valid = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise InvalidArgumentError(f"path is {str(path)!r}; allowed: the name of a file, without NUL")


def _write(file: IO[bytes], part: bytes) -> None:
    file.write(part)
    file.write(struct.pack("<I", zlib.crc32(part)))


class _Reader:
    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path = path
        self._file = file
        self._size = size

    def read(self) -> SavedSession:
        header = self._header()
        identity = header.get("identity")
        if not isinstance(identity, dict):
            raise self._damaged("its header has no identity")
        num_tokens = self._whole(header, "num_tokens")
        kv_tokens = self._whole(header, "kv_tokens")
        block_size = self._whole(header, "block_size")
        block_bytes = self._whole(header, "block_bytes")
        if kv_tokens and (not block_size or not block_bytes or kv_tokens % block_size or kv_tokens > num_tokens):
            raise self._damaged(
                f"its header has {kv_tokens} tokens of KV in blocks of {block_size} tokens and {block_bytes} bytes, "
                f"for {num_tokens} tokens"
            )
        raw = self._part(num_tokens * 4)
        if raw is None:
            raise self._damaged("its tokens are cut off or have a wrong checksum")
        tokens = np.frombuffer(raw, dtype="<i4")
        if num_tokens and tokens.min() < 0:
            raise self._damaged("it has a negative token id")
        num_blocks = kv_tokens // block_size if kv_tokens else 0
        kv, intact = self._blocks(num_blocks, block_bytes)
        damage = ""
        if intact < num_blocks:
            first = intact * block_size
            damage = f"the KV of tokens {first} to {first + block_size - 1} is cut off or has a wrong checksum"
        elif self._file.read(1):
            damage = "there are bytes behind its end"
        return SavedSession(
            identity=identity,
            tokens=tuple(tokens.tolist()),
            kv_tokens=intact * block_size,
            kv=kv,
            damage=damage,
        )

    def _header(self) -> dict[str, Any]:
        start = self._file.read(len(MAGIC) + 8)
        if len(start) < len(MAGIC) + 8 or not start.startswith(MAGIC):
            raise PackageError(
                f"{self._path}: is no session file (it does not begin with {MAGIC.decode()}); name a file that "
                "Session.save wrote"
            )
        version, size = struct.unpack("<II", start[len(MAGIC) :])
        if version != VERSION:
            raise PackageError(
                f"{self._path}: is a session file of version {version}; this version of onnx_genai reads version "
                f"{VERSION}. Save the session again with this version."
            )
        if size > min(_MAX_HEADER_BYTES, self._size):
            raise self._damaged("its header is cut off")
        text = self._file.read(size)
        crc = self._file.read(_CRC_BYTES)
        if len(crc) < _CRC_BYTES or struct.unpack("<I", crc)[0] != zlib.crc32(text, zlib.crc32(start)):
            raise self._damaged("its header is cut off or has a wrong checksum")
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged("its header is no JSON") from error
        if not isinstance(header, dict):
            raise self._damaged("its header is no object")
        return header

    def _whole(self, header: dict[str, Any], key: str) -> int:
        value = header.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= self._size:
            raise self._damaged(f"its header has {key}={value!r}")
        return value

    def _part(self, size: int) -> bytes | None:
        """The next part, or None if it is cut off or has a wrong checksum."""
        if self._file.tell() + size + _CRC_BYTES > self._size:
            return None
        part = self._file.read(size)
        crc = self._file.read(_CRC_BYTES)
        if len(part) < size or len(crc) < _CRC_BYTES or struct.unpack("<I", crc)[0] != zlib.crc32(part):
            return None
        return part

    def _blocks(self, num_blocks: int, block_bytes: int) -> tuple[npt.NDArray[np.uint8], int]:
        """The blocks before the first damaged one, and how many they are."""
        fit = (self._size - self._file.tell()) // (block_bytes + _CRC_BYTES)
        kv = np.empty(min(num_blocks, fit) * block_bytes, dtype=np.uint8)
        intact = 0
        while intact < num_blocks:
            part = self._part(block_bytes)
            if part is None:
                break
            kv[intact * block_bytes : (intact + 1) * block_bytes] = np.frombuffer(part, dtype=np.uint8)
            intact += 1
        return kv[: intact * block_bytes], intact

    def _damaged(self, what: str) -> PackageError:
        return PackageError(
            f"{self._path}: is damaged: {what}. Copy the file again, or save the session anew from its text."
        )
