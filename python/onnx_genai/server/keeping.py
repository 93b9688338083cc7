"""What a server keeps for its callers between requests: :class:`OwnedStore`. One event loop."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["OwnedStore", "held_bytes"]

T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    value: T
    last_used: float


class OwnedStore(Generic[T]):
    """Values by id, each of one owner, who is the holder of an API key.

    The bounds hold for each owner alone, so that nobody loses anything by what somebody else does. As the keys of a
    server are few and fixed, the whole is bounded as well.
    """

    def __init__(
        self,
        *,
        limit: int,
        max_bytes: int,
        ttl: float,
        size_of: Callable[[T], int],
        is_busy: Callable[[T], bool] = lambda _: False,
    ) -> None:
        """
        Args:
            limit: Values of one owner.
            max_bytes: Memory of all values of one owner.
            ttl: Seconds after which an unused value is forgotten.
            size_of: Bytes that a value holds now.
            is_busy: Whether a value must stay.
        """
        self.limit = limit
        self.max_bytes = max_bytes
        self.ttl = ttl
        self._size_of = size_of
        self._is_busy = is_busy
        self._owners: dict[str, OrderedDict[Hashable, _Kept[T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._owners.values()))

    def put(self, owner: str, key: Hashable, value: T) -> bool:
        """Keeps a value; those of its owner that are unused for longest make room. False if they are all busy."""
        self.sweep()
        self._owners.setdefault(owner, OrderedDict())[key] = _Kept(value, time.monotonic())
        if self.make_room(owner, key):
            return True
        self.delete(owner, key)
        return False

    def get(self, owner: str, key: Hashable) -> T | None:
        """The value, which counts as used now; None if the owner has no such value."""
        self.sweep()
        own = self._owners.get(owner)
        if own is None or key not in own:
            return None
        own.move_to_end(key)
        own[key].last_used = time.monotonic()
        return own[key].value

    def make_room(self, owner: str, key: Hashable) -> bool:
        """Forgets values of the owner, but not the one of ``key``, until the bounds hold; False if that cannot be."""
        own = self._owners.get(owner, OrderedDict())
        size = sum(self._size_of(each.value) for each in own.values())
        for other, kept in list(own.items()):
            if len(own) <= self.limit and size <= self.max_bytes:
                break
            if other != key and not self._is_busy(kept.value):
                size -= self._size_of(kept.value)
                del own[other]
        return len(own) <= self.limit and size <= self.max_bytes

    def delete(self, owner: str, key: Hashable) -> None:
        """Forgets a value, if it is there."""
        own = self._owners.get(owner)
        if own is not None:
            own.pop(key, None)
            if not own:
                del self._owners[owner]

    def of(self, owner: str) -> list[T]:
        """The values of an owner, unused for longest first."""
        self.sweep()
        return [kept.value for kept in self._owners.get(owner, {}).values()]

    def sweep(self) -> None:
        """Forgets values whose time is over."""
        now = time.monotonic()
        for owner, own in list(self._owners.items()):
            for key, kept in list(own.items()):
                if self._is_busy(kept.value):
                    kept.last_used = now
                elif now - kept.last_used > self.ttl:
                    self.delete(owner, key)


def held_bytes(value: object) -> int:
    """Memory that a value made of JSON takes, in bytes; what several values share counts for each."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        # Names of fields are few and shared.
        return size + sum(map(held_bytes, value.values()))
    return size + sum(map(held_bytes, value)) if isinstance(value, (list, tuple)) else size
