"""LoRA adapters: :class:`Adapters`."""

from __future__ import annotations

import weakref
from pathlib import Path

from onnx_genai.compat.model import Model
from onnx_genai.engine import LoadedAdapter
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.words import counted

__all__ = ["Adapters"]


class Adapters:
    """Adapters that generators of a model may activate, by name. Safe to use from many threads.

    Args:
        model: What they are adapters of.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model, Model):
            raise InvalidArgumentError(f"model is {type(model).__name__}; allowed: a Model")
        self.model = model
        self._loaded = model.engine.new_adapter_set()
        self._users: weakref.WeakKeyDictionary[object, set[str]] = weakref.WeakKeyDictionary()

    def load(self, path: str | Path, name: str) -> None:
        """Loads a file in ONNX Runtime's adapter format under a name that is free.

        Raises:
            InvalidArgumentError: The name is taken, or path or name are none.
            NotFoundError: There is no such file.
            PackageError: It is no adapter, or one of another model; the text says in what they differ.
            UnsupportedError: The model has no inputs for adapters.
        """
        self._loaded.load(path, name)

    def unload(self, name: str) -> None:
        """Frees an adapter.

        Raises:
            NotFoundError: There is no such adapter.
            InvalidArgumentError: A generator has activated it and is still there.
        """
        self._loaded.get(name)
        users = sum(1 for names in list(self._users.values()) if name in names)
        if users:
            raise InvalidArgumentError(
                f"the adapter {name!r} is still in use: it was activated in {counted(users, 'generator')}; delete "
                "what uses it first"
            )
        self._loaded.unload(name)

    def acquire(self, name: str, user: object) -> LoadedAdapter:
        """The adapter of a name, which then cannot be unloaded while ``user`` is there.

        Raises:
            NotFoundError: There is no such adapter.
        """
        adapter = self._loaded.get(name)
        self._users.setdefault(user, set()).add(name)
        return adapter
