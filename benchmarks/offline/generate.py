"""Prefill and decode rates of one folder, this project against onnxruntime-genai and transformers.

    python -m benchmarks.offline.generate FOLDER [--transformers HF_FOLDER] [--prompt 512] [--new 128] [--runs 7]

Timed: from handing over the prompt ids to the first token (prefill), and from the first token to the last (decode).
Not timed: loading, tokenization, one warm-up job for each contestant. The contestants alternate, A B A B ..., on the
same prompt ids; ratios are of neighbouring runs. Greedy, EOS ignored, all contestants with the same number of threads.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import environment, report
from benchmarks.harness.contestant import Contestant, Job, Timing


def main() -> None:
    options = _options()
    record: dict[str, object] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with ExitStack() as stack:
        contestants = [
            stack.enter_context(Contestant("onnx-genai", _worker("onnx_genai", options.folder, options.threads))),
        ]
        if not options.without_genai:
            command = _worker("onnxruntime_genai", options.folder, options.threads)
            contestants.append(
                stack.enter_context(Contestant("onnxruntime-genai", command, python=options.peer_python))
            )
        if options.transformers:
            command = _worker("transformers", options.transformers, options.threads)
            contestants.append(stack.enter_context(Contestant("transformers", command, python=options.peer_python)))
        record["contestants"] = {each.name: each.facts for each in contestants}
        timings, jobs = _alternate(contestants, options)
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
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens (decode starts at this depth)")
    parser.add_argument("--new", type=int, default=128, help="tokens to make")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vocab", type=int, default=40000, help="prompt ids are drawn from 100..VOCAB")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    return parser.parse_args()


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


def _evaluate(timings: dict[str, list[Timing]], jobs: list[Job], record: dict[str, object]) -> str:
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
    outside = [timing.extra["outside_run_us_per_step"] for timing in timings["onnx-genai"] if timing.extra]
    header = ["tokens/s", "prefill", "ours/it", "decode", "ours/it", "equal ids"]
    text = report.table(header, rows)
    if outside:
        record["outside_run_us_per_step"] = report.summary(outside)
        text += f"\nonnx-genai outside Run: {report.summary(outside)['median']:.0f} us a step"
    return text


if __name__ == "__main__":
    main()
