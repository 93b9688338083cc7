"""What the prefix cache and forks are worth.

    python -m benchmarks.offline.prefix FOLDER [--prefix 1024] [--user 32] [--runs 7] [--json FILE]

1. Time to first token of a request with a system prompt nobody has sent before, and of the next one with the same
   system prompt and another user part; beside it a request that has the user part only. Every repetition has a fresh
   prefix.
2. Throughput of 64 requests that share 8 prefixes of 512 tokens, all at once, with the prefix cache and without.
3. Time of a fork of a session of 4,096 tokens, and KV bytes copied by it.

Timed: from handing over the ids to the first token (1), to the last token of all (2), the call of fork() (3). Not
timed: loading, and one warm-up of each kind.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.harness.latency import describe
from benchmarks.offline.ours import facts, greedy, metrics_difference, open_llm, option_parser, vocab_size
from benchmarks.offline.workload import LOWEST_ID, Workload, random_ids, shared_prefixes
from onnx_genai import LLM

PARTS = ("first", "share", "fork")


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with _open(options, prefix_cache=True) as llm:
        record["facts"] = facts(llm)
        if "first" in options.parts:
            record["first_token"] = _first_token(llm, options)
        if "share" in options.parts:
            record["share"] = _share(llm, options)
        if "fork" in options.parts:
            record["fork"] = _fork(llm, options)
    record["load_average_after"] = os.getloadavg()
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--prefix", type=int, default=1024, help="tokens of the system prompt")
    parser.add_argument("--user", type=int, default=32, help="tokens of the user part")
    parser.add_argument("--share-requests", type=int, default=64)
    parser.add_argument("--share-prefixes", type=int, default=8)
    parser.add_argument("--share-prefix", type=int, default=512)
    parser.add_argument("--share-new", type=int, default=32, help="tokens made for each of those requests")
    parser.add_argument("--session", type=int, default=4096, help="tokens of the session that is forked")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    return parser.parse_args()


def _open(options: argparse.Namespace, *, prefix_cache: bool) -> LLM:
    return open_llm(
        options.folder,
        threads=options.threads,
        max_num_seqs=options.max_num_seqs,
        prefix_cache=prefix_cache,
        **options.our_options,
    )


def _first_token(llm: LLM, options: argparse.Namespace) -> dict[str, Any]:
    vocab = vocab_size(llm)
    times: dict[str, list[float]] = {"first": [], "second": [], "user_part_only": []}
    cached: list[int] = []
    for run in range(options.runs + 1):
        draw = random.Random(f"first token {options.seed} {run}")
        system = random_ids(draw, options.prefix, vocab)
        users = [random_ids(draw, options.user, vocab) for _ in range(3)]
        prompts = {"first": system + users[0], "second": system + users[1], "user_part_only": users[2]}
        for kind, prompt in prompts.items():
            seconds, num_cached = _time_to_first_token(llm, prompt)
            if run > 0:  # the first repetition warms up
                times[kind].append(seconds)
                if kind == "second":
                    cached.append(num_cached)
    ratio = report.paired_ratio(times["first"], times["second"])
    rows: list[list[object]] = []
    for kind, values in times.items():
        spread = report.summary([1000 * value for value in values])
        rows.append([kind, spread["median"], spread["min"], spread["max"]])
    print(report.table(["time to first token, ms", "median", "min", "max"], rows))
    print(f"first / second: {ratio['median']:.1f} ({ratio['min']:.1f} to {ratio['max']:.1f})")
    print(f"cached tokens of the second: {min(cached)} of {options.prefix + options.user}\n", flush=True)
    return {
        "prefix": options.prefix,
        "user": options.user,
        "seconds": {kind: {**report.summary(values), "raw": values} for kind, values in times.items()},
        "first_over_second": ratio,
        "cached_tokens_of_second": cached,
    }


def _time_to_first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Returns the seconds, and how many prompt tokens came from the cache."""
    start = time.perf_counter()
    first, cached = 0.0, 0
    for chunk in llm.stream(prompt, greedy(4)):
        if chunk.token_ids and not first:
            first = time.perf_counter() - start
        if chunk.usage is not None:
            cached = chunk.usage.cached_tokens
    return first, cached


def _share(llm: LLM, options: argparse.Namespace) -> dict[str, Any]:
    """Alternates a model that caches prefixes with one that does not, on the same requests."""
    results: dict[str, list[dict[str, Any]]] = {"cache": [], "no cache": []}
    with _open(options, prefix_cache=False) as without:
        models = {"cache": llm, "no cache": without}
        for run in range(options.runs + 1):
            work = shared_prefixes(
                *(options.share_requests, options.share_prefixes, options.share_prefix),
                *(options.user, options.share_new if run else 2),
                seed=options.seed * 1000 + run,
                vocab=vocab_size(llm),
            )
            answers = {}
            for name in list(models) if run % 2 else list(models)[::-1]:
                answers[name] = _serve_shared(models[name], work)
            ids = [answer.pop("token_ids") for answer in answers.values()]
            equal = sum(one == other for one, other in zip(*ids, strict=True))
            if run > 0:
                for name, answer in answers.items():
                    results[name].append({**answer, "equal_requests": equal})
    return _share_report(results, options)


def _serve_shared(llm: LLM, work: Workload) -> dict[str, Any]:
    before, start = llm.metrics(), time.perf_counter()
    made = llm.generate(work.prompts, greedy(work.outputs[0]))
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "output_rate": work.output_tokens / seconds,
        "hit_rate": sum(result.usage.cached_tokens for result in made) / work.prompt_tokens,
        "metrics": metrics_difference(before, llm.metrics()),
        "token_ids": [list(result.token_ids) for result in made],
    }


def _share_report(results: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    rates = {name: [run["output_rate"] for run in runs] for name, runs in results.items()}
    ratio = report.paired_ratio(rates["cache"], rates["no cache"])
    hits = report.summary([run["hit_rate"] for run in results["cache"]])
    repeated = (options.share_requests - options.share_prefixes) * options.share_prefix
    possible = repeated / (options.share_requests * (options.share_prefix + options.user))
    rows: list[list[object]] = []
    for name, runs in results.items():
        middle = report.summary(rates[name])
        rows.append(
            [
                name,
                middle["median"],
                middle["min"],
                middle["max"],
                report.summary([r["seconds"] for r in runs])["median"],
            ]
        )
    print(report.table(["shared prefixes", "out tok/s", "min", "max", "wall s"], rows))
    equal = sum(run["equal_requests"] for run in results["cache"])
    print(f"cache / no cache: {ratio['median']:.2f}; hit rate {hits['median']:.3f} of at most {possible:.3f}")
    print(f"same tokens with and without: {equal} of {options.share_requests * options.runs} requests\n", flush=True)
    return {
        "requests": options.share_requests,
        "prefixes": options.share_prefixes,
        "prefix": options.share_prefix,
        "user": options.user,
        "new": options.share_new,
        "output_rate": {name: report.summary(values) for name, values in rates.items()},
        "cache_over_no_cache": ratio,
        "hit_rate": hits,
        "hit_rate_possible": possible,
        "runs": results,
    }


def _fork(llm: LLM, options: argparse.Namespace) -> dict[str, Any]:
    """Forks a session whose KV is computed; each child then goes on with a token of its own."""
    if not hasattr(llm, "session"):
        raise SystemExit("onnx_genai.LLM has no session() in this version; leave this part out: --parts first share")
    draw = random.Random(f"fork {options.seed}")
    session = llm.session()
    session.append(random_ids(draw, options.session, vocab_size(llm)))
    start = time.perf_counter()
    session.generate(greedy(1))
    prompt_seconds = time.perf_counter() - start
    forks: list[float] = []
    turns: list[float] = []
    cached: list[int] = []
    copied_by_forks, copied_by_turns = 0.0, 0.0
    for run in range(options.runs + 1):
        before = llm.metrics()
        start = time.perf_counter()
        child = session.fork()
        forked = time.perf_counter() - start
        after = llm.metrics()
        child.append([LOWEST_ID + run])
        start = time.perf_counter()
        result = child.generate(greedy(1))
        if run > 0:  # the first warms up
            forks.append(forked)
            turns.append(time.perf_counter() - start)
            cached.append(result.usage.cached_tokens)
            copied_by_forks += after["kv_copied_blocks"] - before["kv_copied_blocks"]
            copied_by_turns += llm.metrics()["kv_copied_blocks"] - after["kv_copied_blocks"]
        child.close()
    session.close()
    gauges = llm.metrics()
    block_size = gauges["kv_capacity_tokens"] / max(1.0, gauges["kv_hot_blocks"])
    block_bytes = float(str(llm.info()["kv_bytes_per_token"])) * block_size
    rows: list[list[object]] = [
        ["the session's first turn, ms", f"{1000 * prompt_seconds:.1f}", ""],
        ["fork, ms", f"{1000 * report.summary(forks)['median']:.4f}", f"{copied_by_forks * block_bytes:.0f}"],
        [
            "a child's first turn, ms",
            f"{1000 * report.summary(turns)['median']:.1f}",
            f"{copied_by_turns * block_bytes:.0f}",
        ],
    ]
    print(report.table([f"session of {options.session} tokens", "median", "KV bytes copied"], rows))
    print(f"cached tokens of a child's first turn: {min(cached)} of {options.session + 2}")
    return {
        "session": options.session,
        "first_turn_seconds": prompt_seconds,
        "fork_seconds": {**describe(forks), "raw": forks},
        "child_turn_seconds": {**describe(turns), "raw": turns},
        "child_cached_tokens": cached,
        "blocks_copied_by_forks": copied_by_forks,
        "blocks_copied_by_turns": copied_by_turns,
        "block_bytes": block_bytes,
    }


if __name__ == "__main__":
    main()
