"""Contestant: llama.cpp through llama-cpp-python's C functions.

Usage: llama_cpp_worker.py FILE.gguf THREADS.

One sequence for each prompt, prompts computed one after the other, then decode steps with all sequences.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.harness.contestant import serve_generate

CONTEXT = 8192


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        context = open_context(len(prompts))
        try:
            return generate(context, prompts, new_tokens)
        finally:
            llama_cpp.llama_free(context)

    def open_context(sequences: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = CONTEXT, sequences
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        return llama_cpp.llama_init_from_model(model, params)

    def generate(
        context: Any, prompts: list[list[int]], new_tokens: int
    ) -> tuple[float, float, list[list[int]], dict[str, float]]:
        made: list[list[int]] = [[] for _ in prompts]
        for row, prompt in enumerate(prompts):
            for begin in range(0, len(prompt), 512):
                part = prompt[begin : begin + 512]
                compute(context, [(token, begin + i, row) for i, token in enumerate(part)], last_only=True)
            made[row].append(best(context, len(part) - 1))
        first = time.perf_counter()
        for step in range(new_tokens - 1):
            compute(context, [(made[row][-1], len(p) + step, row) for row, p in enumerate(prompts)], last_only=False)
            for row in range(len(prompts)):
                made[row].append(best(context, row))
        return first, time.perf_counter(), made, {}

    def best(context: Any, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, index)
        return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())

    facts = {
        "name": "llama.cpp",
        "version": f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}",
        "system": llama_cpp.llama_print_system_info().decode(),
        "threads": threads,
    }
    serve_generate(run, facts)


def compute(context: Any, rows: Sequence[tuple[int, int, int]], *, last_only: bool) -> None:
    """One step over rows of (token id, position, sequence)."""
    batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
    try:
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = not last_only or i == len(rows) - 1
        batch.n_tokens = len(rows)
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
    finally:
        llama_cpp.llama_batch_free(batch)


if __name__ == "__main__":
    main()
