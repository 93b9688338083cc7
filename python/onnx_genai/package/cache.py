"""The local cache of models: where it is, what is complete in it, and who may write to it.

* ``hub``: repositories, in the layout of huggingface_hub (interrupted downloads are resumed from there)
* ``models``: packages made of a GGUF file, by alias
* ``gguf``: GGUF files that were asked for themselves
* ``records``: one small JSON file for each model that is complete
* ``packed``: weights in the order in which our kernels read them; may be deleted at any time
* ``locks``: one file for each model that is being fetched
* ``work``: what is not finished; may be deleted while nothing is fetched
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from onnx_genai.errors import DeadlineError, ResourceExhaustedError

__all__ = [
    "POLL_S",
    "LocalModel",
    "cache_folder",
    "disk_errors",
    "folder_size",
    "locked",
    "nearest_existing",
    "records",
    "work_folder",
    "write_record",
]

POLL_S = 0.2
"""How often growing files and locks are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model in the cache that is complete."""

    name: str
    """Alias or hub id."""
    path: Path
    source: str
    """``hub`` or ``wheel``."""
    revision: str | None
    """Commit of the repository, or the pinned requirement."""
    variant: str | None
    """The variant that was asked for; None: it was chosen."""
    size_bytes: int


def cache_folder(cache_dir: Path | str | None = None) -> Path:
    """The folder that models are kept in: the argument, ``ONNX_GENAI_HOME``, or ``~/.cache/onnx-genai``."""
    chosen = cache_dir or os.environ.get("ONNX_GENAI_HOME") or Path.home() / ".cache" / "onnx-genai"
    return Path(chosen).expanduser().absolute()


def records(root: Path) -> Iterator[tuple[LocalModel, dict[str, object]]]:
    """Models whose files are all there; newest first. A record that cannot be read counts as absent."""
    files = sorted((root / "records").glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for file in files:
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            folder = root / str(record["folder"])
            sizes = [(folder / name).stat().st_size for name in record["files"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        model = LocalModel(
            name=str(record.get("name")),
            path=folder,
            source=str(record.get("source")),
            revision=record.get("commit"),
            variant=record.get("variant"),
            size_bytes=sum(sizes),
        )
        yield model, record


def write_record(root: Path, record: dict[str, object]) -> None:
    """Makes a model known; called when all its files are in place."""
    key = json.dumps([record["name"], record["source"], record["revision"], record["variant"]])
    slug = re.sub(r"[^\w.-]+", "--", str(record["name"]))
    path = root / "records" / f"{slug}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.partial")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


@contextmanager
def work_folder(root: Path) -> Iterator[Path]:
    """A folder on the disk of the cache that is removed at the end."""
    (root / "work").mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=root / "work"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(root).free
        raise ResourceExhaustedError(
            f"{root}: the disk is full ({free} bytes are free); make room, or set ONNX_GENAI_HOME to another folder"
        ) from error


@contextmanager
def locked(root: Path, name: str, timeout_s: float) -> Iterator[None]:
    """Keeps other processes and threads from fetching the same model; the lock ends with the process at the latest."""
    path = root / "locks" / (re.sub(r"[^\w.-]+", "--", name) + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("a+b") as file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise DeadlineError(f"{name}: another process fetches it and did not end within {timeout_s:.0f} s")
            time.sleep(POLL_S)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists.

    Raises:
        OSError: One of them may not be looked at.
    """
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)


def folder_size(folder: Path) -> int:
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += (Path(parent) / name).stat().st_size
            except OSError:  # renamed between listing and looking
                continue
    return size
