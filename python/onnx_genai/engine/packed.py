"""Where files of packed weights lie, and how large they may be: :func:`packed_files`."""

from __future__ import annotations

import shutil
from pathlib import Path

from onnx_genai.engine.limits import MemoryLimit
from onnx_genai.package.cache import cache_folder, nearest_existing

__all__ = ["packed_files"]

_AUTO_BYTES = 16 * 1024**3
_MAX_BYTES = 2**63 - 1


def packed_files(limit: MemoryLimit) -> tuple[Path | None, int]:
    """The folder, which need not exist, and the bytes that all files may have together; (None, 0) for no files.

    Args:
        limit: Of the files; a fraction refers to the free space of the disk that the folder is on.
    """
    try:
        folder = cache_folder() / "packed"
    except RuntimeError:  # this user has no home
        return None, 0
    free = 0 if limit.fraction is None else _free_bytes(folder)
    size = min(limit.resolve(capacity_bytes=free, auto_bytes=_AUTO_BYTES), _MAX_BYTES)
    return (folder, size) if size else (None, 0)


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(nearest_existing(folder)).free
    except OSError:  # e.g. a folder above may not be read
        return 0
