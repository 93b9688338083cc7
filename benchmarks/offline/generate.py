"""Prefill and decode rates of one folder, this project against onnxruntime-genai and other runtimes of the model.

    python -m benchmarks.offline.generate FOLDER [--transformers HF_FOLDER] [--llama-cpp FILE.gguf]
        [--openvino FOLDER] [--prompt 512] [--new 128] [--runs 7] [--peaks PROGRAM]

Timed: from handing over the prompt ids to the first token (prefill), and from the first token to the last (decode).
Not timed: loading, tokenization, one warm-up job for each contestant. The contestants alternate, A B A B ..., on the
same prompt ids; ratios are of neighbouring runs. Greedy, EOS ignored, all contestants with the same number of threads.
``--peaks`` names the program ``machine_peaks`` (a target of ``cpp`` with ``-DGENAI_BUILD_BENCHMARKS=ON``): it measures,
before and after the runs, what the machine reads and computes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.harness.contestant import Contestant, Job, Timing


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    record["peaks"] = [_peaks(options)]
    with ExitStack() as stack:
        contestants = [stack.enter_context(each) for each in _contestants(options)]
        record["contestants"] = {each.name: each.facts for each in contestants}
        timings, jobs = _alternate(contestants, options)
    record["peaks"] = [*record["peaks"], _peaks(options)]
    record["load_average_after"] = environment.capture([])["load_average"]
    print(_evaluate(timings, jobs, record))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transformers", type=Path, metavar="HF_FOLDER")
    parser.add_argument("--without-genai", action="store_true", help="leave onnxruntime-genai out")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--llama-cpp", type=Path, metavar="FILE.gguf", help="add llama.cpp on this file")
    parser.add_argument("--llama-cpp-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--openvino", type=Path, metavar="FOLDER", help="add OpenVINO GenAI on this export")
    parser.add_argument("--openvino-python", default=sys.executable, help="interpreter that has openvino-genai")
    parser.add_argument("--peaks", type=Path, help="the program machine_peaks")
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens (decode starts at this depth)")
    parser.add_argument("--new", type=int, default=128, help="tokens to make")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vocab", type=int, default=40000, help="prompt ids are drawn from 100..VOCAB")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    return parser.parse_args()


def _contestants(options: argparse.Namespace) -> Iterator[Contestant]:
    yield Contestant("onnx-genai", _worker("onnx_genai", options.folder, options.threads))
    peers = [
        (
            "onnxruntime-genai",
            "onnxruntime_genai",
            None if options.without_genai else options.folder,
            options.peer_python,
        ),
        ("transformers", "transformers", options.transformers, options.peer_python),
        ("llama.cpp", "llama_cpp", options.llama_cpp, options.llama_cpp_python),
        ("OpenVINO GenAI", "openvino", options.openvino, options.openvino_python),
    ]
    for name, worker, model, python in peers:
        if model:
            yield Contestant(name, _worker(worker, model, options.threads), python=python)


def _peaks(options: argparse.Namespace) -> dict[str, float] | None:
    if not options.peaks:
        return None
    run = subprocess.run([options.peaks, str(options.threads)], capture_output=True, check=True, timeout=120)
    return dict(json.loads(run.stdout))


def _worker(name: str, folder: Path, threads: int) -> list[str]:
    return ["-m", f"benchmarks.offline.{name}_worker", str(folder), str(threads)]


def _alternate(contestants: list[Contestant], options: argparse.Namespace) -> tuple[dict[str, list[Timing]], list[Job]]:
    timings: dict[str, list[Timing]] = {each.name: [] for each in contestants}
    jobs: list[Job] = []
    for run in range(options.runs + 1):
        draw = random.Random(run)
        prompts = [[draw.randrange(100, options.vocab) for _ in range(options.prompt)] for _ in range(options.batch)]
        job = Job(prompts, options.new)
        order = contestants if run % 2 == 0 else contestants[::-1]
        results = {each.name: each.run(job) for each in order}
        if run == 0:
            continue  # warm-up
        jobs.append(job)
        for name, timing in results.items():
            timings[name].append(timing)
    return timings, jobs


def _evaluate(timings: dict[str, list[Timing]], jobs: list[Job], record: dict[str, Any]) -> str:
    rates = {
        name: {
            "prefill": [timing.prefill_rate(job) for timing, job in zip(runs, jobs, strict=True)],
            "decode": [timing.decode_rate(job) for timing, job in zip(runs, jobs, strict=True)],
        }
        for name, runs in timings.items()
    }
    ours = rates["onnx-genai"]
    rows: list[list[object]] = []
    for name, rate in rates.items():
        row: list[object] = [name]
        for kind in ("prefill", "decode"):
            row += [report.summary(rate[kind])["median"], report.paired_ratio(ours[kind], rate[kind])["median"]]
        equal = sum(a.token_ids == b.token_ids for a, b in zip(timings["onnx-genai"], timings[name], strict=True))
        rows.append([*row, f"{equal}/{len(jobs)}"])
    record["raw_rates"] = rates
    record["rates"] = {name: {kind: report.summary(rate[kind]) for kind in rate} for name, rate in rates.items()}
    record["ratio_to_ours"] = {
        name: {kind: report.paired_ratio(ours[kind], rate[kind]) for kind in rate} for name, rate in rates.items()
    }
    reads = [peaks["read_bytes_per_second"] / 1e9 for peaks in record["peaks"] if peaks]
    outside = [timing.extra["outside_run_us_per_step"] for timing in timings["onnx-genai"] if timing.extra]
    header = ["tokens/s", "prefill", "ours/it", "decode", "ours/it", "equal ids"]
    text = report.table(header, rows)
    if outside:
        record["outside_run_us_per_step"] = report.summary(outside)
        text += f"\nonnx-genai outside Run: {report.summary(outside)['median']:.0f} us a step"
    if reads:
        text += f"\nthe machine reads {reads[0]:.1f} GB/s before and {reads[-1]:.1f} after the runs"
    return text


if __name__ == "__main__":
    main()
