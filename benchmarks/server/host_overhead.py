"""What the server itself costs: processor time of a streamed token, without a model.

    python -m benchmarks.server.host_overhead [--streams 1 16 64] [--tokens 256] [--runs 7] [--json FILE]

A model that takes no time says one word after the other; every open stream gets one token a turn, and each token is an
event of its own on the wire. Timed: processor time (user and system) of the server's process between two readings,
divided by the tokens. That is all of HTTP, JSON, checks, metrics and asyncio, with the start and the end of a request
spread over its tokens. Not timed: the client, which is another process and only counts events; and the first run.

``--model FOLDER`` takes a real engine, for instance with a checksum model of ``python -m tests.models``. The time of
the process then holds the engine's, so look at that of the event loop's thread, which is the server's; tokens that
became ready while it was busy come as one event.
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
from benchmarks.server.client import read_streams

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "runs": []}
    model = "instant" if options.model is None else str(options.model.resolve())
    settings = {} if options.model is None else {"threads": 1, "max_num_seqs": max(options.streams)}
    endpoints = list(PATHS) if options.model is None else ["completions"]
    with Contestant("server", ["-m", "benchmarks.server.worker", model, json.dumps(settings)]) as server:
        for endpoint in endpoints:
            for streams in options.streams:
                for run in range(options.runs + 1):
                    figures = _run(server, endpoint, streams, options, run)
                    if run:
                        record["runs"].append(figures)
    record["load_average_after"] = os.getloadavg()
    print(_table(record["runs"]))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a model to run instead of none")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--profile", help="file for a profile of the event loop; slows it down, so look at no figure")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    options = parser.parse_args()
    if min(*options.streams, options.tokens, options.runs) < 1:
        parser.error("--streams, --tokens and --runs are 1 or more")
    return options


def _run(server: Contestant, endpoint: str, streams: int, options: argparse.Namespace, run: int) -> dict[str, Any]:
    requests = [_request(endpoint, options.tokens, f"{run} {streams} {number}") for number in range(streams)]
    before = server.ask({"profile": options.profile if run == options.runs else None})
    came = read_streams(server.facts["port"], PATHS[endpoint], requests)
    after = server.ask({})
    tokens = streams * options.tokens
    return {
        "endpoint": endpoint,
        "streams": streams,
        "us_per_token": 1e6 * (after["cpu_seconds"] - before["cpu_seconds"]) / tokens,
        "loop_us_per_token": 1e6 * (after["loop_seconds"] - before["loop_seconds"]) / tokens,
        "tokens_per_event": tokens / came.events,
        "tokens_per_second": tokens / came.seconds,
    }


def _request(endpoint: str, tokens: int, seed: str) -> dict[str, Any]:
    common = {"stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    if endpoint == "chat":
        return {"messages": [{"role": "user", "content": "Hello"}], **common}
    return {"prompt": [3 + ord(each) % 90 for each in seed], **common}


def _table(runs: list[dict[str, Any]]) -> str:
    rows: list[list[object]] = []
    for endpoint, streams in dict.fromkeys((run["endpoint"], run["streams"]) for run in runs):
        these = [run for run in runs if (run["endpoint"], run["streams"]) == (endpoint, streams)]
        cost = report.summary([run["us_per_token"] for run in these])
        others = [
            report.summary([run[name] for run in these])["median"] for name in ("loop_us_per_token", "tokens_per_event")
        ]
        spread = [f"{cost[name]:.0f}" for name in ("median", "min", "max")]
        rows.append([f"{endpoint}, {streams} streams", *spread, *(f"{each:.1f}" for each in others)])
    heads = ["CPU us a token", "median", "min", "max", "event loop", "tokens an event"]
    return report.table(heads, rows)


if __name__ == "__main__":
    main()
