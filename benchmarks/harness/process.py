"""What this process has used: memory and processor time."""

from __future__ import annotations

import resource
from pathlib import Path

MIB = 1024 * 1024


def peak_rss_bytes() -> int:
    """Most memory that was ever resident (VmHWM), mapped model files included."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_seconds() -> float:
    """User and system time of all threads so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
