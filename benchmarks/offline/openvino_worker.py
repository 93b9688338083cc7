"""Contestant: OpenVINO GenAI's LLMPipeline, one prompt at a time.

Usage: openvino_worker.py FOLDER THREADS.

Everything else is at its defaults: on processors with bfloat16 it computes in that, with an 8-bit KV cache and 8-bit
activations.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as og

from benchmarks.harness.contestant import serve_generate


class TokenTimes(og.StreamerBase):  # type: ignore[misc]
    """When each token came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def write(self, token: int | list[int]) -> og.StreamingStatus:
        self.times.append(time.perf_counter())
        return og.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    pipeline = og.LLMPipeline(folder, "CPU", {"INFERENCE_NUM_THREADS": threads})

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        if len(prompts) != 1:
            raise ValueError("this contestant takes one prompt; for many at once see openvino_list_worker")
        config = og.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        arrivals = TokenTimes()
        made = pipeline.generate(ov.Tensor(np.array(prompts, dtype=np.int64)), config, arrivals)
        end = time.perf_counter()
        return arrivals.times[0], end, [list(made.tokens[0])], {}

    facts = {
        "name": "OpenVINO GenAI",
        "version": importlib.metadata.version("openvino-genai"),
        "threads": threads,
    }
    serve_generate(run, facts)


if __name__ == "__main__":
    main()
