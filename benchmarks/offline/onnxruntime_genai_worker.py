"""Contestant: onnxruntime-genai.

Usage: onnxruntime_genai_worker.py FOLDER THREADS.

It takes half of the cores unless told otherwise, so the thread count is set for it.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time

import numpy as np
import onnxruntime_genai as og

from benchmarks.harness.contestant import serve_generate


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    config = og.Config(folder)
    config.overlay(f'{{"model":{{"decoder":{{"session_options":{{"intra_op_num_threads":{threads}}}}}}}}}')
    model = og.Model(config)

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        total = len(prompts[0]) + new_tokens
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=total, min_length=total, batch_size=len(prompts), do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        count = 1
        while count < new_tokens and not generator.is_done():
            generator.generate_next_token()
            count += 1
        end = time.perf_counter()
        ids = [[int(i) for i in generator.get_sequence(row)[len(prompts[0]) :]] for row in range(len(prompts))]
        return first, end, ids, {}

    facts = {
        "name": "onnxruntime-genai",
        "version": importlib.metadata.version("onnxruntime-genai"),
        "ort_version": importlib.metadata.version("onnxruntime"),
        "intra_op_threads": threads,
    }
    serve_generate(run, facts)


if __name__ == "__main__":
    main()
