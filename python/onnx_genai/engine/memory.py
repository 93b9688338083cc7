"""How much memory each tier of KV gets: :func:`plan_memory`."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx_genai.engine.limits import parse_memory_limit
from onnx_genai.engine.options import EngineOptions
from onnx_genai.errors import InvalidArgumentError

__all__ = ["KvMemory", "plan_memory"]

_MAX_BYTES = 2**63 - 1
_AUTO_HOT_LEAST = 1024**3
_AUTO_HOT_MOST = 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMemory:
    """Bytes of each tier; 0 is no such tier."""

    hot_bytes: int
    """What the decoder reads; >= 1."""
    warm_bytes: int = 0
    """Host memory."""
    cold_bytes: int = 0
    """A file in ``cold_folder``."""
    cold_folder: Path | None = None
    """Exists when ``cold_bytes`` is not 0."""
    source: str = ""
    """The limit that bounds the hot tier and its value, for errors."""


def plan_memory(
    options: EngineOptions,
    *,
    block_bytes: int,
    context_bytes: int,
    available_bytes: int,
    free_disk_bytes: Callable[[Path], int] | None = None,
) -> KvMemory:
    """Divides the limits of ``options`` among the tiers.

    On a CPU provider ``host_ram_limit`` (auto: half of the available memory) bounds hot and warm together, and
    ``vram_limit`` the hot tier; auto is the KV of two full contexts, at least 1 GiB and at most 4 GiB, and all of the
    host limit for decoders without tiers. On other providers ``vram_limit`` is the hot tier (auto: half of the
    available memory) and ``host_ram_limit`` the warm tier (auto: a quarter). ``disk_limit`` is the cold tier; auto
    is a quarter of the free space.

    Args:
        options: Whose limits are taken.
        block_bytes: KV of one block; 0 if the decoder has no blocks, and so no lower tiers.
        context_bytes: KV of one full context; 0 if nothing is known.
        available_bytes: Host memory that can be had now; what fractions refer to.
        free_disk_bytes: Free space of a folder; None asks the system.

    Raises:
        InvalidArgumentError: A limit leaves no memory for KV, or ``disk_folder`` cannot be used.
    """
    if options.on_cpu:
        host = _bytes(options, "host_ram_limit", available_bytes, available_bytes // 2)
        auto = min(max(_AUTO_HOT_LEAST, 2 * context_bytes), _AUTO_HOT_MOST) if block_bytes else host
        asked = _bytes(options, "vram_limit", available_bytes, auto)
        name = "vram_limit" if asked < host else "host_ram_limit"
        hot = min(host, asked)
        warm = host - hot
    else:
        name = "vram_limit"
        hot = _bytes(options, name, available_bytes, available_bytes // 2)
        warm = _bytes(options, "host_ram_limit", available_bytes, available_bytes // 4)
    value = getattr(options, name)
    if hot < 1:
        raise InvalidArgumentError(
            f"{name} is {value!r}, which leaves no memory for KV; allowed: above 0 (auto is derived from the "
            "available memory)"
        )
    if hot < block_bytes:
        raise InvalidArgumentError(
            f"{name} is {value!r}, which is {hot} bytes and less than one block of KV; allowed for this model: at "
            f"least {block_bytes} bytes"
        )
    source = f"{name}={value}"
    if not block_bytes:
        return KvMemory(hot_bytes=hot, source=source)
    cold, folder = _disk(options, free_disk_bytes or _free_bytes)
    return KvMemory(hot_bytes=hot, warm_bytes=warm, cold_bytes=cold, cold_folder=folder, source=source)


def _bytes(options: EngineOptions, name: str, capacity: int, auto: int) -> int:
    limit = parse_memory_limit(getattr(options, name), name=name)
    return min(limit.resolve(capacity_bytes=capacity, auto_bytes=auto), _MAX_BYTES)


def _disk(options: EngineOptions, free_disk_bytes: Callable[[Path], int]) -> tuple[int, Path | None]:
    if options.disk_limit is None:
        return 0, None
    limit = parse_memory_limit(options.disk_limit, name="disk_limit")
    if limit.size_bytes == 0 or limit.fraction == 0.0:
        return 0, None
    folder = _private_folder() if options.disk_folder is None else _given_folder(Path(options.disk_folder))
    free = free_disk_bytes(folder)
    size = min(limit.resolve(capacity_bytes=free, auto_bytes=free // 4), _MAX_BYTES)
    return (size, folder) if size else (0, None)


def _given_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"disk_folder is {str(folder)!r}, which cannot be made: {error.strerror}; name a folder that can be written"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidArgumentError(f"disk_folder is {str(folder)!r}, which may not be written; name another folder")
    return folder.resolve()


def _private_folder() -> Path:
    """A folder that only this user may read: KV tells what was said."""
    folder = Path(tempfile.gettempdir()) / f"onnx-genai-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InvalidArgumentError(
            f"disk_limit is set, but {folder} cannot be made: {error.strerror}; set disk_folder to a folder that can "
            "be written"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidArgumentError(
            f"disk_limit is set, but {folder} is not a folder that only this user may read; set disk_folder, or "
            "remove that folder"
        )
    return folder


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
