"""Many requests with ragged lengths, all at once: this project against onnxruntime-genai and OpenVINO GenAI.

    python -m benchmarks.offline.throughput FOLDER --peer-python PY
        [--openvino-python PY --openvino-folder DIR] [--concurrency 1 4 16 64] [--runs 7] [--json FILE]

The list: 16 requests with prompts of 34 to 486 tokens (4,987 in all) and outputs of 58 to 254 tokens (2,255 in all),
random ids, greedy, EOS ignored; a concurrency above 16 gets a list of that many requests, in which the lengths repeat.

Contestants, each in a process of its own, with the same number of threads, taking turns:

    ours at N            all requests handed over at once, at most N run together
    ours, alone          the same list, one request after the other
    onnxruntime-genai    the same list in fixed batches, padded to a batch's longest prompt and run until its longest
                         output is made; sizes and orders are tried before, and the fastest takes part
    OpenVINO GenAI       its continuous batching, 256 tokens a step

Timed: from handing over the list to the last token. Not timed: loading, and a warm-up of a few short requests. A rate
is wanted output tokens over that time. Memory is the peak resident memory of the process (VmHWM), mapped weights
included. Latencies of ours come from one more run whose tokens are read one by one; its rates come from runs that are
read at the end. Every run has other ids. Ratios are of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.harness.contestant import Contestant, ContestantError
from benchmarks.harness.process import MIB
from benchmarks.offline.workload import Workload, equal_tokens, ragged

ALONE = "ours, alone"
ORT_GENAI = "onnxruntime-genai"
OPENVINO = "OpenVINO GenAI"


@dataclass
class Entry:
    """A contestant, the length of its list, and what it did."""

    contestant: Contestant
    num_requests: int
    request: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    latency: dict[str, Any] = field(default_factory=dict)

    def run(self, options: argparse.Namespace, seed: int) -> dict[str, Any]:
        work = _workload(options, self.num_requests, seed)
        answer = self.contestant.ask(
            {**self.request, "prompts": work.prompts, "outputs": work.outputs}, timeout=options.timeout
        )
        answer["output_rate"] = work.output_tokens / answer["seconds"]
        return answer

    def rates(self) -> list[float]:
        return [run["output_rate"] for run in self.runs]

    def peak_rss_bytes(self) -> int:
        return max(int(run["peak_rss_bytes"]) for run in self.runs)


def main() -> None:
    options = _options()
    record: dict[str, Any] = {
        "environment": environment.capture(sys.argv),
        "folder": options.folder.name,
        "list": _workload(options, options.requests, 0).totals(),
        "seed": options.seed,
    }
    batching = _best_batching(options, record) if options.peer_python else {}
    with ExitStack() as stack:
        entries = _enter(options, batching, stack)
        _take_turns(entries, options)
        _latencies(entries, options)
    record["load_average_after"] = os.getloadavg()
    print(_evaluate(entries, record))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", help="interpreter that has onnxruntime-genai; left out without it")
    parser.add_argument("--openvino-python", help="interpreter that has openvino-genai")
    parser.add_argument("--openvino-folder", type=Path, help="the same model, exported for OpenVINO")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N")
    parser.add_argument("--requests", type=int, default=16, help="length of the list")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="sizes onnxruntime-genai tries"
    )
    parser.add_argument("--orders", nargs="+", default=["output", "prompt"], choices=["arrival", "output", "prompt"])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=40000, help="prompt ids are drawn from 100..VOCAB")
    parser.add_argument("--our-options", type=json.loads, default={}, metavar="JSON", help="more arguments of LLM")
    parser.add_argument(
        "--output-scale", type=float, default=1.0, help="factor on the output lengths, for a quick trial"
    )
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that one run may take")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    options = parser.parse_args()
    if bool(options.openvino_python) != bool(options.openvino_folder):
        parser.error("--openvino-python and --openvino-folder belong together")
    for name in ("requests", "runs", "threads", "concurrency", "batches"):
        value = getattr(options, name)
        if min(value if isinstance(value, list) else [value]) < 1:
            parser.error(f"--{name} is {value}; allowed: whole numbers >= 1")
    options.folder = options.folder.resolve()
    return options


def _workload(options: argparse.Namespace, num_requests: int, run: int) -> Workload:
    seed = options.seed * 1000 + run
    return ragged(num_requests, seed=seed, vocab=options.vocab, output_scale=options.output_scale)


def _ours(options: argparse.Namespace, name: str, concurrency: int) -> Contestant:
    arguments = {"threads": options.threads, "max_num_seqs": concurrency, **options.our_options}
    command = ["-m", "benchmarks.offline.onnx_genai_list_worker", str(options.folder), json.dumps(arguments)]
    return Contestant(name, command)


def _ort_genai(options: argparse.Namespace) -> Contestant:
    command = ["-m", "benchmarks.offline.onnxruntime_genai_list_worker", str(options.folder), str(options.threads)]
    return Contestant(ORT_GENAI, command, python=options.peer_python)


def _openvino(options: argparse.Namespace) -> Contestant:
    folder = str(options.openvino_folder.resolve())
    command = ["-m", "benchmarks.offline.openvino_list_worker", folder, str(options.threads), "256", "1"]
    return Contestant(OPENVINO, command, python=options.openvino_python)


def _warm_up(contestant: Contestant, request: dict[str, Any], options: argparse.Namespace) -> None:
    work = ragged(4, seed=-1, vocab=options.vocab, output_scale=0.05)
    contestant.ask({**request, "prompts": work.prompts, "outputs": work.outputs}, timeout=options.timeout)


def _best_batching(options: argparse.Namespace, record: dict[str, Any]) -> dict[str, Any]:
    """Tries the fixed batch sizes once; returns what the fastest is asked with.

    A size that fails is noted and left out.
    """
    tried: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for size in options.batches:
        try:
            with _ort_genai(options) as contestant:
                tried += _try_batches(contestant, size, options)
        except ContestantError as error:
            failed[str(size)] = str(error)
            print(f"{ORT_GENAI}, batches of {size}: {error}", flush=True)
    record["batches_tried"] = tried
    record["batches_failed"] = failed
    if not tried:
        raise SystemExit(f"{ORT_GENAI} ran with none of the batch sizes; leave --peer-python out to go on without it")
    best = max(tried, key=lambda each: float(each["output_rate"]))
    return {"batch_size": best["batch_size"], "order": best["order"]}


def _try_batches(contestant: Contestant, size: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    tried = []
    # Alone in a batch, or all in one: the order changes nothing.
    for order in options.orders if 1 < size < options.requests else options.orders[:1]:
        entry = Entry(contestant, options.requests, {"batch_size": size, "order": order})
        _warm_up(contestant, entry.request, options)
        answer = entry.run(options, 0)
        tried.append({**entry.request, **_without_ids(answer)})
        print(f"{ORT_GENAI}, batches of {size} by {order}: {answer['output_rate']:.1f} tokens/s", flush=True)
    return tried


def _enter(options: argparse.Namespace, batching: dict[str, Any], stack: ExitStack) -> dict[str, Entry]:
    entries = {}
    for concurrency in options.concurrency:
        name = f"ours at {concurrency}"
        contestant = stack.enter_context(_ours(options, name, concurrency))
        entries[name] = Entry(contestant, max(options.requests, concurrency), {"mode": "batch"})
    entries[ALONE] = Entry(stack.enter_context(_ours(options, ALONE, 1)), options.requests, {"mode": "alone"})
    if batching:
        entries[ORT_GENAI] = Entry(stack.enter_context(_ort_genai(options)), options.requests, batching)
    if options.openvino_python:
        entries[OPENVINO] = Entry(stack.enter_context(_openvino(options)), options.requests, {})
    return entries


def _take_turns(entries: dict[str, Entry], options: argparse.Namespace) -> None:
    for entry in entries.values():
        _warm_up(entry.contestant, entry.request, options)
    for run in range(1, options.runs + 1):
        order = list(entries.items())
        for name, entry in order if run % 2 else order[::-1]:
            answer = entry.run(options, run)
            entry.runs.append(answer)
            print(f"run {run}, {name}: {answer['output_rate']:.1f} tokens/s", file=sys.stderr, flush=True)


def _latencies(entries: dict[str, Entry], options: argparse.Namespace) -> None:
    """First-token and between-token times: of ours from one more run, of the others from their last."""
    for entry in entries.values():
        if entry.request.get("mode") == "alone":
            continue
        if "mode" in entry.request:
            streaming = Entry(entry.contestant, entry.num_requests, {"mode": "stream"})
            entry.latency = streaming.run(options, options.runs + 1)
        else:
            entry.latency = entry.runs[-1]


def _evaluate(entries: dict[str, Entry], record: dict[str, Any]) -> str:
    alone = entries[ALONE]
    ours = [name for name, entry in entries.items() if entry.request.get("mode") == "batch"]
    rows: list[list[object]] = []
    results: dict[str, Any] = {}
    for name, entry in entries.items():
        first = entry.latency.get("first_token_seconds", {})
        between = entry.latency.get("between_tokens_seconds", {})
        result = results[name] = {
            "facts": entry.contestant.facts,
            "asked": entry.request,
            "requests": entry.num_requests,
            "output_rate": report.summary(entry.rates()),
            "seconds": report.summary([run["seconds"] for run in entry.runs]),
            "peak_rss_bytes": entry.peak_rss_bytes(),
            "runs": [_without_ids(run) for run in entry.runs],
            "latency_run": _without_ids(entry.latency),
        }
        cells = [f"{1000 * first[key]:.0f}" if first else "" for key in ("mean", "p95")]
        cells += [f"{1000 * between[key]:.1f}" if between else "" for key in ("mean", "p95")]
        rows.append(
            [
                *(name, entry.num_requests, result["output_rate"]["median"], result["seconds"]["median"]),
                *(f"{result['peak_rss_bytes'] / MIB:.0f}", *cells, _equal_to_alone(entry, alone, result)),
            ]
        )
    record["contestants"] = results
    header = ["", "requests", "out tok/s", "wall s", "peak MiB", "TTFT ms", "p95", "ITL ms", "p95", "equal to alone"]
    return report.table(header, rows) + "\n\n" + _ratios(entries, ours, record)


def _equal_to_alone(entry: Entry, alone: Entry, result: dict[str, Any]) -> str:
    """How many requests of the runs have the tokens that ours made alone; a longer list begins with the same ids."""
    if entry is alone or entry.request.get("mode") != "batch":
        return ""
    pairs = [
        equal_tokens(one["token_ids"], other["token_ids"][: alone.num_requests])
        for one, other in zip(alone.runs, entry.runs, strict=True)
    ]
    total = {key: sum(pair[key] for pair in pairs) for key in pairs[0]}
    result["equal_to_alone"] = total
    return f"{total['equal_requests']}/{total['requests']}"


def _ratios(entries: dict[str, Entry], ours: list[str], record: dict[str, Any]) -> str:
    """Ours over each other contestant, in rate (paired runs) and in peak memory."""
    others = [name for name in entries if name not in ours]
    ratios: dict[str, Any] = {}
    rows: list[list[object]] = []
    for name in ours:
        for other in others:
            speed = report.paired_ratio(entries[name].rates(), entries[other].rates())
            memory = entries[name].peak_rss_bytes() / entries[other].peak_rss_bytes()
            ratios[f"{name} / {other}"] = {"output_rate": speed, "peak_rss": memory}
            rows.append([f"{name} / {other}", speed["median"], speed["min"], speed["max"], memory])
    record["ratios"] = ratios
    return report.table(["ratio", "out tok/s", "min", "max", "peak memory"], rows)


def _without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "token_ids"}


if __name__ == "__main__":
    main()
