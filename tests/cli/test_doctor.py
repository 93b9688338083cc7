"""The command ``doctor``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import onnx_genai.pipelines
from onnx_genai.cli.doctor import advice
from onnx_genai.cli.machine import read_bandwidth
from onnx_genai.errors import NotFoundError
from tests.cli.conftest import Run


def _facts() -> dict[str, object]:
    return {
        "onnxruntime": {"execution_providers": ["azure", "cpu"]},
        "cpu": {
            "cores": 8,
            "cpus": 16,
            "allowed_cpus": 16,
            "usable_cores": 8,
            "quota": None,
            "kernel_isa": "avx2",
            "kernel_isas": ["plain", "avx2"],
            "governor": None,
            "load": 0.5,
        },
        "memory": {"available_bytes": 2**34, "swap_used_bytes": 0, "bandwidth": None},
        "gpu": [],
        "llguidance": "c",
    }


def test_doctor_prints_what_is_here(run: Run) -> None:
    ran = run("doctor", "--no-bandwidth")

    assert ran.err == ""
    assert "\nONNX Runtime: 1." in ran.out
    assert "\nexecution providers: " in ran.out
    assert "\n  cores: " in ran.out
    assert "\ngrammars: llguidance by its C functions\n" in ran.out
    assert "read bandwidth" not in ran.out


def test_doctor_given_json_prints_facts_that_are_true(run: Run) -> None:
    facts = json.loads(run("doctor", "--json").out)

    assert facts["cpu"]["cpus"] == os.cpu_count()
    assert 1 <= facts["cpu"]["usable_cores"] <= facts["cpu"]["cpus"]
    assert facts["cpu"]["kernel_isa"] in facts["cpu"]["kernel_isas"]
    assert 0 < facts["memory"]["available_bytes"] <= facts["memory"]["total_bytes"]
    assert facts["memory"]["bandwidth"]["bytes_per_second"] > 10**8
    assert facts["packages"]["numpy"]
    assert facts["llguidance"] == "c"
    assert "cpu" in facts["onnxruntime"]["execution_providers"]


def test_doctor_counts_files_of_packed_weights(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_GENAI_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "packed"
    assert f"\npacked weights: 0 in {folder} (0 MiB)\n" in run("doctor", "--no-bandwidth").out

    folder.mkdir(parents=True)
    for name in ("a.packed", "b.packed", "c.packed.1.1.partial"):
        (folder / name).write_bytes(bytes(2**20))
    assert f"\npacked weights: 2 in {folder} (2 MiB)\n" in run("doctor", "--no-bandwidth").out

    monkeypatch.setenv("ONNX_GENAI_HOME", "/dev/null/home")
    assert "(0 MiB; cannot be written to, so each load packs again)" in run("doctor", "--no-bandwidth").out


def test_doctor_given_no_onnxruntime_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise NotFoundError("ONNX Runtime is not installed; install it with: pip install onnxruntime")

    monkeypatch.setattr(onnx_genai.pipelines, "find_ort_library", find)

    ran = run("doctor", "--no-bandwidth")

    assert ran.code == 1
    assert "problem: ONNX Runtime is not installed; install it with: pip install onnxruntime" in ran.out


def test_doctor_given_nothing_to_improve_says_nothing() -> None:
    assert advice(_facts()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cpu": {"usable_cores": 2, "allowed_cpus": 2}}, "2 of 8 cores may be used, because of the affinity mask"),
        ({"cpu": {"usable_cores": 2, "quota": 1.5}}, "because of a CPU quota of 1.5 cores"),
        ({"cpu": {"kernel_isa": "plain"}}, "kernels run as plain, but avx2 is there"),
        ({"cpu": {"load": 9.0}}, "the machine is busy (load 9.0 on 8 cores)"),
        ({"cpu": {"governor": "powersave"}}, "governor is powersave"),
        ({"memory": {"available_bytes": 2**30}}, "only 1.0 GiB of memory are free"),
        ({"memory": {"swap_used_bytes": 2**31}}, "2.0 GiB are swapped out"),
        ({"memory": {"bandwidth": {"bytes_per_second": 2e10}}}, "at most 20 tokens a second"),
        ({"gpu": ["H200"]}, "there is a GPU (H200)"),
        ({"llguidance": "python"}, "this llguidance has no C functions"),
    ],
)
def test_doctor_advises(change: dict[str, object], text: str) -> None:
    facts = _facts()
    for key, value in change.items():
        facts[key] = {**facts[key], **value} if isinstance(value, dict) else value  # type: ignore[dict-item]

    found = advice(facts)

    assert len(found) == 1
    assert text in found[0]


def test_read_bandwidth_takes_about_the_time_it_is_given() -> None:
    assert read_bandwidth(1, seconds=0.05) > 10**8
