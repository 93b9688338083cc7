"""Many streams over HTTP against the same list without a server: aggregate output tokens/s.

    python -m benchmarks.server.streams FOLDER [--streams 32] [--runs 5] [--scale 1.0] [--json FILE]

The list is that of ``benchmarks.offline.throughput`` (ragged prompts and outputs, random ids, greedy, EOS ignored) with
short prompts, since those are no business of a server's; one request a stream, all at once. Two contestants in
processes of their own take turns with the same prompts:

    offline   ``LLM.generate`` of the whole list
    server    the list as streams of ``/v1/completions``, read by a third process that only collects bytes

Timed: from handing over the list to the last token. Not timed: loading and a warm-up. The client runs on the same
processors as the server, which a client elsewhere would not. Ratios are of neighbouring runs, which alternate in order.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.harness.contestant import Contestant
from benchmarks.offline.workload import Workload, ragged
from benchmarks.server.client import read_streams

OFFLINE = "offline"
SERVER = "server"


def main() -> None:
    options = _options()
    record: dict[str, Any] = {
        "environment": environment.capture(sys.argv),
        "folder": options.folder.name,
        "list": _work(options, 0).totals(),
        "runs": [],
    }
    settings = json.dumps({"threads": options.threads, "max_num_seqs": options.streams, **options.our_options})
    folder = str(options.folder.resolve())
    with (
        Contestant(OFFLINE, ["-m", "benchmarks.offline.onnx_genai_list_worker", folder, settings]) as offline,
        Contestant(SERVER, ["-m", "benchmarks.server.worker", folder, settings]) as server,
    ):
        warm_up = ragged(4, seed=-1, vocab=options.vocab, output_scale=0.05)
        _offline(offline, warm_up)
        _server(server, warm_up, None)
        for run in range(1, options.runs + 1):
            work = _work(options, run)
            sides = [lambda: _offline(offline, work), lambda: _server(server, work, options.profile)]  # noqa: B023
            pair = [side() for side in (sides if run % 2 else sides[::-1])]
            record["runs"].append({each["side"]: each for each in pair})
            print(f"run {run}: " + ", ".join(f"{each['side']} {each['rate']:.1f}" for each in pair), file=sys.stderr)
    record["load_average_after"] = os.getloadavg()
    print(_evaluate(record))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the output lengths, for a quick trial")
    parser.add_argument("--longest-prompt", type=int, default=128, help="prompts are cut to that many tokens")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vocab", type=int, default=40000, help="prompt ids are drawn from 100..VOCAB")
    parser.add_argument("--our-options", type=json.loads, default={}, metavar="JSON", help="more arguments of LLM")
    parser.add_argument("--profile", help="file for a profile of the server's event loop; look at no figure then")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    options = parser.parse_args()
    if min(options.streams, options.runs, options.threads, options.longest_prompt) < 1:
        parser.error("--streams, --runs, --threads and --longest-prompt are 1 or more")
    return options


def _work(options: argparse.Namespace, run: int) -> Workload:
    work = ragged(options.streams, seed=run, vocab=options.vocab, output_scale=options.scale)
    return Workload([prompt[: options.longest_prompt] for prompt in work.prompts], work.outputs)


def _offline(contestant: Contestant, work: Workload) -> dict[str, Any]:
    answer = contestant.ask({"mode": "batch", "prompts": work.prompts, "outputs": work.outputs})
    return {
        "side": OFFLINE,
        "seconds": answer["seconds"],
        "rate": work.output_tokens / answer["seconds"],
        "cpu_seconds": answer["cpu_seconds"],
        "step_seconds": answer["metrics"]["step_seconds"],
    }


def _server(contestant: Contestant, work: Workload, profile: str | None) -> dict[str, Any]:
    requests = [
        {"prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True, "stream": True}
        for prompt, new in zip(work.prompts, work.outputs, strict=True)
    ]
    before = contestant.ask({"profile": profile})
    came = read_streams(contestant.facts["port"], "/v1/completions", requests)
    after = contestant.ask({})
    return {
        "side": SERVER,
        "seconds": came.seconds,
        "rate": work.output_tokens / came.seconds,
        "cpu_seconds": after["cpu_seconds"] - before["cpu_seconds"],
        "loop_seconds": after["loop_seconds"] - before["loop_seconds"],
        "step_seconds": after["metrics"]["step_seconds"] - before["metrics"]["step_seconds"],
        "tokens_per_event": work.output_tokens / max(came.events, 1),
    }


def _evaluate(record: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    rates: dict[str, list[float]] = {}
    for side in (OFFLINE, SERVER):
        runs = [run[side] for run in record["runs"]]
        rates[side] = [run["rate"] for run in runs]
        middle = report.summary(rates[side])
        columns = [report.summary([run[name] for run in runs])["median"] for name in ("cpu_seconds", "step_seconds")]
        rows.append([side, *(f"{middle[name]:.1f}" for name in ("median", "min", "max")), *columns])
    record["ratio"] = report.paired_ratio(rates[SERVER], rates[OFFLINE])
    heads = ["output tokens/s", "median", "min", "max", "CPU s", "steps s"]
    ratio = record["ratio"]
    return (
        f"{report.table(heads, rows)}\n"
        f"server / offline: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
    )


if __name__ == "__main__":
    main()
