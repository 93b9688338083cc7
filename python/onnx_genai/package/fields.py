"""Typed access to the keys of a JSON or YAML object; a wrong type is an error that names file and key."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from onnx_genai.errors import PackageError
from onnx_genai.package.files import type_name

__all__ = ["Fields"]

MAX_INT = 2**63 - 1


class Fields:
    """One object of a file. Remembers which keys were asked for, so that the others can be reported.

    Every getter returns None for a missing key and for null. One thread.
    """

    def __init__(self, values: Mapping[str, Any], file: Path, prefix: str = "") -> None:
        self._values = values
        self._file = file
        self._prefix = prefix
        self._asked: set[str] = set()

    def where(self, key: str) -> str:
        """``file: path.to.key`` for errors."""
        return f"{self._file}: {self._prefix}{key}"

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raises the error for a value of the wrong type or range."""
        value = self._values.get(key)
        text = reprlib.repr(value)
        raise PackageError(f"{self.where(key)} is {text} ({type_name(value)}); expected {expected}")

    def raw(self, key: str) -> Any:
        self._asked.add(key)
        return self._values.get(key)

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def keys_ending(self, suffix: str) -> tuple[str, ...]:
        """The keys with this ending, in the order of the file."""
        return tuple(key for key in self._values if isinstance(key, str) and key.endswith(suffix))

    def text(self, key: str) -> str | None:
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fail(key, "text")
        return value

    def whole(self, key: str, *, low: int | None = None) -> int | None:
        """A whole number, also written as 4096.0; ``low`` is the smallest allowed value."""
        value = self.raw(key)
        if value is None:
            return None
        expected = "a whole number" if low is None else f"a whole number >= {low}"
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INT:
            self.fail(key, expected)
        if low is not None and value < low:
            self.fail(key, expected)
        return value

    def number(self, key: str) -> float | None:
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or value != value:
            self.fail(key, "a finite number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of texts")
        return tuple(value)

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids written as one number or as a (nested) list; empty when missing. Keeps the order, drops doubles."""
        value = self.raw(key)
        found: dict[int, None] = {}
        stack = [value]
        while stack:
            item = stack.pop()
            if item is None:
                continue
            if isinstance(item, list):
                stack.extend(reversed(item))
            elif isinstance(item, bool) or not isinstance(item, int) or abs(item) > MAX_INT:
                self.fail(key, "a token id or a list of token ids")
            elif item >= 0:  # -1 stands for "none" in some exports
                found[item] = None
        return tuple(found)

    def one_id(self, key: str) -> int | None:
        """A single token id; the first one where a list is given."""
        ids = self.ids(key)
        return ids[0] if ids else None

    def sub(self, key: str) -> Fields | None:
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, "an object")
        for name in value:
            if not isinstance(name, str):
                raise PackageError(f"{self.where(key)} has the key {name!r} ({type_name(name)}); expected text")
        return Fields(value, self._file, f"{self._prefix}{key}.")

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def subs(self, key: str) -> tuple[tuple[str, Fields], ...]:
        """The named objects of an object of objects."""
        outer = self.sub(key)
        return () if outer is None else outer.entries()

    def entries(self) -> tuple[tuple[str, Fields], ...]:
        """All keys of an object whose values are objects themselves."""
        found = []
        for name in self.names():
            inner = self.sub(name)
            if inner is not None:
                found.append((name, inner))
        return tuple(found)

    def unknown(self, known: frozenset[str] | set[str] = frozenset()) -> tuple[str, ...]:
        """Warnings for keys that were never asked for and are not in ``known``."""
        return tuple(
            f"{self.where(key)} is not known and is ignored"
            for key in self._values
            if key not in self._asked and key not in known
        )
