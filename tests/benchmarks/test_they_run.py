"""Every benchmark written in Python runs to its table, with the smallest sizes. No speed is judged here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OFFLINE = {
    "generate": "--without-genai --prompt 16 --new 4 --runs 1",
    "throughput": "--concurrency 1 4 --requests 4 --output-scale 0.03 --runs 1",
    "prefix": "--prefix 64 --user 8 --session 64 --runs 1"
    " --share-requests 4 --share-prefixes 2 --share-prefix 32 --share-new 2",
    "mixed": "--streams 2 --long 64 --chunks 32 --runs 1",
    "own_share": "--sequences 4 --new 24 --runs 1",
    "kv_dtype": "--prompts 2 --new 4 --runs 1",
    "agreement": "--prompts 2 --new 4 --max-text-tokens 16",
    "side_by_side": "--prompt 16 --new 4 --runs 1",
    "load": "--runs 1 --prompt 8",
    "grammar": "--batch 2 --new 8 --runs 1",
}
MICRO = {
    "paged_attention_bench": ("--seconds 0.01 --only decode", "gqa/paged"),
    "matmul_bench": ("--rounds 1 --rows 1 --models SmolLM2", "TOPS"),
}


def run(name: str, options: str, *more: str) -> str:
    """What the program prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *options.split(), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.real_model
@pytest.mark.parametrize("name", OFFLINE)
def test_offline(name: str, smollm2: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"

    table = run(f"offline.{name}", OFFLINE[name], str(smollm2), "--json", str(record))

    assert len(table.splitlines()) >= 2
    assert json.loads(record.read_text(encoding="utf-8"))["environment"]["date"]


def test_every_offline_benchmark_is_tested() -> None:
    is_program = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)
    files = (ROOT / "benchmarks/offline").glob("*.py")
    programs = {path.stem for path in files if is_program.search(path.read_text(encoding="utf-8"))}
    assert {name for name in programs if not name.endswith("_worker")} == set(OFFLINE)


@pytest.mark.slow
def test_host_overhead(tmp_path: Path) -> None:
    record = tmp_path / "record.json"

    run("server.host_overhead", "--streams 1 4 --tokens 8 --runs 1", "--json", str(record))

    runs = json.loads(record.read_text(encoding="utf-8"))["runs"]
    assert [(each["endpoint"], each["streams"]) for each in runs] == [
        (endpoint, streams) for endpoint in ("chat", "completions") for streams in (1, 4)
    ]
    assert all(each["us_per_token"] > 0 for each in runs)


@pytest.mark.real_model
def test_streams(smollm2: Path) -> None:
    table = run("server.streams", "--streams 2 --runs 1 --scale 0.03 --longest-prompt 8", str(smollm2))

    assert "server / offline" in table


@pytest.mark.slow
@pytest.mark.parametrize("name", MICRO)
def test_micro(name: str) -> None:
    options, column = MICRO[name]
    assert column in run(f"micro.{name}", options)


@pytest.mark.real_model
def test_profile_overhead(smollm2: Path) -> None:
    assert run("micro.profile_overhead", "--tokens 4 --rounds 2", str(smollm2))
