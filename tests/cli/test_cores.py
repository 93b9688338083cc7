"""How many threads compute: affinity, quotas and ``--cpu-cores`` hold, counted in the kernel's own books."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onnx_genai.engine.system import system_facts
from tests.cli.emulator import TIMEOUT

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs"
    ),
]

_PROGRAM = "import sys; from onnx_genai.cli import main; sys.exit(main())"
_TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds that the kernel counts in."""
_CPU_SECONDS = 1.5
"""Processor time of the process to look at: enough that ticks do not matter."""


@dataclass(frozen=True)
class _Use:
    """What the threads of a process did while it answered."""

    computing: int
    """Threads with more than a tenth of the processor time of all, the printing one left out."""
    cpus: float
    """Processor time of all threads, over the time of the wall."""
    crowded: float
    """Share of the moments at which more than one thread was runnable, the printing one left out."""


def _threads(process: subprocess.Popen[bytes]) -> dict[int, tuple[str, float]]:
    """State and CPU seconds of each thread."""
    found = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        found[int(task.name)] = (fields[0], (int(fields[11]) + int(fields[12])) * _TICK)
    return found


@pytest.fixture
def group_of_one_cpu() -> Iterator[Path]:
    """The file that takes a process into a control group with the time of one processor."""
    name = f"onnx-genai-test-{os.getpid()}"
    first, second = Path("/sys/fs/cgroup/cpu", name), Path("/sys/fs/cgroup", name)
    folder = first if first.parent.is_dir() else second
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if folder == first:
            (folder / "cpu.cfs_period_us").write_text("100000", encoding="ascii")
            (folder / "cpu.cfs_quota_us").write_text("100000", encoding="ascii")
        else:
            (folder / "cpu.max").write_text("100000 100000", encoding="ascii")
    except OSError as error:
        pytest.skip(f"no quota can be set here: {error}")
    else:
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def _watch(
    package: Path, *options: str, cpus: set[int], env: dict[str, str] | None = None, group: Path | None = None
) -> _Use:
    """Lets a model write on ``cpus`` and in a control group, and looks at its threads while text comes."""

    def confine() -> None:
        os.sched_setaffinity(0, cpus)
        if group is not None:
            group.write_text(str(os.getpid()), encoding="ascii")

    command = [sys.executable, "-c", _PROGRAM, "generate", str(package), "-p", "w5 w6", "--raw", "--stream", *options]
    with subprocess.Popen(
        [*command, "--max-new-tokens", "3000"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        preexec_fn=confine,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1)  # loaded, and answering
            return _use(process)
        finally:
            process.kill()


def _use(process: subprocess.Popen[bytes]) -> _Use:
    crowded = samples = 0
    used: dict[int, float] = {}
    begin, before = time.monotonic(), _threads(process)
    while sum(used.values()) < _CPU_SECONDS:
        assert process.poll() is None, "the answer was too short"
        assert time.monotonic() < begin + TIMEOUT
        time.sleep(0.005)
        now = _threads(process)
        wall = time.monotonic() - begin
        used = {thread: seconds - before.get(thread, ("", 0.0))[1] for thread, (_, seconds) in now.items()}
        crowded += sum(state == "R" for thread, (state, _) in now.items() if thread != process.pid) > 1
        samples += 1
    total = sum(used.values())
    computing = [thread for thread, seconds in used.items() if thread != process.pid and seconds > total / 10]
    return _Use(len(computing), total / wall, crowded / samples)


@pytest.mark.parametrize("how", ["option", "environment", "affinity"])
def test_quantized_model_given_one_core_computes_with_one_thread(smollm2: Path, how: str) -> None:
    cpus = set(sorted(os.sched_getaffinity(0))[:2])
    if how == "option":
        use = _watch(smollm2, "--cpu-cores", "1", cpus=cpus)
    elif how == "environment":
        use = _watch(smollm2, cpus=cpus, env={"ONNX_GENAI_CPU_DECODE_THREADS": "1"})
    else:
        use = _watch(smollm2, cpus={min(cpus)})

    assert use.computing == 1
    assert use.cpus <= 1.1
    assert use.crowded <= 0.05


def test_quantized_model_given_a_quota_of_one_processor_computes_with_one_thread(
    smollm2: Path, group_of_one_cpu: Path
) -> None:
    use = _watch(smollm2, cpus=os.sched_getaffinity(0), group=group_of_one_cpu)

    assert use.computing == 1
    assert use.cpus <= 1.1
    assert use.crowded <= 0.05


def test_quantized_model_given_two_cores_computes_with_two_threads(smollm2: Path) -> None:
    use = _watch(smollm2, "--cpu-cores", "2", cpus=os.sched_getaffinity(0))

    assert use.computing == 2
    assert use.cpus <= 2.2


def test_quantized_model_given_nothing_computes_on_the_cores_it_may_use(smollm2: Path) -> None:
    cores = system_facts().cores

    use = _watch(smollm2, cpus=os.sched_getaffinity(0))

    assert 1 <= use.computing <= cores
    assert use.cpus <= 1.1 * cores
