"""What a grammar costs: decoding with a JSON schema and without.

    python -m benchmarks.offline.grammar FOLDER [--batch 16] [--new 128] [--runs 5] [--threads N] [--json FILE]

The same requests at once, with a schema and without: a long array of records, so that no answer ends before its last
token. Tokens are drawn (temperature 1, seeds); EOS is ignored. The two take turns; medians count. A grammar also writes
ahead what must follow, without a step of its own, so steps a second are given beside tokens a second: they show what
computing and applying masks costs. Not timed: loading, compiling, and a warm-up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.offline.ours import facts, open_llm, option_parser
from benchmarks.offline.prompts import prompt_ids
from onnx_genai import LLM, SamplingParams, grammar

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["animal", "plant", "stone"]},
        "size": {"type": "number"},
        "text": {"type": "string", "minLength": 400},
    },
    "required": ["name", "kind", "size", "text"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 200}


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    specs = {"free": None, "schema": grammar.json_schema(SCHEMA)}
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in specs}
    with open_llm(options.folder, threads=options.threads, max_num_seqs=options.batch, **options.our_options) as llm:
        record["facts"] = facts(llm)
        prompts = prompt_ids(llm, options.batch)
        for spec in specs.values():
            _run(llm, prompts, 8, spec)
        for _ in range(options.runs):
            for name, spec in specs.items():
                speeds[name].append(_run(llm, prompts, options.new, spec))
    print(f"{'':8} {'tokens/s':>10} {'steps/s':>10}")
    medians = {name: [statistics.median(values) for values in zip(*runs, strict=True)] for name, runs in speeds.items()}
    for name, (tokens, steps) in medians.items():
        print(f"{name:8} {tokens:10.1f} {steps:10.2f}")
    ratios = [ours / free for ours, free in zip(medians["schema"], medians["free"], strict=True)]
    print(f"{'ratio':8} {ratios[0]:10.3f} {ratios[1]:10.3f}")
    record |= {"tokens_and_steps_a_second": speeds, "ratios": ratios}
    if options.json:
        report.write(options.json, record)


def _run(llm: LLM, prompts: list[list[int]], num_new: int, spec: grammar.GrammarSpec | None) -> tuple[float, float]:
    """Tokens and steps a second of one batch."""
    params = [
        SamplingParams(max_new_tokens=num_new, temperature=1.0, seed=seed, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    before = llm.metrics()["num_steps"]
    start = time.perf_counter()
    results = llm.generate(prompts, params, grammar=spec)
    seconds = time.perf_counter() - start
    num_tokens = sum(len(result.token_ids) for result in results)
    if num_tokens != len(prompts) * num_new:
        raise SystemExit(f"an answer ended early: {num_tokens} tokens instead of {len(prompts) * num_new}")
    return num_tokens / seconds, (llm.metrics()["num_steps"] - before) / seconds


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    if min(options.batch, options.new, options.runs) < 1:
        parser.error("--batch, --new and --runs are >= 1")
    return options


if __name__ == "__main__":
    main()
