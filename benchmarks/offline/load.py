"""Time and memory that loading a folder takes, against plain ONNX Runtime and onnxruntime-genai.

    python -m benchmarks.offline.load FOLDER [--threads 2] [--runs 5] [--peer-python PYTHON] [--json FILE]

Each load is a process of its own that imports its runtime, and then opens the model; only that is timed. Contestants:
ours with our kernels and with ONNX Runtime's (``backend="native"`` and ``"ort"``), a plain ``InferenceSession`` of the
folder's decoder, and ``onnxruntime_genai.Model`` where the interpreter ``--peer-python`` has it. They take turns; the
first turn, which brings the files into the page cache, does not count. Ours also reads the tokenizer, which the others
leave to other objects: what that takes by itself, measured afterwards, is not in ``model``. A ratio is that of
``model`` to the plain session's in the same turn. Memory is the peak resident memory of the process, mapped weights
included, after the imports and after loading; the difference is also given as a multiple of the bytes of the folder's
ONNX files. KV and buffers come with the first request: ``--prompt`` tokens are run (greedy, one new token) by all but
the plain session, and the peak after that is the last column.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, report
from benchmarks.harness.contestant import ROOT
from benchmarks.harness.process import MIB
from onnx_genai import package

PLAIN = "onnxruntime"
NAMES = ("ours, native", "ours, ort", PLAIN, "onnxruntime-genai")
TIMEOUT = 600


def main() -> None:
    options = _options()
    names = NAMES if options.peer_python else NAMES[:-1]
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    record["model_bytes"] = _model_bytes(options.folder)
    record["raw"] = rows = []
    for turn in range(options.runs + 1):
        for name in names:
            row = {"contestant": name, **_load(name, options)}
            if turn > 0:
                rows.append(row)
    print(_evaluate(names, record))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of the request after loading")
    parser.add_argument("--peer-python", help="interpreter of an environment that has onnxruntime-genai")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    return parser.parse_args()


def _model_bytes(folder: Path) -> int:
    """Of the graphs and the files of their weights."""
    return sum(path.stat().st_size for path in folder.rglob("*") if ".onnx" in path.name)


def _load(name: str, options: argparse.Namespace) -> dict[str, float]:
    """What a process of its own measured.

    Raises:
        SystemExit: It failed; what it wrote is shown.
    """
    is_peer = name == NAMES[-1]
    command = [options.peer_python if is_peer else sys.executable, "-m", "benchmarks.offline.load_worker", name]
    # A plain session is given the graph, so that it need not import what finds it.
    model = package.read(options.folder).model_path if name == PLAIN else options.folder
    command += [str(model.absolute()), str(options.threads), str(options.prompt)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with exit code {done.returncode}:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _evaluate(names: tuple[str, ...], record: dict[str, Any]) -> str:
    rows: list[dict[str, Any]] = record["raw"]
    of = {name: [row for row in rows if row["contestant"] == name] for name in names}
    seconds = {name: [row["model_seconds"] for row in of[name]] for name in names}
    table: list[list[object]] = []
    record["ratios"] = {}
    for name in names:
        ratio = record["ratios"][name] = report.paired_ratio(seconds[name], seconds[PLAIN])
        keys = ("imported_bytes", "loaded_bytes", "peak_bytes")
        imported, loaded, peak = (max(row[key] for row in of[name]) for key in keys)
        times = [
            1e3 * report.summary(values)["median"] for values in ([row["seconds"] for row in of[name]], seconds[name])
        ]
        share = (loaded - imported) / record["model_bytes"]
        used = "" if name == PLAIN else peak // MIB
        table.append([name, *times, ratio["median"], imported // MIB, loaded // MIB, share, used])
    head = ["", "load, ms", "model", "of onnxruntime's"]
    head += ["imports, MiB", "loaded", "of the files", "with a request"]
    return report.table(head, table)


if __name__ == "__main__":
    main()
