"""One load for the benchmark ``load``: prints what it took as a line of JSON.

Usage: load_worker.py NAME FOLDER THREADS PROMPT; for "onnxruntime" the graph instead of the folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.process import peak_rss_bytes


def main() -> None:
    name, folder, threads, prompt = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if name.startswith("ours"):
        load = _ours(folder, name.rpartition(" ")[2], threads)
    else:
        load = {"onnxruntime": _plain, "onnxruntime-genai": _peer}[name](folder, threads)
    imported = peak_rss_bytes()
    start = time.perf_counter()
    opened = load()
    seconds = time.perf_counter() - start
    loaded = peak_rss_bytes()
    opened.run([100 + place for place in range(prompt)])
    peak = peak_rss_bytes()
    start = time.perf_counter()
    opened.read_tokenizer()
    model_seconds = seconds - (time.perf_counter() - start)
    answer = {"seconds": seconds, "model_seconds": model_seconds}
    print(json.dumps({**answer, "imported_bytes": imported, "loaded_bytes": loaded, "peak_bytes": peak}))


@dataclass(frozen=True)
class Opened:
    """A loaded model."""

    run: Callable[[list[int]], object]
    read_tokenizer: Callable[[], object]
    """What loading did for the tokenizer, once more."""


Load = Callable[[], Opened]


def _ours(folder: Path, backend: str, threads: int) -> Load:
    from benchmarks.offline.ours import greedy, open_llm
    from onnx_genai.tokenizer import Tokenizer

    def load() -> Opened:
        llm = open_llm(folder, threads=threads, backend=backend)
        return Opened(
            run=lambda prompt: llm.generate(prompt, greedy(1)),
            read_tokenizer=lambda: Tokenizer.from_file(llm.package.require_tokenizer()).token_table(),
        )

    return load


def _plain(graph: Path, threads: int) -> Load:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads

    def load() -> Opened:
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        return Opened(run=lambda prompt: session, read_tokenizer=lambda: None)  # it has neither

    return load


def _peer(folder: Path, threads: int) -> Load:
    import numpy as np
    import onnxruntime_genai as og

    def load() -> Opened:
        config = og.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        model = og.Model(config)

        def run(prompt: list[int]) -> None:
            params = og.GeneratorParams(model)
            params.set_search_options(max_length=len(prompt) + 1, do_sample=False)
            generator = og.Generator(model, params)
            generator.append_tokens(np.array([prompt], dtype=np.int32))
            generator.generate_next_token()

        return Opened(run=run, read_tokenizer=lambda: None)  # a Model has none

    return load


if __name__ == "__main__":
    main()
