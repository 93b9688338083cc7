"""Contestant: transformers on the float checkpoint.

Usage: transformers_worker.py HF_FOLDER THREADS.
"""

from __future__ import annotations

import sys
import time

import torch
import transformers

from benchmarks.harness.contestant import serve_generate


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(prompts: list[list[int]], new_tokens: int) -> tuple[float, float, list[list[int]], dict[str, float]]:
        ids = torch.tensor(prompts)
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        first = time.perf_counter()
        made = [token]
        for _ in range(new_tokens - 1):
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            made.append(token)
        end = time.perf_counter()
        return first, end, torch.cat(made, dim=1).tolist(), {}

    facts = {
        "name": "transformers",
        "version": transformers.__version__,
        "torch": torch.__version__,
        "threads": threads,
    }
    serve_generate(run, facts)


if __name__ == "__main__":
    main()
