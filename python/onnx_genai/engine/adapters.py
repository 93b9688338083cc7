"""LoRA adapters of a model by their names: :class:`AdapterSet`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx_genai import _core
from onnx_genai.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError

__all__ = ["AdapterSet", "AdapterSpans", "LoadedAdapter"]

_MAX_NAME = 256
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedAdapter:
    """An adapter in memory. It is freed with the last reference: that of who loaded it, a session or a request."""

    name: str
    path: Path
    content: str
    """SHA-256 of the file."""
    core: _core.Adapter


AdapterSpans = tuple[tuple[int, LoadedAdapter], ...]
"""From which token of a sequence on it runs with which adapter, in order; empty is none."""


def _load(load: Callable[[bytes, str], _core.Adapter], path: str | Path, name: str) -> LoadedAdapter:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        raise InvalidArgumentError(f"name is {name!r:.80}; allowed: a text of 1 to {_MAX_NAME} characters")
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise InvalidArgumentError(f"path is {path!r}; allowed: the file of an adapter")
    file = Path(path).expanduser()
    if file.is_dir():
        raise InvalidArgumentError(f"{file}: is a folder; name the adapter file in it, usually *.onnx_adapter")
    if file.exists() and not file.is_file():  # opening a pipe would wait for its other end
        raise InvalidArgumentError(f"{file}: is no regular file; name an adapter file")
    data = _read(file)
    core = load(data, str(file).encode("utf-8", "backslashreplace").decode("utf-8"))
    return LoadedAdapter(name=name, path=file, content=hashlib.sha256(data).hexdigest(), core=core)


class AdapterSet:
    """Loaded adapters and their names. Safe to use from many threads."""

    def __init__(self, load: Callable[[bytes, str], _core.Adapter]) -> None:
        """``load`` reads a file: that of the core."""
        self._load = load
        self._lock = threading.Lock()
        self._loaded: dict[str, LoadedAdapter] = {}  # guarded by _lock

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were loaded."""
        with self._lock:
            return tuple(self._loaded)

    def load(self, path: str | Path, name: str) -> None:
        """Loads a file under a name that is free.

        Args:
            path: In ONNX Runtime's adapter format.
            name: 1 to 256 characters.

        Raises:
            InvalidArgumentError: The name is taken, path or name are none, or the file may not be read.
            NotFoundError: There is no such file.
            ResourceExhaustedError: The memory does not hold it.
            PackageError: It is no adapter, or one of another model; the text says in what they differ.
            UnsupportedError: The graph takes no adapters.
        """
        self._check_free(name)
        adapter = _load(self._load, path, name)
        with self._lock:
            other = self._loaded.setdefault(name, adapter)
        if other is not adapter:  # another thread was faster
            raise _taken(other)

    def unload(self, name: str) -> None:
        """Frees a name. What runs with the adapter keeps it to its end.

        Raises:
            NotFoundError: There is no such adapter.
        """
        self.get(name)
        with self._lock:
            self._loaded.pop(name, None)

    def get(self, name: str) -> LoadedAdapter:
        """The adapter of a name.

        Raises:
            InvalidArgumentError: The name is no text.
            NotFoundError: There is no such adapter.
        """
        if not isinstance(name, str):
            raise InvalidArgumentError(f"adapter is {name!r:.80}; allowed: the name of a loaded adapter, or None")
        with self._lock:
            found = self._loaded.get(name)
            known = list(self._loaded)
        if found is not None:
            return found
        listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
        raise NotFoundError(
            f"there is no adapter {name!r}; loaded are: {listed or '(none)'}. Load it with load_adapter(path, name)."
        )

    def spans(self, name: str | None) -> AdapterSpans:
        """A whole sequence with the adapter of a name; None is without one."""
        return () if name is None else ((0, self.get(name)),)

    def _check_free(self, name: str) -> None:
        with self._lock:
            taken = self._loaded.get(name) if isinstance(name, str) else None
        if taken is not None:
            raise _taken(taken)


def _taken(adapter: LoadedAdapter) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the adapter {adapter.name!r} is loaded already, from {adapter.path}; unload it first, or take another name"
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such adapter file; check the path") from error
    except OSError as error:
        raise InvalidArgumentError(f"{path}: the adapter cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise ResourceExhaustedError(f"{path}: there is no memory for the adapter") from error
