"""Memory that this process holds, counted and not measured: what was allocated and not freed."""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass

import pytest

__all__ = ["Held", "held"]


@dataclass(frozen=True)
class Held:
    """What is held at one moment, or more than at another."""

    native: int
    """Bytes that the C library has handed out, to C++ and to Rust, in all its arenas."""
    blocks: int
    """Python's own blocks of memory."""

    def __sub__(self, other: Held) -> Held:
        return Held(self.native - other.native, self.blocks - other.blocks)


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2``; each field is a ``size_t``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def held() -> Held:
    """What is held now, garbage not counted. Skips the test where the C library does not tell."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        pytest.skip("needs glibc 2.33 or newer, which tells what it has handed out")
    mallinfo.restype = _Mallinfo
    for _ in range(3):  # what finalizers let go of is garbage in its turn
        gc.collect()
    found = mallinfo()
    return Held(native=int(found.uordblks) + int(found.hblkhd), blocks=sys.getallocatedblocks())
