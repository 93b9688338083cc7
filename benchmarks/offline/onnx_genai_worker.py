"""Contestant: this project.

Usage: onnx_genai_worker.py FOLDER THREADS.
"""

from __future__ import annotations

import sys
import time

from benchmarks.harness.contestant import serve_generate
from benchmarks.offline.ours import Stream, facts, greedy, open_llm
from onnx_genai import LLM, __version__


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    llm = open_llm(folder, threads=threads)

    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        if len(prompts) > 1:
            return _run_batch(llm, prompts, new_tokens)
        first = None
        ids: list[int] = []
        for chunk in llm.stream(prompts[0], greedy(new_tokens)):
            first = first or time.perf_counter()
            ids.extend(chunk.token_ids)
        end = time.perf_counter()
        return first or end, end, [ids], _outside_run(llm, prompts[0], new_tokens)

    serve_generate(run, {"name": "onnx-genai", "version": __version__, **facts(llm)})
    llm.close()


def _run_batch(
    llm: LLM, prompts: list[list[int]], new_tokens: int
) -> tuple[float, float, list[list[int]], dict[str, float]]:
    """The prefill ends when every request has its first token."""
    streams = [Stream(llm, prompt, new_tokens) for prompt in prompts]
    arrivals = [stream.join().arrivals for stream in streams]
    first = max(each.times[0] for each in arrivals)
    end = max(each.times[-1] for each in arrivals)
    return first, end, [stream.token_ids for stream in streams], {}


def _outside_run(llm: LLM, prompt: list[int], new_tokens: int) -> dict[str, float]:
    """Our own time a step, everything but ONNX Runtime's Run, in microseconds.

    From a job of its own whose reader waits for the end: a reader of pieces would take the engine thread off its core
    while the other cores spin in ONNX Runtime's pool, and its time would be counted here.
    """
    before = llm.metrics()
    # Another first token, so that nothing of the prompt is found in the prefix cache.
    llm.generate([prompt[0] ^ 1, *prompt[1:]], greedy(new_tokens))
    after = llm.metrics()
    steps = after["num_steps"] - before["num_steps"]
    spent = (after["step_seconds"] - before["step_seconds"]) - (after["run_seconds"] - before["run_seconds"])
    return {"steps": steps, "outside_run_us_per_step": 1e6 * spent / steps}


if __name__ == "__main__":
    main()
