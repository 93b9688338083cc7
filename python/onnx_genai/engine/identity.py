"""What makes KV of one process fit another: :class:`KvIdentity`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from onnx_genai.graph import GraphContract

__all__ = ["FileStamp", "KvIdentity", "file_stamps", "kv_identity"]

_WHOLE_BYTES = 64 * 1024 * 1024
"""Files up to this size are hashed whole, larger ones by samples."""
_SAMPLE_BYTES = 64 * 1024
_SAMPLES = 64


FileStamp = tuple[int, int, int, int]
"""Device, inode, size and time of the last change of a file: equal for as long as it was not written or replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvIdentity:
    """KV bytes may be exchanged between two models where these are equal."""

    model: str
    """SHA-256 over the graph's file and the files that hold its weights; of large files over evenly spread samples."""
    decoder: str
    kv_dtype: str
    block_size: int
    layers: tuple[tuple[int, int, int], ...]
    """(KV heads, key size, value size) of each layer."""
    adapter: str = ""
    """SHA-256 of the adapter that the tokens ran with; empty without one."""

    def differences(self, other: Mapping[str, object]) -> tuple[str, ...]:
        """Names of the fields in which ``other``, as :meth:`as_dict` gave it, is not equal."""
        own = self.as_dict()
        names = {**own, "adapter": ""} if "adapter" in other else own
        return tuple(name for name in names if other.get(name) != own.get(name))

    def as_dict(self) -> dict[str, object]:
        """JSON values; without ``adapter`` if there is none."""
        values = {**asdict(self), "layers": [list(layer) for layer in self.layers]}
        if not self.adapter:
            del values["adapter"]
        return values


def kv_identity(contract: GraphContract, *, decoder: str) -> KvIdentity:
    """Reads the model's files.

    Raises:
        OSError: A file has gone since the model was loaded.
    """
    return KvIdentity(
        model=_hash_files(_files(contract)),
        decoder=decoder,
        kv_dtype=",".join(sorted({layer.dtype.value for layer in contract.paged_layers})),
        block_size=contract.block_size,
        layers=tuple((layer.kv_heads, layer.head_dim, layer.value_dim) for layer in contract.paged_layers),
    )


def file_stamps(contract: GraphContract) -> tuple[FileStamp, ...]:
    """Of the files that :func:`kv_identity` reads; zeros for one that is missing."""
    return tuple(_stamp(path) for path in _files(contract))


def _stamp(path: Path) -> FileStamp:
    try:
        fact = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (fact.st_dev, fact.st_ino, fact.st_size, fact.st_mtime_ns)


def _files(contract: GraphContract) -> list[Path]:
    return [contract.model_path, *sorted(contract.external_files)]


def _hash_files(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                while piece := file.read(1024 * 1024):
                    digest.update(piece)
                continue
            for index in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
