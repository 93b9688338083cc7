"""Contestant of the throughput benchmark: OpenVINO GenAI's ContinuousBatchingPipeline.

Usage: openvino_list_worker.py FOLDER THREADS TOKEN_BUDGET CACHE_GIB.

Everything else is at its defaults: on processors with bfloat16 it computes in that, with an 8-bit KV cache and 8-bit
activations.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as og

from benchmarks.harness.contestant import serve
from benchmarks.harness.latency import Arrivals, describe
from benchmarks.harness.process import cpu_seconds, peak_rss_bytes


def main() -> None:
    folder, threads, budget, cache = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    scheduler = og.SchedulerConfig()
    scheduler.max_num_batched_tokens = budget
    scheduler.cache_size = cache
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    pipeline = og.ContinuousBatchingPipeline(folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    ids = itertools.count()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        cpu, start = cpu_seconds(), time.perf_counter()
        handles = []
        for prompt, new in zip(request["prompts"], request["outputs"], strict=True):
            tensor = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(next(ids), tensor, _greedy(new)))
        arrivals = [Arrivals(start) for _ in handles]
        token_ids: list[list[int]] = [[] for _ in handles]
        steps = 0
        while pipeline.has_non_finished_requests():
            pipeline.step()
            steps += 1
            now = time.perf_counter()
            for row, each in enumerate(handles):
                while each.can_read():
                    for output in each.read().values():
                        arrivals[row].add(now, len(output.generated_ids))
                        token_ids[row].extend(output.generated_ids)
        seconds = time.perf_counter() - start
        if [len(row) for row in token_ids] != request["outputs"]:
            raise RuntimeError(f"rows have {[len(row) for row in token_ids]} tokens, wanted {request['outputs']}")
        return {
            "token_ids": token_ids,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds() - cpu,
            "steps": steps,
            "first_token_seconds": describe([each.first for each in arrivals]),
            "between_tokens_seconds": describe([gap for each in arrivals for gap in each.gaps()]),
            "peak_rss_bytes": peak_rss_bytes(),
        }

    facts = {
        "name": "OpenVINO GenAI",
        "version": importlib.metadata.version("openvino-genai"),
        "threads": threads,
        "max_num_batched_tokens": budget,
        "cache_gib": cache,
        "loaded_rss_bytes": peak_rss_bytes(),
    }
    serve(handle, facts)


def _greedy(new: int) -> Any:
    config = og.GenerationConfig()
    config.max_new_tokens = new
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    return config


if __name__ == "__main__":
    main()
