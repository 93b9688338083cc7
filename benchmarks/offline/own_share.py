"""How much of a step is the engine's own work: everything but ONNX Runtime's Run.

    python -m benchmarks.offline.own_share FOLDER [--sequences 64] [--runs 7] [--json FILE]

Sixty-four sequences decode together. Between two readings of the metrics, while all of them run and none is in its
prompt: seconds of steps and of handing out events, seconds inside Run and in moves of KV between tiers, and the
difference: schedule, inputs, sampling, events. Nobody reads pieces meanwhile: a reader's time would be counted as the
engine's where it takes a core away.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.offline.ours import facts, greedy, metrics_difference, open_llm, option_parser, vocab_size
from benchmarks.offline.workload import random_ids
from onnx_genai import LLM


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with open_llm(
        options.folder, threads=options.threads, max_num_seqs=options.sequences, **options.our_options
    ) as llm:
        record["facts"] = facts(llm)
        runs = [_run(llm, options, run) for run in range(options.runs + 1)][1:]
    shares = [run["share"] for run in runs]
    record["runs"] = runs
    record["share"] = report.summary(shares)
    record["load_average_after"] = os.getloadavg()
    names = sorted({name for run in runs for name in run["us_per_step"]})
    rows: list[list[object]] = []
    for name in names:
        middle = report.summary([run["us_per_step"][name] for run in runs])
        rows.append([name, f"{middle['median']:.0f}", f"{middle['min']:.0f}", f"{middle['max']:.0f}"])
    print(report.table([f"{options.sequences} sequences, us a step", "median", "min", "max"], rows))
    print(f"own work: {100 * record['share']['median']:.1f} % of the step (max {100 * max(shares):.1f} %)")
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    if options.new < 16 or min(options.sequences, options.prompt, options.runs) < 1:
        parser.error("--new is >= 16; --sequences, --prompt and --runs are >= 1")
    return options


def _run(llm: LLM, options: argparse.Namespace, run: int) -> dict[str, Any]:
    draw = random.Random(f"own share {options.seed} {run}")
    vocab = vocab_size(llm)
    prompts = [random_ids(draw, options.prompt, vocab) for _ in range(options.sequences)]
    errors: list[BaseException] = []

    def generate() -> None:
        try:
            llm.generate(prompts, greedy(options.new))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    idle = llm.metrics()
    reader = threading.Thread(target=generate)
    reader.start()
    readings = _watch(llm, options, idle, reader)
    reader.join()
    if errors:
        raise errors[0]
    if len(readings) < 2 or readings[0]["num_steps"] == readings[-1]["num_steps"]:
        raise SystemExit(
            f"{options.sequences} sequences never decoded together for long enough: raise --new (now {options.new}), "
            "or KV memory does not hold them all"
        )
    spent = metrics_difference(readings[0], readings[-1])
    steps = spent["num_steps"]
    whole = spent["step_seconds"] + spent.get("publish_seconds", 0.0)
    own = whole - spent["run_seconds"] - spent.get("move_seconds", 0.0)
    parts = {name: 1e6 * value / steps for name, value in spent.items() if name.endswith("_seconds")}
    return {
        "steps": steps,
        "tokens_per_step": spent["num_generated_tokens"] / steps,
        "share": own / whole,
        "us_per_step": {**parts, "own work": 1e6 * own / steps},
    }


def _watch(
    llm: LLM, options: argparse.Namespace, idle: dict[str, float], reader: threading.Thread
) -> list[dict[str, float]]:
    """Readings of the metrics from the end of the last prompt until the first sequence may end."""
    readings: list[dict[str, float]] = []
    while reader.is_alive():
        now = llm.metrics()
        done = metrics_difference(idle, now)
        if now["num_running"] == options.sequences and done["num_finished_requests"] == 0:
            readings.append(now)
        elif readings:
            break
        time.sleep(0.02)
    return [each for each in readings if each["num_prompt_tokens"] == readings[-1]["num_prompt_tokens"]]


if __name__ == "__main__":
    main()
