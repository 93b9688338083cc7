"""Facts about this machine, for ``doctor``: what cannot be found out is None."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from onnx_genai.errors import GenAIError
from onnx_genai.package import hub
from onnx_genai.package.cache import nearest_existing

__all__ = ["machine_facts", "read_bandwidth"]

_PACKAGES = ("onnxruntime", "numpy", "tokenizers", "llguidance", "onnx", "minijinja", "jinja2", "gguf")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-qnn")
_BUFFER_BYTES = 256 * 2**20
"""Far above any cache."""


def machine_facts(*, bandwidth: bool) -> dict[str, Any]:
    """All facts, in values that JSON can hold."""
    from onnx_genai.cli.version import package_version
    from onnx_genai.pipelines import llguidance_interface, system_facts

    core = system_facts()
    cpus = os.cpu_count() or 1
    return {
        "version": package_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
        "onnxruntime": _onnxruntime(),
        "llguidance": llguidance_interface(),
        "cpu": {
            "model": _first_field(Path("/proc/cpuinfo"), "model name"),
            "cpus": cpus,
            "allowed_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus,
            "cores": _present_cores() or cpus,
            "quota": _cpu_quota(),
            "usable_cores": core.cores,
            "kernel_isa": core.kernel_isa,
            "kernel_isas": list(core.kernel_isas),
            "governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        },
        "memory": {
            "total_bytes": _memory_field("MemTotal") or 0,
            "available_bytes": core.available_bytes,
            "limit_bytes": _memory_limit(),
            "swap_used_bytes": max((_memory_field("SwapTotal") or 0) - (_memory_field("SwapFree") or 0), 0),
            "bandwidth": _bandwidth(core.cores) if bandwidth else None,
        },
        "gpu": _gpus(),
        "cache": _cache(),
        "config": _config(),
    }


def read_bandwidth(threads: int, *, seconds: float = 1.0) -> float:
    """Bytes a second that so many threads read from memory together; each has 256 MiB of its own, or less if there
    are many. Takes ``seconds`` and the time to fill them.
    """
    import numpy as np

    each = _BUFFER_BYTES // max(1, threads // 4)
    buffers = [np.ones(each // 8, dtype=np.int64) for _ in range(threads)]
    best = 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(buffer,)) for buffer in buffers]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        # The best round: what disturbs it makes it slower, and never faster.
        best = max(best, each * threads / (time.perf_counter() - start))
    return best


def _bandwidth(threads: int) -> dict[str, Any]:
    return {"bytes_per_second": read_bandwidth(threads), "threads": threads}


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        names = _RUNTIMES if name == "onnxruntime" else (name,)
        versions = {each: version for each in names if (version := _version(each)) is not None}
        if versions:
            found.update(versions)
        else:
            found[name] = None
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _onnxruntime() -> dict[str, Any]:
    from onnx_genai.pipelines import find_ort_library

    try:
        library = find_ort_library()
    except GenAIError as error:
        return {"error": str(error)}
    return {
        "version": library.version,
        "api_version": library.api_version,
        "path": str(library.path),
        "reason": library.reason,
        "execution_providers": [name.removesuffix("ExecutionProvider").lower() for name in library.providers],
        "plugins": _plugins(),
    }


def _plugins() -> list[str]:
    """Installed packages that may bring a plugin provider."""
    names = {str(each.metadata["Name"] or "").lower() for each in importlib.metadata.distributions()}
    known = {name.lower() for name in _RUNTIMES} | {
        "onnxruntime-genai",
        "onnxruntime-extensions",
        "onnxruntime-training",
    }
    return sorted(name for name in names if name.startswith("onnxruntime-") and name not in known)


def _present_cores() -> int | None:
    """Physical cores of the machine, whoever may use them."""
    folder = Path("/sys/devices/system/cpu")
    cores = {
        text
        for cpu in folder.glob("cpu[0-9]*")
        if (text := _text(cpu / "topology/core_cpus_list") or _text(cpu / "topology/thread_siblings_list")) is not None
    }
    return len(cores) or None


def _cgroups() -> Iterable[Path]:
    """The control group of this process and those above, as far as they can be seen."""
    root = Path("/sys/fs/cgroup")
    group = next(
        (line[3:] for line in (_text(Path("/proc/self/cgroup")) or "").splitlines() if line.startswith("0::")), ""
    )
    place = root / group.strip("/")
    while True:
        if place.is_dir():
            yield place
        if place == root or root not in place.parents:
            return
        place = place.parent


def _cpu_quota() -> float | None:
    """Cores that control groups allow."""
    found = []
    for group in _cgroups():
        quota, _, period = (_text(group / "cpu.max") or "max").partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    v1 = Path("/sys/fs/cgroup/cpu")
    quota, period = _text(v1 / "cpu.cfs_quota_us") or "", _text(v1 / "cpu.cfs_period_us") or ""
    if quota.isdigit() and period.isdigit():
        found.append(int(quota) / int(period))
    return min(found, default=None)


def _memory_limit() -> int | None:
    """Bytes that control groups allow, if less than there is."""
    found = [int(text) for group in _cgroups() if (text := _text(group / "memory.max") or "").isdigit()]
    text = _text(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")) or ""
    found += [int(text)] if text.isdigit() else []
    limit = min(found, default=None)
    total = _memory_field("MemTotal")
    return limit if limit is not None and (total is None or limit < total) else None


def _memory_field(name: str) -> int | None:
    text = _first_field(Path("/proc/meminfo"), name)
    return int(text.split()[0]) * 1024 if text else None


def _first_field(path: Path, name: str) -> str | None:
    for line in (_text(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _gpus() -> list[str]:
    """Names of NVIDIA GPUs that the driver shows; other makers' are not looked for."""
    found = []
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        name = _first_field(folder / "information", "Model")
        found.append(name or "NVIDIA GPU")
    return found


def _cache() -> dict[str, Any]:
    folder = hub.cache_folder()
    try:
        models = hub.list_local()
    except OSError:
        models = ()
    return {
        "path": str(folder),
        "models": len(models),
        "size_bytes": sum(model.size_bytes or 0 for model in models),
        "free_bytes": shutil.disk_usage(nearest_existing(folder)).free,
        "packed": _packed(folder / "packed"),
    }


def _packed(folder: Path) -> dict[str, Any]:
    """Files of packed weights, which loads of models write and map."""
    sizes = []
    for file in folder.glob("*.packed"):
        try:
            sizes.append(file.stat().st_size)
        except OSError:  # removed meanwhile
            continue
    usable = nearest_existing(folder)
    return {
        "path": str(folder),
        "files": len(sizes),
        "size_bytes": sum(sizes),
        "usable": usable.is_dir() and os.access(usable, os.W_OK | os.X_OK),
    }


def _config() -> str | None:
    state = click.get_current_context().find_root().obj
    path = state["config"].path if isinstance(state, dict) else None
    return None if path is None else str(path)
