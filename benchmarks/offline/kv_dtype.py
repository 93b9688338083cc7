"""What smaller KV costs in agreement, and what it gives in memory and speed.

    python -m benchmarks.offline.kv_dtype FOLDER [--dtypes float16 int8] [--prompts 32] [--new 128] [--json FILE]

Greedy answers to 32 requests in plain words, 128 tokens each, EOS ignored, with float32 KV and with each smaller type:

- given the same history (each type is led along float32's answer): at how many positions its own first choice is
  float32's, and how far its log-probabilities are from float32's (over whole rows, every --row-stride positions);
- running free: how many answers are equal throughout, where the others differ first, how many tokens agree position by
  position.

The rows are seen by a sampler written in Python, so speed is measured apart, without one: the same requests at once,
types taking turns. Not timed: loading, and a warm-up.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.offline.led import free, lead, same_history
from benchmarks.offline.ours import facts, greedy, open_llm, option_parser
from benchmarks.offline.prompts import prompt_ids
from onnx_genai import LLM

REFERENCE = "float32"


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with _open(options, REFERENCE) as llm:
        prompts = prompt_ids(llm, options.prompts)
        record["facts"] = facts(llm)
        reference = lead(llm, prompts, None, options.new, options.row_stride)
        paths = [leader.choices for leader in reference]
        # Control: the sampler in Python changes nothing, so all answers must be equal.
        control = free(paths, _answers(llm, prompts, options))
    results: dict[str, Any] = {REFERENCE: {"bytes_per_token": record["facts"]["kv_bytes_per_token"], "free": control}}
    for dtype in options.dtypes:
        with _open(options, dtype) as llm:
            led = lead(llm, prompts, paths, options.new, options.row_stride)
            results[dtype] = {
                "bytes_per_token": facts(llm)["kv_bytes_per_token"],
                "same_history": same_history(reference, led),
                "free": free(paths, _answers(llm, prompts, options)),
            }
        print(f"{dtype}: compared", file=sys.stderr, flush=True)
    if options.runs:
        _speeds(prompts, results, options)
    record["dtypes"] = results
    record["load_average_after"] = os.getloadavg()
    print(_table(results))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "int8"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--row-stride", type=int, default=8, help="whole rows are compared at every so many positions")
    parser.add_argument("--runs", type=int, default=5, help="runs for speed; 0 leaves speed out")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    options = parser.parse_args()
    if min(options.prompts, options.new, options.row_stride) < 1:
        parser.error("--prompts, --new and --row-stride are >= 1")
    return options


def _open(options: argparse.Namespace, dtype: str) -> LLM:
    return open_llm(
        options.folder,
        threads=options.threads,
        max_num_seqs=options.max_num_seqs,
        kv_dtype=dtype,
        **options.our_options,
    )


def _answers(llm: LLM, prompts: list[list[int]], options: argparse.Namespace) -> list[list[int]]:
    return [list(result.token_ids) for result in llm.generate(prompts, greedy(options.new))]


def _speeds(prompts: list[list[int]], results: dict[str, Any], options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        models = {dtype: stack.enter_context(_open(options, dtype)) for dtype in results}
        rates: dict[str, list[float]] = {dtype: [] for dtype in results}
        for run in range(options.runs + 1):
            for dtype in list(models) if run % 2 else list(models)[::-1]:
                # Another first token: what a run finds in the prefix cache is nothing.
                varied = [[100 + run, *prompt] for prompt in prompts]
                start = time.perf_counter()
                models[dtype].generate(varied, greedy(options.new if run else 4))
                if run > 0:
                    rates[dtype].append(len(prompts) * options.new / (time.perf_counter() - start))
    for dtype, values in rates.items():
        results[dtype]["output_rate"] = report.summary(values)
        results[dtype]["speed_ratio"] = report.paired_ratio(values, rates[REFERENCE])


def _table(results: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for dtype, result in results.items():
        same, free = result.get("same_history"), result["free"]
        row: list[object] = [dtype, f"{result['bytes_per_token']}", f"{100 * same['agreement']:.2f} %" if same else ""]
        row += [f"{free['equal_answers']}/{free['answers']}"]
        row += [f"{100 * free[key]:.1f} %" for key in ("tokens_before_first_difference", "equal_positions")]
        row += [f"{same['logprob_error'][key]:.2g}" if same else "" for key in ("max", "mean", "relative_rms")]
        speed = result.get("output_rate")
        row += [f"{speed['median']:.1f}", f"{result['speed_ratio']['median']:.2f}"] if speed else ["", ""]
        rows.append(row)
    header = ["KV", "bytes/token", "same choice", "equal answers", "until differs", "equal places"]
    return report.table([*header, "max error", "mean", "rel rms", "out tok/s", "/ float32"], rows)


if __name__ == "__main__":
    main()
