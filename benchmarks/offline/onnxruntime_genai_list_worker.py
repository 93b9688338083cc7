"""Contestant of the throughput benchmark: onnxruntime-genai with fixed batches.

Usage: onnxruntime_genai_list_worker.py FOLDER THREADS.

A batch is padded on the left to its longest prompt and runs until its longest output is made. Only wanted tokens count.
It takes half of the cores unless told otherwise, so the thread count is set for it. Whether KV shares a buffer
(`past_present_share_buffer`) is what the folder's configuration recommends.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

from benchmarks.harness.contestant import serve
from benchmarks.harness.latency import describe
from benchmarks.harness.process import cpu_seconds, peak_rss_bytes


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    settings = json.loads((Path(folder) / "genai_config.json").read_text(encoding="utf-8"))
    config = og.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)
    pad = settings["model"].get("pad_token_id", 0)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        prompts, outputs = request["prompts"], request["outputs"]
        order = _order(prompts, outputs, request["order"])
        size = request["batch_size"]
        cpu, start = cpu_seconds(), time.perf_counter()
        token_ids: list[list[int]] = [[] for _ in prompts]
        firsts: list[float] = []
        for begin in range(0, len(order), size):
            rows = order[begin : begin + size]
            first, made = _run(model, pad, [prompts[row] for row in rows], [outputs[row] for row in rows])
            firsts += [first - start] * len(rows)
            for row, ids in zip(rows, made, strict=True):
                token_ids[row] = ids
        return {
            "token_ids": token_ids,
            "seconds": time.perf_counter() - start,
            "cpu_seconds": cpu_seconds() - cpu,
            "first_token_seconds": describe(firsts),
            "peak_rss_bytes": peak_rss_bytes(),
        }

    facts = {
        "name": "onnxruntime-genai",
        "version": importlib.metadata.version("onnxruntime-genai"),
        "ort_version": importlib.metadata.version("onnxruntime"),
        "intra_op_threads": threads,
        "past_present_share_buffer": settings["search"].get("past_present_share_buffer"),
        "loaded_rss_bytes": peak_rss_bytes(),
    }
    serve(handle, facts)


def _order(prompts: list[list[int]], outputs: list[int], by: str) -> list[int]:
    pairs = [(len(prompt), new) for prompt, new in zip(prompts, outputs, strict=True)]
    if by == "arrival":
        return list(range(len(pairs)))
    if by == "prompt":
        return sorted(range(len(pairs)), key=lambda row: pairs[row])
    return sorted(range(len(pairs)), key=lambda row: pairs[row][::-1])


def _run(model: Any, pad: int, prompts: list[list[int]], outputs: list[int]) -> tuple[float, list[list[int]]]:
    """Runs one batch; returns when its first tokens came and the wanted tokens of each row."""
    longest, new = max(map(len, prompts)), max(outputs)
    params = og.GeneratorParams(model)
    total = longest + new
    params.set_search_options(max_length=total, min_length=total, batch_size=len(prompts), do_sample=False)
    generator = og.Generator(model, params)
    padded = [[pad] * (longest - len(prompt)) + prompt for prompt in prompts]
    generator.append_tokens(np.array(padded, dtype=np.int32))
    generator.generate_next_token()
    first = time.perf_counter()
    for _ in range(new - 1):
        generator.generate_next_token()
    rows = [generator.get_sequence(row)[longest:] for row in range(len(prompts))]
    made = [[int(token) for token in row[:count]] for row, count in zip(rows, outputs, strict=True)]
    if any(len(ids) != count for ids, count in zip(made, outputs, strict=True)):
        raise RuntimeError(f"rows have {[len(ids) for ids in made]} new tokens, wanted {outputs}")
    return first, made


if __name__ == "__main__":
    main()
