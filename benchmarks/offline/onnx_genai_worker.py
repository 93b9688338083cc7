"""Contestant: this project.

Usage: onnx_genai_worker.py FOLDER THREADS.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.harness.contestant import serve
from onnx_genai import LLM, SamplingParams, __version__


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    llm = LLM(folder, threads=threads)

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        params = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
        before = llm.metrics()
        if len(prompts) > 1:
            results = llm.generate(prompts, params)
            end = time.perf_counter()
            return end, end, [list(result.token_ids) for result in results], {}
        first = None
        ids: list[int] = []
        for chunk in llm.stream(prompts[0], params):
            first = first or time.perf_counter()
            ids.extend(chunk.token_ids)
        end = time.perf_counter()
        time.sleep(0.01)  # the engine thread writes its counters just after the last event
        after = llm.metrics()
        return first or end, end, [ids], _outside_run(before, after)

    serve(run, {"name": "onnx-genai", "version": __version__, **llm.info()})
    llm.close()


def _outside_run(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Our own time a step: everything but ONNX Runtime's Run, in microseconds."""
    steps = after["num_steps"] - before["num_steps"]
    spent = (after["step_seconds"] - before["step_seconds"]) - (after["run_seconds"] - before["run_seconds"])
    return {"steps": steps, "outside_run_us_per_step": 1e6 * spent / steps}


if __name__ == "__main__":
    main()
