"""A limit of KV bounds the memory of the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 1024 * 1024
LIMIT = 8 * MIB
SCRATCH = 12 * MIB
"""For a step of 512 tokens, the answers and what the allocators keep; generous."""

PROGRAM = """
import random, sys
from onnx_genai import LLM, SamplingParams
from tests.models.checksum import checksum_generate

def memory(name):
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))

package, limit = sys.argv[1:]
draw = random.Random(0)
prompts = [[draw.randrange(97) for _ in range(length)] for length in [3000] * 40 + [20000]]  # 36 MB of KV
params = SamplingParams(max_new_tokens=2, temperature=0, ignore_eos=True)
with LLM(package, threads=1, vram_limit=limit, host_ram_limit=limit, max_num_batched_tokens=512) as model:
    model.generate(prompts[0][:600], params)
    loaded = memory("VmRSS")
    results = model.generate(prompts, params)
    metrics = model.metrics()
    peak = memory("VmHWM")
assert [list(each.token_ids) for each in results] == [checksum_generate(ids, 2) for ids in prompts]
print(peak - loaded, int(metrics["kv_evicted_blocks"]), int(metrics["kv_bytes"]))
"""


def grown_bytes(package: Path, limit: int) -> tuple[int, int, int]:
    """How much the process grew over what it had loaded, blocks that were evicted, and bytes of KV at the end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(package), str(limit)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown, evicted, kv_bytes = map(int, done.stdout.split())
    return grown, evicted, kv_bytes


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the peak of memory from /proc")
def test_long_prompts_grow_the_process_by_the_limit_and_scratch(checksum_package: Callable[..., Path]) -> None:
    package = checksum_package("gqa", context_length=32768)

    grown, evicted, kv_bytes = grown_bytes(package, LIMIT)
    unlimited, none_evicted, _ = grown_bytes(package, 8 * LIMIT)

    assert evicted > 0
    assert kv_bytes <= LIMIT
    assert grown <= LIMIT + SCRATCH
    assert none_evicted == 0
    assert unlimited > LIMIT + SCRATCH  # so the bound says something
