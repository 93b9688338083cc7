"""SmolLM2-135M-Instruct from its GGUF file against transformers on the float checkpoint, see golden/PROVENANCE.md."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, Result, SamplingParams

pytestmark = pytest.mark.real_model

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)["cases"]
GREEDY = SamplingParams(max_new_tokens=64, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def fp32(smollm2_fp32: Path) -> Iterator[LLM]:
    with LLM(smollm2_fp32) as model:
        yield model


@pytest.fixture(scope="module")
def int4(smollm2: Path) -> Iterator[LLM]:
    with LLM(smollm2) as model:
        yield model


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_fp32_import_gives_the_tokens_of_transformers(fp32: LLM, case: dict[str, Any]) -> None:
    assert list(fp32.generate(case["prompt_ids"], GREEDY).token_ids) == case["new_ids"]


def test_fp32_batch_gives_the_tokens_of_transformers(fp32: LLM) -> None:
    results = fp32.generate([case["prompt_ids"] for case in CASES], GREEDY)

    assert [list(result.token_ids) for result in results] == [case["new_ids"] for case in CASES]


def test_fp32_answers_do_not_depend_on_chunks_preemption_or_tiers(fp32: LLM, tmp_path: Path) -> None:
    # 45 KiB a token and 720 KiB a block: half of what the eight answers need.
    limits: dict[str, Any] = {"vram_limit": "16MiB", "host_ram_limit": "24MiB", "disk_limit": "64MiB"}
    with LLM(fp32.package.root, max_num_batched_tokens=16, disk_folder=tmp_path, **limits) as model:
        for _ in range(2):
            results = model.generate([case["prompt_ids"] for case in CASES], GREEDY)
            assert [list(result.token_ids) for result in results] == [case["new_ids"] for case in CASES]
        metrics = model.metrics()

    assert metrics["num_preemptions"] > 0
    assert metrics["kv_hot_used_blocks"] == 0


def test_fp32_seeded_batch_equals_each_alone_up_to_ties(fp32: LLM) -> None:
    params = [
        SamplingParams(max_new_tokens=32, temperature=0.8, top_p=0.9, seed=row, ignore_eos=True, logprobs=True)
        for row in range(len(CASES))
    ]
    prompts = [case["prompt_ids"] for case in CASES]

    together = fp32.generate(prompts, params)
    alone = [fp32.generate(prompt, own) for prompt, own in zip(prompts, params, strict=True)]

    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids or _splits_at_equal_logprobs(one, other)


def _splits_at_equal_logprobs(one: Result, other: Result) -> bool:
    """A draw may fall on the border of two tokens; up to there the log-probabilities must agree to rounding."""
    assert one.logprobs is not None
    assert other.logprobs is not None
    pairs = list(zip(one.logprobs, other.logprobs, strict=True))
    split = next(index for index, (a, b) in enumerate(pairs) if a.token_id != b.token_id)
    return split > 0 and all(abs(a.logprob - b.logprob) < 1e-4 for a, b in pairs[:split])


def test_default_import_is_paged(int4: LLM) -> None:
    assert int4.info()["decoder"] == "paged"


def test_default_import_counts_to_ten(int4: LLM) -> None:
    messages = [{"role": "user", "content": "Count from 1 to 10."}]

    text = int4.chat(messages, SamplingParams(max_new_tokens=64, temperature=0)).text

    position = -1
    for number in range(1, 11):
        position = text.index(str(number), position + 1)


def test_default_import_streams_what_it_generates(int4: LLM) -> None:
    params = SamplingParams(max_new_tokens=48, temperature=0.9, seed=4)

    whole = int4.generate("Once upon a time", params)
    pieces = list(int4.stream("Once upon a time", params))

    assert "".join(piece.text for piece in pieces) == whole.text
    assert whole.text == int4.tokenizer.decode(whole.token_ids)


def test_python_threads_run_on_while_eight_threads_generate(int4: LLM) -> None:
    worst = 0.0
    done = threading.Event()

    def count() -> None:
        nonlocal worst
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0)
            now = time.perf_counter()
            worst = max(worst, now - last)
            last = now

    counter = threading.Thread(target=count)
    counter.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            params = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)
            list(pool.map(lambda row: int4.generate([100 + row] * (240 + row), params), range(8)))
    finally:
        done.set()
        counter.join()

    # With the GIL held during a step this would be the length of a step, seconds for these prompts. A busy machine may
    # take the thread off its core for a while, which is no stall of ours: the limit leaves room for that.
    assert worst < 1.0
