"""Contestant: this project.

Usage: onnx_genai_worker.py FOLDER THREADS.
"""

from __future__ import annotations

import sys
import time

from benchmarks.harness.contestant import serve
from onnx_genai import LLM, SamplingParams, __version__


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    llm = LLM(folder, threads=threads)

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        params = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
        if len(prompts) > 1:
            return _run_batch(llm, prompts, params)
        first = None
        ids: list[int] = []
        for chunk in llm.stream(prompts[0], params):
            first = first or time.perf_counter()
            ids.extend(chunk.token_ids)
        end = time.perf_counter()
        return first or end, end, [ids], _outside_run(llm, prompts[0], new_tokens)

    facts = {key: value for key, value in llm.info().items() if key != "ort_path"}
    serve(run, {"name": "onnx-genai", "version": __version__, **facts})
    llm.close()


def _run_batch(
    llm: LLM, prompts: list[list[int]], params: SamplingParams
) -> tuple[float, float, list[list[int]], dict[str, float]]:
    """The time of one token each stands for the prefill, so the batch runs twice."""
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(max_new_tokens=1, temperature=0))
    first = time.perf_counter()
    results = llm.generate(prompts, params)
    whole = time.perf_counter() - first
    return first, start + whole, [list(result.token_ids) for result in results], {}


def _outside_run(llm: LLM, prompt: list[int], new_tokens: int) -> dict[str, float]:
    """Our own time a step, everything but ONNX Runtime's Run, in microseconds.

    From a job of its own whose reader waits for the end: a reader of pieces would take the engine thread off its core
    while the other cores spin in ONNX Runtime's pool, and its time would be counted here.
    """
    before = llm.metrics()
    llm.generate(prompt, SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True))
    after = llm.metrics()
    steps = after["num_steps"] - before["num_steps"]
    spent = (after["step_seconds"] - before["step_seconds"]) - (after["run_seconds"] - before["run_seconds"])
    return {"steps": steps, "outside_run_us_per_step": 1e6 * spent / steps}


if __name__ == "__main__":
    main()
