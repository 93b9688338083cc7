"""``onnx-genai doctor``: what is on this machine, and what would make it faster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.machine import machine_facts
from onnx_genai.words import counted

__all__ = ["doctor"]

_INTERFACES = {"c": "its C functions", "python": "its Python interface"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--no-bandwidth", is_flag=True, help="Do not measure the memory, which takes a second.")
def doctor(as_json: bool, no_bandwidth: bool) -> None:
    """Look at this machine: packages, ONNX Runtime, processor, memory, models; and say what would make it faster.

    Nothing is fetched and no model is loaded. The exit code is 1 if no model could run here.
    """
    facts = machine_facts(bandwidth=not no_bandwidth)
    facts["problems"], facts["advice"] = problems(facts), advice(facts)
    if as_json:
        console.write(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
    else:
        console.write("".join(f"{line}\n" for line in _lines(facts)))
    if facts["problems"]:
        raise click.exceptions.Exit(1)


def problems(facts: dict[str, Any]) -> list[str]:
    """What keeps models from running at all."""
    found = []
    if facts["onnxruntime"].get("error"):
        found.append(facts["onnxruntime"]["error"])
    found += [
        f"the package {name} is missing; install it with: pip install {name}"
        for name, version in facts["packages"].items()
        if version is None
    ]
    return found


def advice(facts: dict[str, Any]) -> list[str]:
    """What would make it faster, most useful first."""
    runtime = facts["onnxruntime"]
    found = [*_processor_advice(facts["cpu"]), *_memory_advice(facts["memory"])]
    if facts["gpu"] and set(runtime.get("execution_providers", ())) <= {"cpu", "azure"}:
        found.insert(
            0, f"there is a GPU ({facts['gpu'][0]}) that this ONNX Runtime cannot use; pip install onnxruntime-gpu"
        )
    if facts["llguidance"] == "python":
        found.append(
            "this llguidance has no C functions, so grammars go through Python, which is slower; "
            "pip install --upgrade llguidance"
        )
    return found


def _processor_advice(cpu: dict[str, Any]) -> Iterable[str]:
    usable = cpu["usable_cores"]
    if usable < cpu["cores"]:
        limits = [
            *(["the affinity mask (taskset)"] if cpu["allowed_cpus"] < cpu["cpus"] else []),
            *([f"a CPU quota of {counted(cpu['quota'], 'core')}"] if cpu["quota"] is not None else []),
        ]
        why = " and ".join(limits) or "the system"
        yield f"{usable} of {counted(cpu['cores'], 'core')} may be used, because of {why}; give this process more cores"
    best = cpu["kernel_isas"][-1]
    if cpu["kernel_isa"] != best:
        yield f"our kernels run as {cpu['kernel_isa']}, but {best} is there; unset ONNX_GENAI_CPU_ISA"
    if cpu["governor"] not in (None, "performance"):
        yield f"the CPU's governor is {cpu['governor']}; performance is steadier: cpupower frequency-set -g performance"
    if cpu["load"] is not None and cpu["load"] > usable:
        yield (
            f"the machine is busy (load {cpu['load']:.1f} on {counted(usable, 'core')}); stop other programs, or give "
            "each its share with --cpu-cores"
        )


def _memory_advice(memory: dict[str, Any]) -> Iterable[str]:
    if memory["available_bytes"] < 2 * 2**30:
        yield f"only {_size(memory['available_bytes'])} of memory are free; close programs, or use 4-bit models"
    if memory["swap_used_bytes"] > 2**30:
        yield f"{_size(memory['swap_used_bytes'])} are swapped out; weights that are swapped make every token slow"
    if memory["bandwidth"] is not None:
        rate = memory["bandwidth"]["bytes_per_second"] / 1e9
        yield (
            f"each token reads all weights once: at {rate:.1f} GB/s a model of 1 GB makes at most {rate:.0f} tokens a "
            "second alone; smaller weights (q4) and batches (serve, --batch) make more"
        )


def _lines(facts: dict[str, Any]) -> Iterable[str]:
    yield f"onnx-genai {facts['version']}, Python {facts['python']}, {facts['platform']}"
    packages = [f"{name} {version or '(missing)'}" for name, version in facts["packages"].items()]
    yield f"packages: {', '.join(packages)}"
    yield from _runtime_lines(facts["onnxruntime"])
    if facts["llguidance"] is not None:
        yield f"grammars: llguidance by {_INTERFACES[facts['llguidance']]}"
    cpu, memory, cache = facts["cpu"], facts["memory"], facts["cache"]
    yield f"CPU: {cpu['model'] or 'unknown'}"
    quota = "" if cpu["quota"] is None else f", quota {cpu['quota']:g}"
    allowed = f"{cpu['allowed_cpus']} of {cpu['cpus']} CPUs allowed{quota}"
    yield f"  cores: {cpu['usable_cores']} may be used, {cpu['cores']} present ({allowed})"
    yield f"  kernels: {cpu['kernel_isa']} (there are {', '.join(cpu['kernel_isas'])})"
    limit = "" if memory["limit_bytes"] is None else f", limit {_size(memory['limit_bytes'])}"
    yield f"memory: {_size(memory['available_bytes'])} free of {_size(memory['total_bytes'])}{limit}"
    if memory["bandwidth"] is not None:
        rate = memory["bandwidth"]
        yield f"  read bandwidth: {rate['bytes_per_second'] / 1e9:.1f} GB/s with {counted(rate['threads'], 'thread')}"
    if facts["gpu"]:
        yield f"GPU: {', '.join(facts['gpu'])}"
    space = f"{_size(cache['size_bytes'])}, {_size(cache['free_bytes'])} free"
    yield f"models: {cache['models']} in {cache['path']} ({space})"
    packed = cache["packed"]
    unusable = "" if packed["usable"] else "; cannot be written to, so each load packs again"
    yield f"packed weights: {packed['files']} in {packed['path']} ({_size(packed['size_bytes'])}{unusable})"
    yield f"config file: {facts['config'] or '(none)'}"
    yield from (f"problem: {text}" for text in facts["problems"])
    yield from (f"advice: {text}" for text in facts["advice"])


def _runtime_lines(runtime: dict[str, Any]) -> Iterable[str]:
    if runtime.get("error"):
        yield f"ONNX Runtime: {runtime['error']}"
        return
    yield f"ONNX Runtime: {runtime['version']} (API {runtime['api_version']}), {runtime['path']}"
    yield f"  chosen because: {runtime['reason']}"
    yield f"execution providers: {', '.join(runtime['execution_providers'])}"
    if runtime["plugins"]:
        yield f"  plugin packages: {', '.join(runtime['plugins'])}"


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
