"""Files of packed weights: what a process packed, later ones map, with the same answers."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_genai import errors
from onnx_genai.convert import import_gguf
from onnx_genai.convert.weights import DATA_FILE
from onnx_genai.engine import EngineOptions
from onnx_genai.engine.limits import MemoryLimit
from onnx_genai.engine.packed import packed_files
from tests.convert.tiny import TINY, write_gguf

VARIABLE = "ONNX_GENAI_PACKED_CACHE"
PROGRAM = """
import json, sys
from onnx_genai import LLM, SamplingParams

with LLM(sys.argv[1], threads=1, backend="native") as llm:
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True, logprobs=True)
    result = llm.generate([3, 1, 4, 1, 5], params)
    print(json.dumps([llm.info()["packed_weights"], result.token_ids, [item.logprob for item in result.logprobs]]))
"""


class Processes:
    """Runs a model in processes of their own, which have a cache folder together."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, folder: Path, **variables: str) -> tuple[str, object]:
        """What became of the weights, and the answer."""
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        environment |= {"ONNX_GENAI_HOME": str(self.home), **variables}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)],
            capture_output=True, text=True, timeout=120, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        packed, *answer = json.loads(done.stdout)
        return packed, answer

    def files(self) -> list[Path]:
        return sorted((self.home / "packed").glob("*"))


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "home")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, int], Path]:
    """``written(folder, seed)``: a tiny model with random weights of four bits."""
    sources = tmp_path_factory.mktemp("gguf")

    def write(folder: Path, seed: int) -> Path:
        source = sources / f"{seed}.gguf"
        if not source.exists():
            write_gguf(source, TINY["llama"], seed=seed)
        import_gguf(source, folder, dtype="int4")
        return folder

    return write


def test_second_process_maps_what_the_first_packed(
    processes: Processes, written: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    folder = written(tmp_path / "model", 0)
    before = sorted(folder.iterdir())

    packed, first = processes.run(folder)
    (file,) = processes.files()
    mapped, second = processes.run(folder)
    off, third = processes.run(folder, **{VARIABLE: "0"})

    assert (packed, mapped) == (f"packed into {file}", f"mapped from {file}")
    assert off == "packed in memory: this is switched off"
    assert first == second == third
    assert processes.files() == [file]
    assert sorted(folder.iterdir()) == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_model_that_was_changed_in_its_place_is_packed_anew(
    processes: Processes, written: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    folder, other = written(tmp_path / "model", 0), written(tmp_path / "other", 1)
    _, old = processes.run(folder)
    times = (folder / DATA_FILE).stat()

    with (folder / DATA_FILE).open("r+b") as file:  # the same inode, size and time
        file.write((other / DATA_FILE).read_bytes())
    os.utime(folder / DATA_FILE, ns=(times.st_atime_ns, times.st_mtime_ns))
    packed, found = processes.run(folder)
    mapped, again = processes.run(folder)
    _, wanted = processes.run(folder, **{VARIABLE: "0"})

    assert packed.startswith("packed into ")
    assert mapped.startswith("mapped from ")
    assert found == again == wanted != old


def test_file_that_was_damaged_is_packed_anew(
    processes: Processes, written: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    folder = written(tmp_path / "model", 0)
    _, wanted = processes.run(folder)
    (file,) = processes.files()

    with file.open("r+b") as stream:
        stream.seek(5000)
        stream.write(bytes(64))
    packed, found = processes.run(folder)

    assert packed == f"packed into {file}"
    assert found == wanted
    assert processes.run(folder) == (f"mapped from {file}", wanted)


@pytest.mark.parametrize("home", ["/dev/null/home", "/proc/home"])
def test_cache_folder_that_cannot_be_made_is_no_error(
    written: Callable[[Path, int], Path], tmp_path: Path, home: str
) -> None:
    packed, answer = Processes(Path(home)).run(written(tmp_path / "model", 0))

    assert packed.startswith(f"packed in memory: {home}/packed/")
    assert answer


def test_files_lie_in_the_cache_folder_if_they_may_take_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_GENAI_HOME", str(tmp_path / "not" / "there"))
    folder = tmp_path / "not" / "there" / "packed"
    free = shutil.disk_usage(tmp_path).free

    assert packed_files(MemoryLimit()) == (folder, 16 * 1024**3)
    assert packed_files(MemoryLimit(size_bytes=5)) == (folder, 5)
    assert packed_files(MemoryLimit(size_bytes=0)) == packed_files(MemoryLimit(fraction=0.0)) == (None, 0)
    assert packed_files(MemoryLimit(fraction=0.5))[1] == pytest.approx(free / 2, rel=0.2)
    assert not folder.parent.exists()


def test_limit_comes_from_the_option_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2GiB")
    assert EngineOptions().packed_limit.size_bytes == 2 * 1024**3
    assert EngineOptions(packed_cache=0).packed_limit.size_bytes == 0

    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(errors.InvalidArgumentError, match=f"{VARIABLE} is 'much'; accepted: auto"):
        EngineOptions()
    with pytest.raises(errors.InvalidArgumentError, match="packed_cache is 'much'"):
        EngineOptions(packed_cache="much")


PEAK = """
import sys
from onnx_genai import LLM

def memory(name):
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))

with LLM(sys.argv[1], threads=1, backend="native") as llm:
    print(memory("VmHWM") - memory("VmRSS"), llm.info()["packed_weights"])
"""


@pytest.mark.real_model
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the peak of memory from /proc")
def test_weights_are_in_memory_once_while_they_are_read(smollm2: Path, tmp_path: Path) -> None:
    environment = os.environ | {"ONNX_GENAI_HOME": str(tmp_path), VARIABLE: "1GiB"}
    for kept in ("packed into", ("mapped from", "copied from")):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(smollm2)],
            capture_output=True, text=True, timeout=120, check=True, env=environment,
        )  # fmt: skip
        above, what = done.stdout.split(maxsplit=1)
        assert what.startswith(kept)
    (file,) = (tmp_path / "packed").glob("*.packed")
    assert int(above) < file.stat().st_size / 2  # at no time there was a second copy
