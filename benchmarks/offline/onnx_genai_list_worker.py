"""Contestant of the throughput benchmark: this project.

Usage: onnx_genai_list_worker.py FOLDER OPTIONS, where OPTIONS are the arguments of LLM as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.harness.contestant import serve
from benchmarks.harness.latency import describe
from benchmarks.harness.process import cpu_seconds, peak_rss_bytes
from benchmarks.offline.ours import Stream, facts, greedy, metrics_difference, open_llm
from onnx_genai import LLM, __version__


def main() -> None:
    llm = open_llm(sys.argv[1], **json.loads(sys.argv[2]))
    modes = {"batch": _batch, "alone": _alone, "stream": _stream}

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        before, cpu = llm.metrics(), cpu_seconds()
        start = time.perf_counter()
        answer = modes[request["mode"]](llm, request["prompts"], request["outputs"])
        answer["seconds"] = time.perf_counter() - start
        answer["cpu_seconds"] = cpu_seconds() - cpu
        answer["metrics"] = metrics_difference(before, llm.metrics())
        answer["peak_rss_bytes"] = peak_rss_bytes()
        return answer

    loaded = {"name": "onnx-genai", "version": __version__, "loaded_rss_bytes": peak_rss_bytes(), **facts(llm)}
    serve(handle, loaded)
    llm.close()


def _batch(llm: LLM, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    """All at once, read at the end: what a reader of pieces costs is not the engine's."""
    results = llm.generate(prompts, [greedy(new) for new in outputs])
    return {"token_ids": [list(result.token_ids) for result in results]}


def _alone(llm: LLM, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    pairs = zip(prompts, outputs, strict=True)
    return {"token_ids": [list(llm.generate(prompt, greedy(new)).token_ids) for prompt, new in pairs]}


def _stream(llm: LLM, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    """All at once, each read piece by piece by a thread, for latencies."""
    streams = [Stream(llm, prompt, new) for prompt, new in zip(prompts, outputs, strict=True)]
    arrivals = [stream.join().arrivals for stream in streams]
    return {
        "token_ids": [stream.token_ids for stream in streams],
        "first_token_seconds": describe([each.first for each in arrivals]),
        "between_tokens_seconds": describe([gap for each in arrivals for gap in each.gaps()]),
    }


if __name__ == "__main__":
    main()
