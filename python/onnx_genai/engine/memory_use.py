"""Memory from two sources, the system and the engine's own accounting: :class:`MemoryUse`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_genai import _core

__all__ = ["MemoryUse", "measure_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes, None where the system or the model does not tell."""

    peak_resident_bytes: int | None = None
    """The most physical memory that the process has had, as the kernel says."""
    resident_bytes: int | None = None
    """What it has now."""
    weights_bytes: int | None = None
    """Measured: memory that loading the session took, and those pages of the model's files that are in memory."""
    scratch_bytes: int | None = None
    """What ONNX Runtime holds beyond that; with several models in the process that of all."""
    kv_bytes: int | None = None
    """KV in the hot tier."""
    warm_bytes: int | None = None
    kv_blocks: int | None = None
    """Blocks in use, by requests or as cache."""
    kv_block_bytes: int | None = None
    kv_budget_bytes: int | None = None
    kv_budget_tokens: int | None = None
    engine_bytes: int | None = None
    """By the engine's own accounting: weights, scratch, KV of the hot and the warm tier."""
    limit_bytes: int | None = None
    """What the process has and can still get without swapping."""


def measure_memory(core: _core.Engine, model_files: Sequence[Path] = ()) -> MemoryUse:
    """What the process and the engine hold now."""
    info, metrics = core.info(), core.metrics()
    resident = _core.resident_set_bytes() or None
    loaded = _number(info, "loaded_bytes")
    mapped = _mapped_bytes(model_files)
    weights = loaded + mapped
    kv = int(metrics["kv_bytes"])
    # The copy decoder's KV is memory of ONNX Runtime.
    other = kv if info["decoder"] == "copy" else 0
    scratch = max(0, int(metrics["session_bytes"]) - loaded - other)
    block_bytes = _number(info, "block_bytes")
    warm = int(metrics["kv_warm_used_blocks"]) * block_bytes
    blocks = int(metrics["kv_hot_used_blocks"] + metrics["kv_hot_cached_blocks"])
    budget_tokens = int(metrics["kv_capacity_tokens"])
    budget = budget_tokens * _number(info, "kv_bytes_per_token")
    available = _core.available_host_memory_bytes()
    is_bounded = 0 < budget < 2**50  # a decoder without a bound has as many blocks as can be counted
    return MemoryUse(
        peak_resident_bytes=_peak_resident_bytes(),
        resident_bytes=resident,
        weights_bytes=weights or None,
        scratch_bytes=scratch or None,
        kv_bytes=kv or None,
        warm_bytes=warm or None,
        kv_blocks=blocks or None,
        kv_block_bytes=block_bytes or None,
        kv_budget_bytes=budget if is_bounded else None,
        kv_budget_tokens=budget_tokens if is_bounded else None,
        engine_bytes=weights + scratch + kv + warm or None,
        limit_bytes=resident + available if resident and available else None,
    )


def _number(info: Mapping[str, object], name: str) -> int:
    value = info.get(name, 0)
    return int(value) if isinstance(value, (int, float)) else 0


def _peak_resident_bytes() -> int | None:
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak if sys.platform == "darwin" else peak * 1024) or None


def _mapped_bytes(files: Sequence[Path]) -> int:
    """Bytes of these files' mappings that are in physical memory; 0 where the system does not tell."""
    wanted = {str(file.resolve()) for file in files}
    if not wanted:
        return 0
    total, counts = 0, False
    try:
        with Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                head, _, rest = line.partition(" ")
                if not head.endswith(":"):
                    counts = (
                        line.rstrip("\n").partition("/")[2] != ""
                        and "/" + line.rstrip("\n").partition("/")[2] in wanted
                    )
                elif counts and head == "Rss:":
                    total += int(rest.split()[0]) * 1024
    except OSError:
        return 0
    return total
