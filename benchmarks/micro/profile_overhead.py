"""What recording costs: the same answers with recording off and at each verbosity, in turns.

    python -m benchmarks.micro.profile_overhead MODEL [--tokens 24] [--rounds 12] [--threads 1] [--json FILE]
        [--without-recording FOLDER]

Timed: the decode of one greedy answer of ``--tokens`` tokens, from its first token to its last, in processor time of
the whole process; with one thread nothing of that is waiting. Not timed: loading, the prompt, starting and stopping a
recording, and writing the file. Each round runs all contestants, in another order each time; "off, again" is a second
run without recording and shows the noise. On a busy machine caches are shared with others, which makes everything
slower; there the best of many rounds says more than their median. Both are printed, against those of "off".

What "off" costs against no recording at all cannot be measured in one build. ``--without-recording`` names the folder
of an ``onnx_genai`` package from before there was any; then processes of the two packages take turns with recording
off, and that is all that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_genai import LLM, SamplingParams

if TYPE_CHECKING:
    from onnx_genai.pipelines import Verbosity

CONTESTANTS: tuple[tuple[str, Verbosity | None], ...] = (
    ("off", None),
    ("off, again", None),
    ("decisions", "decisions"),
    ("ops", "ops"),
    ("full", "full"),
)
PROMPT = "The history of the lighthouse begins with"


def decode_seconds(llm: LLM, params: SamplingParams, verbosity: Verbosity | None) -> tuple[float, float]:
    """Processor time and wall time from the first piece to the last."""
    if verbosity is not None:
        llm.start_profile(verbosity=verbosity)
    stream = llm.stream(PROMPT, params)
    next(stream)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in stream:
        pass
    used = time.process_time() - cpu, time.perf_counter() - wall
    if verbosity is not None:
        llm.stop_profile()
    return used


def measure(llm: LLM, tokens: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each contestant in each round."""
    params = SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
    for _ in range(2):
        decode_seconds(llm, params, None)
    found: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name, _ in CONTESTANTS}
    for turn in range(rounds):
        shift = turn % len(CONTESTANTS)
        for name, verbosity in CONTESTANTS[shift:] + CONTESTANTS[:shift]:
            cpu, wall = decode_seconds(llm, params, verbosity)
            found[name]["cpu"].append(cpu)
            found[name]["wall"].append(wall)
    return found


def table(found: dict[str, dict[str, list[float]]], tokens: int) -> list[dict[str, float | str]]:
    """One row a contestant; costs are against "off"."""
    rows: list[dict[str, float | str]] = []
    for name, times in found.items():
        low, _, high = statistics.quantiles(times["cpu"], n=4)
        a_token = 1e3 / (tokens - 1)
        rows.append(
            {
                "recording": name,
                "best_ms_per_token": a_token * min(times["cpu"]),
                "median_ms_per_token": a_token * statistics.median(times["cpu"]),
                "low_ms_per_token": a_token * low,
                "high_ms_per_token": a_token * high,
                "best_cost_percent": 100 * (min(times["cpu"]) / min(found["off"]["cpu"]) - 1),
                "median_cost_percent": 100
                * (statistics.median(times["cpu"]) / statistics.median(found["off"]["cpu"]) - 1),
            }
        )
    return rows


def process_seconds(arguments: argparse.Namespace, folder: Path | None) -> float:
    """Best processor time of a decode in a process of its own, with the package of this process or of ``folder``."""
    paths = [str(folder)] if folder is not None else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *sys.path])}
    command = [sys.executable, __file__, arguments.model, "--worker"]
    command += ["--tokens", str(arguments.tokens), "--threads", str(arguments.threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    return float(done.stdout)


def against(arguments: argparse.Namespace) -> None:
    """Prints what "off" costs against a package without recording."""
    times: dict[Path | None, list[float]] = {None: [], arguments.without_recording: []}
    for turn in range(arguments.rounds):
        for folder in list(times)[:: 1 if turn % 2 else -1]:
            times[folder].append(process_seconds(arguments, folder))
    off, before = times[None], times[arguments.without_recording]
    best, middle = min(off) / min(before) - 1, statistics.median(off) / statistics.median(before) - 1
    spread = [100 * (max(each) / min(each) - 1) for each in (before, off)]
    print(f"off against no recording: best {100 * best:+.2f} %, median {100 * middle:+.2f} %")
    print(f"spread of {len(off)} processes: without recording {spread[0]:.1f} %, off {spread[1]:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--without-recording", type=Path, metavar="FOLDER")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.without_recording is not None:
        against(arguments)
        return
    if arguments.worker:
        params = SamplingParams(max_new_tokens=arguments.tokens, temperature=0, ignore_eos=True)
        with LLM(arguments.model, threads=arguments.threads) as llm:
            print(min(decode_seconds(llm, params, None)[0] for _ in range(6)))
        return
    with LLM(arguments.model, threads=arguments.threads) as llm:
        found = measure(llm, arguments.tokens, arguments.rounds)
    rows = table(found, arguments.tokens)
    print(
        f"{'recording':<12}{'best ms/tok':>12}{'median':>9}{'middle half':>18}{'best cost %':>13}{'median cost %':>15}"
    )
    for row in rows:
        half = f"{row['low_ms_per_token']:.2f}..{row['high_ms_per_token']:.2f}"
        print(
            f"{row['recording']:<12}{row['best_ms_per_token']:>12.3f}{row['median_ms_per_token']:>9.3f}{half:>18}"
            f"{row['best_cost_percent']:>+13.2f}{row['median_cost_percent']:>+15.2f}"
        )
    if arguments.json is not None:
        settings = {"tokens": arguments.tokens, "rounds": arguments.rounds, "threads": arguments.threads}
        arguments.json.write_text(json.dumps({"settings": settings, "rows": rows, "seconds": found}, indent=1))


if __name__ == "__main__":
    main()
