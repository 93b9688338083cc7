"""Scores of a small multiple-choice task through the server, against transformers on the same checkpoint.

    python -m benchmarks.server.lm_eval_check FOLDER --checkpoint HF_FOLDER [--eval-python PYTHON] [--json FILE]

Both runs are of lm-eval, with its model types ``local-completions`` (token ids, ``echo``, ``logprobs``) and ``hf``. The
100 items stand beside this file, and nothing is fetched. FOLDER must be a float32 package of the checkpoint: then the
two scores are equal, and log-likelihoods differ by rounding only. The interpreter PYTHON needs lm-eval, tenacity,
aiohttp, transformers and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import environment, report

ITEMS = Path(__file__).with_name("tiny_facts.jsonl")
TASK = "tiny_facts"
ALLOWED_POINTS = 0.5
LOAD_SECONDS = 300
# What runs in the other interpreter: its arguments are a folder of tasks, a model type and arguments of the model.
PROGRAM = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
folder, kind, arguments, batch = sys.argv[1:]
found = lm_eval.simple_evaluate(model=kind, model_args=json.loads(arguments), tasks=["tiny_facts"], bootstrap_iters=0,
                                batch_size=int(batch), task_manager=TaskManager(include_path=folder), log_samples=True)
samples = [[[float(value), bool(greedy)] for value, greedy in each["filtered_resps"]]
           for each in sorted(found["samples"]["tiny_facts"], key=lambda each: each["doc_id"])]
print("RESULT " + json.dumps({"scores": found["results"]["tiny_facts"], "samples": samples}, default=str))
"""


def main() -> None:
    options = _options()
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    with tempfile.TemporaryDirectory() as name:
        tasks = Path(name)
        _write_task(tasks)
        arguments: dict[str, Any] = {"pretrained": str(options.checkpoint), "dtype": "float32", "device": "cpu"}
        record["transformers"] = _evaluate(options, tasks, "hf", arguments, 16)
        with _server(options.folder) as url:
            arguments = {
                "base_url": f"{url}/v1/completions",
                "model": "m",
                "tokenizer": str(options.checkpoint),
                "tokenizer_backend": "huggingface",
                "num_concurrent": 4,
                "max_retries": 1,
            }
            record["server"] = _evaluate(options, tasks, "local-completions", arguments, options.batch)
    is_equal = _compare(record)
    if options.json:
        report.write(options.json, record)
    sys.exit(0 if is_equal else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="float32 package")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="HF_FOLDER", help="weights and tokenizer")
    parser.add_argument("--eval-python", default=sys.executable, help="interpreter that has lm-eval")
    parser.add_argument("--batch", type=int, default=4, help="prompts in one request to the server")
    parser.add_argument("--json", type=Path, help="file for the raw record")
    return parser.parse_args()


def _write_task(folder: Path) -> None:
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(ITEMS)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    # JSON is YAML.
    (folder / f"{TASK}.yaml").write_text(json.dumps(task), encoding="utf-8")


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A server of the folder under the name m; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from onnx_genai.cli import main; main()"]
    command += ["serve", f"m={folder}", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.perf_counter() + LOAD_SECONDS
    while process.poll() is None and time.perf_counter() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the server did not become ready")


def _evaluate(
    options: argparse.Namespace, tasks: Path, kind: str, arguments: dict[str, Any], batch: int
) -> dict[str, Any]:
    command = [options.eval_python, "-c", PROGRAM, str(tasks), kind, json.dumps(arguments), str(batch)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    env = {**os.environ, **offline, "HF_HOME": str(tasks / "home"), "TOKENIZERS_PARALLELISM": "false"}
    env.setdefault("OMP_WAIT_POLICY", "passive")
    began = time.perf_counter()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return {**result, "seconds": round(time.perf_counter() - began, 1)}


def _compare(record: dict[str, Any]) -> bool:
    """Prints and notes how far the two runs are apart; whether the scores are as equal as they should be."""
    ours, theirs = record["server"], record["transformers"]
    pairs = [
        (mine, other)
        for item, counterpart in zip(ours["samples"], theirs["samples"], strict=True)
        for mine, other in zip(item, counterpart, strict=True)
    ]
    record["choices"] = len(pairs)
    record["largest_loglikelihood_difference"] = max(abs(mine[0] - other[0]) for mine, other in pairs)
    record["other_greedy_flag"] = sum(mine[1] != other[1] for mine, other in pairs)
    record["points_apart"] = {}
    print(f"{len(ours['samples'])} items, {len(pairs)} log-likelihoods")
    for metric in ("acc,none", "acc_norm,none"):
        mine, other = (100 * float(each["scores"][metric]) for each in (ours, theirs))
        record["points_apart"][metric] = abs(mine - other)
        print(f"{metric:15} server {mine:6.2f}   transformers {other:6.2f}")
    print(f"largest difference of a log-likelihood: {record['largest_loglikelihood_difference']:.2g}")
    print(f"other greedy flag: {record['other_greedy_flag']}")
    return max(record["points_apart"].values()) <= ALLOWED_POINTS


if __name__ == "__main__":
    main()
