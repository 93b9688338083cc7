"""How many threads compute: affinity and ``--cpu-cores`` hold, counted in the kernel's own books."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs"
)

_MANY_TICKS = 3 / os.sysconf("SC_CLK_TCK")
"""Seconds of processor time that a thread which only answers a question does not need."""

_PROGRAM = "import sys; from onnx_genai.cli import main; sys.exit(main())"


def _start(package: Path, *options: str, cpus: set[int] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _PROGRAM, "generate", str(package), "-p", "w5 w6", "--raw", *options]
    return subprocess.Popen(
        [*command, "--max-new-tokens", "3000"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        preexec_fn=None if cpus is None else lambda: os.sched_setaffinity(0, cpus),
    )


def _threads(process: subprocess.Popen[bytes]) -> dict[int, tuple[str, float]]:
    """State and CPU seconds of each thread."""
    found = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        found[int(task.name)] = (fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def _watch(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Threads that computed while text came, and the share of samples with more than one runnable.

    The main thread, which prints, is not counted, and neither are those that libraries started and that sleep.
    """
    assert process.stdout is not None
    assert process.stdout.read(1)  # loaded, and answering
    several, samples = 0, 0
    deadline = time.monotonic() + 60
    before = last = _threads(process)
    while process.poll() is None and samples < 200 and time.monotonic() < deadline:
        last = _threads(process)
        several += sum(state == "R" for state, _ in last.values()) > 1
        samples += 1
        time.sleep(0.002)
    process.stdout.close()
    process.kill()
    process.wait(timeout=60)
    assert samples >= 20
    used = {thread: seconds - before.get(thread, ("", 0.0))[1] for thread, (_, seconds) in last.items()}
    computing = [thread for thread, seconds in used.items() if thread != process.pid and seconds > _MANY_TICKS]
    return len(computing), several / samples


def test_generate_given_one_core_computes_with_one_thread(checksum_package: Callable[..., Path]) -> None:
    package = checksum_package("gqa")
    cpus = sorted(os.sched_getaffinity(0))[:2]

    pinned, share = _watch(_start(package, "--stream", cpus={cpus[0]}))
    asked, _ = _watch(_start(package, "--stream", "--cpu-cores", "1", cpus=set(cpus)))

    assert pinned <= 1
    assert asked <= 1
    # The reader of the answer wakes for each piece, so two may be ready for a moment.
    assert share < 0.5
