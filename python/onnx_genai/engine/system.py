"""What this machine offers to the core."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_genai import _core

__all__ = ["SystemFacts", "system_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFacts:
    """As the core sees it."""

    cores: int
    """Physical cores that this process may use: affinity mask and control groups are respected."""
    kernel_isa: str
    """Instruction set that our kernels run with."""
    kernel_isas: tuple[str, ...]
    """All that this build and this CPU have, slowest first."""
    available_bytes: int
    """Host memory that can be had now, within the limits of control groups."""


def system_facts() -> SystemFacts:
    """Asks the core; nothing is loaded."""
    isa, isas = _core.kernel_isas()
    return SystemFacts(
        cores=_core.usable_physical_cores(),
        kernel_isa=isa,
        kernel_isas=tuple(isas),
        available_bytes=_core.available_host_memory_bytes(),
    )
