"""What a long prompt does to answers that are already running.

    python -m benchmarks.offline.mixed FOLDER [--streams 8] [--long 2048] [--chunks 64 256 0] [--runs 3] [--json FILE]

Eight requests decode; then a request with a long prompt arrives. Measured are the times between tokens of the eight
until the long prompt's first token, and that token's own delay, with at most 64, 256 and any number of prompt tokens
(0 = unbounded) in a step that also decodes. Small chunks keep the running answers smooth, large ones serve the new one
sooner.

Not timed: loading, and one warm-up. Each stream is read by a thread of its own, whose cost is part of the figures.
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
from benchmarks.harness.latency import describe
from benchmarks.offline.ours import Stream, facts, open_llm, option_parser, vocab_size
from benchmarks.offline.workload import random_ids
from onnx_genai import LLM

UNBOUNDED = 1 << 20


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    results: dict[str, Any] = {}
    for chunk in options.chunks:
        limit = chunk or UNBOUNDED
        with open_llm(
            options.folder,
            threads=options.threads,
            max_num_seqs=options.streams + 1,
            max_num_batched_tokens=max(2048, options.long + options.streams),
            max_prefill_tokens_while_decoding=limit,
            **options.our_options,
        ) as llm:
            record["facts"] = facts(llm)
            runs = [_run(llm, options, run) for run in range(options.runs + 1)][1:]
        results[str(chunk) if chunk else "unbounded"] = _summary(runs)
    record["chunks"] = results
    record["load_average_after"] = os.getloadavg()
    print(_table(results))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens of the streams")
    parser.add_argument(
        "--before", type=int, default=32, help="tokens that each stream has when the long prompt arrives"
    )
    parser.add_argument("--long", type=int, default=2048, help="tokens of the long prompt")
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=[64, 256, 0], help="prompt tokens a step; 0 = unbounded"
    )
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if min(options.chunks) < 0 or min(options.streams, options.before, options.long, options.runs) < 1:
        parser.error("--chunks are >= 0; --streams, --before, --long and --runs are >= 1")
    return options


def _run(llm: LLM, options: argparse.Namespace, run: int) -> dict[str, list[float]]:
    draw = random.Random(f"mixed {options.seed} {run}")
    vocab = vocab_size(llm)
    ready = threading.Semaphore(0)
    counted: set[int] = set()

    def count(stream: Stream) -> None:
        if len(stream.token_ids) >= options.before and id(stream) not in counted:
            counted.add(id(stream))
            ready.release()

    # Enough tokens that all streams still run when the long prompt is done, whatever the chunk size.
    smallest = min((chunk for chunk in options.chunks if chunk), default=options.long)
    new = options.before + options.long // smallest + 32
    streams = [
        Stream(llm, random_ids(draw, options.prompt, vocab), new, on_tokens=count) for _ in range(options.streams)
    ]
    for _ in streams:
        if not ready.acquire(timeout=300):
            for stream in streams:
                stream.join(1)
            raise TimeoutError(f"the streams did not reach {options.before} tokens within 300 s")
    decoding = time.perf_counter()
    long = Stream(llm, random_ids(draw, options.long, vocab), 4).join()
    begin, end = long.arrivals.start, long.arrivals.times[0]
    arrivals = [stream.join().arrivals for stream in streams]
    first = max(each.times[0] for each in arrivals)
    return {
        "before": [gap for each in arrivals for gap in each.gaps(first, decoding)],
        "during": [gap for each in arrivals for gap in each.gaps(begin, end)],
        "long_first_token": [long.arrivals.first],
        "running_at_the_end": [float(sum(each.times[-1] > end for each in arrivals))],
    }


def _summary(runs: list[dict[str, list[float]]]) -> dict[str, Any]:
    return {name: describe([value for run in runs for value in run[name]]) for name in runs[0]}


def _table(results: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for name, result in results.items():
        row: list[object] = [name]
        for part in ("before", "during"):
            row += [f"{1000 * result[part][key]:.1f}" if result[part] else "" for key in ("p50", "p95", "max")]
        rows.append([*row, f"{1000 * result['long_first_token']['p50']:.0f}"])
    header = ["chunk", "before p50", "p95", "max", "during p50", "p95", "max", "long TTFT"]
    return "times between tokens of the running answers, ms\n" + report.table(header, rows)


if __name__ == "__main__":
    main()
