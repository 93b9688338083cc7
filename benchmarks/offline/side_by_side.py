"""Two processes with one thread each at the same time, against each of them alone.

    python -m benchmarks.offline.side_by_side FOLDER [--prompt 512] [--new 128] [--runs 5] [--peaks PROGRAM]

Both have the folder open and make one answer at a time, greedy, EOS ignored. In turns: the first alone, the second
alone, both at once. A ratio is a process's rate beside the other over its rate alone in the same turn. Where both are
slower together, memory or a shared cache may be the limit: ``--peaks`` names the program ``machine_peaks`` (a target of
``cpp`` with ``-DGENAI_BUILD_BENCHMARKS=ON``), which then reads a buffer as large as the loaded weights, with one thread
and with two that have a buffer each.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.harness.contestant import Contestant, Job

NAMES = ("first", "second")


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with ExitStack() as stack:
        command = ["-m", "benchmarks.offline.onnx_genai_worker", str(options.folder), "1"]
        pair = [stack.enter_context(Contestant(name, command)) for name in NAMES]
        record["raw_rates"] = rates = _measure(pair, options)
        mebibytes = int(pair[0].facts["loaded_bytes"]) >> 20
    if options.peaks:
        record["peaks"] = [_peaks(options.peaks, threads, mebibytes) for threads in (1, 2)]
    print(_evaluate(rates, record, mebibytes))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens")
    parser.add_argument("--new", type=int, default=128, help="tokens to make")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=40000, help="prompt ids are drawn from 100..VOCAB")
    parser.add_argument("--peaks", type=Path, help="the program machine_peaks")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    return parser.parse_args()


def _measure(pair: list[Contestant], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry a process and turn: rates of prefill and decode, alone and beside the other."""
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(len(pair)) as threads:
        for turn in range(options.runs + 1):
            jobs = [
                Job([[draw.randrange(100, options.vocab) for _ in range(options.prompt)]], options.new) for _ in pair
            ]
            alone = [each.run(job) for each, job in zip(pair, jobs, strict=True)]
            for job in jobs:
                job.prompts[0].reverse()  # nothing of it is in the prefix cache
            beside = list(threads.map(Contestant.run, pair, jobs))
            if turn == 0:
                continue  # warm-up
            for name, job, one, two in zip(NAMES, jobs, alone, beside, strict=True):
                for kind in ("prefill_rate", "decode_rate"):
                    values = {"alone": getattr(one, kind)(job), "beside": getattr(two, kind)(job)}
                    rows.append({"process": name, "kind": kind.removesuffix("_rate"), **values})
    return rows


def _evaluate(rates: list[dict[str, Any]], record: dict[str, Any], mebibytes: int) -> str:
    table: list[list[object]] = []
    record["ratios"] = ratios = []
    for name in NAMES:
        for kind in ("prefill", "decode"):
            rows = [row for row in rates if (row["process"], row["kind"]) == (name, kind)]
            beside, alone = [[row[key] for row in rows] for key in ("beside", "alone")]
            ratio = report.paired_ratio(beside, alone)
            ratios.append({"process": name, "kind": kind, **ratio})
            medians = [report.summary(values)["median"] for values in (alone, beside)]
            table.append([f"{name}, {kind}", *medians, ratio["median"]])
    text = report.table(["tokens/s", "alone", "beside the other", "ratio"], table)
    if "peaks" in record:
        one, two = (peaks["read_bytes_per_second"] / peaks["threads"] / 1e9 for peaks in record["peaks"])
        text += f"\nreading {mebibytes} MiB: {one:.1f} GB/s alone, {two:.1f} each with two: {two / one:.2f}"
    return text


def _peaks(program: Path, threads: int, mebibytes: int) -> dict[str, float]:
    command = [str(program), str(threads), str(mebibytes)]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout))


if __name__ == "__main__":
    main()
