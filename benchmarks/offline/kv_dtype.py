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
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import environment, report
from benchmarks.offline.ours import facts, greedy, open_llm, option_parser
from benchmarks.offline.prompts import prompt_ids
from benchmarks.offline.workload import first_difference
from onnx_genai import LLM, SamplingParams

REFERENCE = "float32"


class Leader:
    """A sampler for one request that notes the model's own choice, and takes it or the token it is told to.

    Args:
        prompt_length: Tokens of the prompt.
        path: Tokens to take; None takes the model's own choice.
        stride: The log-probabilities of every ``stride``-th row are kept.
    """

    def __init__(self, prompt_length: int, path: Sequence[int] | None, stride: int) -> None:
        self._prompt_length = prompt_length
        self._path = path
        self._stride = stride
        self.choices: list[int] = []
        self.margins: list[float] = []
        self.rows: list[npt.NDArray[np.float32]] = []

    def sample(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> Sequence[int]:
        picked = []
        for history, row in zip(token_ids, logits, strict=True):
            position = len(history) - self._prompt_length
            if position != len(self.choices):
                raise ValueError(f"row of position {position} came, {len(self.choices)} was expected")
            choice = int(row.argmax())
            second, first = np.partition(row, -2)[-2:]
            self.choices.append(choice)
            self.margins.append(float(first - second))
            if position % self._stride == 0:
                self.rows.append(log_softmax(row))
            picked.append(choice if self._path is None else self._path[position])
        return picked


def log_softmax(row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    wide = row.astype(np.float64)
    wide -= wide.max()
    return (wide - math.log(float(np.exp(wide).sum()))).astype(np.float32)


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with _open(options, REFERENCE) as llm:
        prompts = prompt_ids(llm, options.prompts)
        record["facts"] = facts(llm)
        reference = _lead(llm, prompts, None, options)
        paths = [leader.choices for leader in reference]
        # Control: the sampler in Python changes nothing, so all answers must be equal.
        control = _free(paths, _answers(llm, prompts, options))
    results: dict[str, Any] = {REFERENCE: {"bytes_per_token": record["facts"]["kv_bytes_per_token"], "free": control}}
    for dtype in options.dtypes:
        with _open(options, dtype) as llm:
            led = _lead(llm, prompts, paths, options)
            results[dtype] = {
                "bytes_per_token": facts(llm)["kv_bytes_per_token"],
                "same_history": _same_history(reference, led),
                "free": _free(paths, _answers(llm, prompts, options)),
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


def _lead(
    llm: LLM, prompts: list[list[int]], paths: list[list[int]] | None, options: argparse.Namespace
) -> list[Leader]:
    """One sampler a request; every processor is off, so that it sees the model's own logits."""
    leaders = [
        Leader(len(prompt), None if paths is None else paths[index], options.row_stride)
        for index, prompt in enumerate(prompts)
    ]
    params = [
        SamplingParams(
            max_new_tokens=options.new,
            ignore_eos=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            sampler=leader,
        )
        for leader in leaders
    ]
    llm.generate(prompts, params)
    return leaders


def _same_history(reference: list[Leader], led: list[Leader]) -> dict[str, Any]:
    pairs = [
        (own == theirs, margin)
        for a, b in zip(reference, led, strict=True)
        for theirs, own, margin in zip(a.choices, b.choices, a.margins, strict=True)
    ]
    largest, absolute, squared, signal, kl, count, rows = 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0
    for a, b in zip(reference, led, strict=True):
        for expected, row in zip(a.rows, b.rows, strict=True):
            wide = expected.astype(np.float64)
            error = row - wide
            largest = max(largest, float(np.abs(error).max()))
            absolute += float(np.abs(error).sum())
            squared += float(np.square(error).sum())
            signal += float(np.square(wide - wide.mean()).sum())
            kl += float((np.exp(wide) * -error).sum())
            count += error.size
            rows += 1
    missed = sorted(margin for same, margin in pairs if not same)
    return {
        "agreement": sum(same for same, _ in pairs) / len(pairs),
        "positions": len(pairs),
        "largest_margin_missed": missed[-1] if missed else 0.0,
        "logprob_error": {
            "max": largest,
            "mean": absolute / count,
            "relative_rms": math.sqrt(squared / signal),
            "mean_kl_divergence": kl / rows,
            "rows": rows,
        },
    }


def _free(paths: list[list[int]], free: list[list[int]]) -> dict[str, Any]:
    first = [first_difference(a, b) for a, b in zip(paths, free, strict=True)]
    equal = [x == y for a, b in zip(paths, free, strict=True) for x, y in zip(a, b, strict=True)]
    return {
        "equal_answers": sum(a == b for a, b in zip(paths, free, strict=True)),
        "answers": len(paths),
        "first_difference": first,
        "tokens_before_first_difference": sum(first) / len(equal),
        "equal_positions": sum(equal) / len(equal),
    }


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
