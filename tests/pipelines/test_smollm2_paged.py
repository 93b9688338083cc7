"""SmolLM2-135M-Instruct in the paged engine: the tokens of transformers, whatever happens around a request."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, SamplingParams
from tests.models.joined import cut_embedding

pytestmark = pytest.mark.real_model

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)["cases"]
NEW_TOKENS = 24
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
PROMPTS = [case["prompt_ids"] for case in CASES]
EXPECTED = [tuple(case["new_ids"][:NEW_TOKENS]) for case in CASES]
BLOCK_BYTES = 737_280
"""KV of 16 tokens: 30 layers, keys and values, 3 heads of 64 float32."""


def answers(model: LLM) -> list[tuple[int, ...]]:
    return [result.token_ids for result in model.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_of_any_size(smollm2_fp32: Path, chunk: int) -> None:
    with LLM(smollm2_fp32, max_num_batched_tokens=chunk, max_prefill_tokens_while_decoding=chunk) as model:
        if chunk > 1:
            assert answers(model) == EXPECTED
            return
        # Token by token is slow, so only the shortest.
        for prompt, expected in sorted(zip(PROMPTS, EXPECTED, strict=True), key=lambda pair: len(pair[0]))[:2]:
            assert model.generate(prompt, GREEDY).token_ids == expected


def test_table_of_embeddings_in_a_graph_of_its_own(
    smollm2_fp32: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = cut_embedding(smollm2_fp32, tmp_path_factory.mktemp("smollm2") / "joined")
    with LLM(folder) as model:
        assert model.info()["decoder"] == "paged"
        assert answers(model) == EXPECTED


def test_without_and_with_the_prefix_cache(smollm2_fp32: Path) -> None:
    with LLM(smollm2_fp32, prefix_cache=False) as model:
        assert answers(model) == EXPECTED
        assert model.metrics()["prefix_hit_tokens"] == 0
    with LLM(smollm2_fp32) as model:
        for _ in range(2):
            assert answers(model) == EXPECTED
        assert model.metrics()["prefix_hit_tokens"] > 0


def test_preempted_at_random_steps(smollm2_fp32: Path) -> None:
    draw = random.Random(5)
    with LLM(smollm2_fp32) as model:
        running = [model.engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        stop = threading.Event()

        def preempt() -> None:
            while not stop.wait(draw.random() * 0.05):
                model.engine.preempt(draw.choice(running))

        thread = threading.Thread(target=preempt)
        thread.start()
        try:
            assert [generation.result().choices[0].token_ids for generation in running] == EXPECTED
        finally:
            stop.set()
            thread.join()
        assert model.metrics()["num_preemptions"] > 0


@pytest.mark.parametrize(
    "limits",
    [
        {"vram_limit": 22 * BLOCK_BYTES, "host_ram_limit": 22 * BLOCK_BYTES},
        {"vram_limit": 22 * BLOCK_BYTES, "host_ram_limit": 60 * BLOCK_BYTES},
        {"vram_limit": 22 * BLOCK_BYTES, "host_ram_limit": 26 * BLOCK_BYTES, "disk_limit": 80 * BLOCK_BYTES},
    ],
    ids=["dropped", "warm", "warm_and_cold"],
)
def test_little_memory_and_every_tier(smollm2_fp32: Path, limits: dict[str, Any], tmp_path: Path) -> None:
    folder = {"disk_folder": tmp_path} if "disk_limit" in limits else {}
    with LLM(smollm2_fp32, **limits, **folder) as model:
        for _ in range(2):
            assert answers(model) == EXPECTED
        metrics = model.metrics()
        assert metrics["num_preemptions"] + metrics["kv_evicted_blocks"] + metrics["kv_swapped_out_blocks"] > 0
        if limits["host_ram_limit"] > limits["vram_limit"]:
            assert metrics["kv_swapped_in_blocks"] > 0


def test_sessions_forked_and_rewound(smollm2_fp32: Path, tmp_path: Path) -> None:
    with LLM(smollm2_fp32) as model:
        for prompt, expected in zip(PROMPTS, EXPECTED, strict=True):
            session = model.session()
            session.append(prompt)
            first = session.generate(SamplingParams(max_new_tokens=13, temperature=0, ignore_eos=True))
            child = session.fork()
            second = session.generate(SamplingParams(max_new_tokens=NEW_TOKENS - 13, temperature=0, ignore_eos=True))
            assert first.token_ids + second.token_ids == expected
            child.rewind(len(prompt) + 5)
            child.save(tmp_path / "session")
            rest = SamplingParams(max_new_tokens=NEW_TOKENS - 5, temperature=0, ignore_eos=True)
            assert child.generate(rest).token_ids == expected[5:]
            assert model.load_session(tmp_path / "session").generate(rest).token_ids == expected[5:]


@pytest.mark.parametrize(
    "options", [{"kv_dtype": "float16"}, {"decoder": "slot"}, {"decoder": "copy"}], ids=["fp16", "slot", "copy"]
)
def test_other_decoders_and_half_precision_kv(smollm2_fp32: Path, options: dict[str, Any]) -> None:
    with LLM(smollm2_fp32, **options) as model:
        found = answers(model)
    same = sum(
        a == b for row, expected in zip(found, EXPECTED, strict=True) for a, b in zip(row, expected, strict=True)
    )
    assert same == len(CASES) * NEW_TOKENS or (options.get("kv_dtype") and same > 0.95 * len(CASES) * NEW_TOKENS)


def test_threads_that_share_a_long_prompt(smollm2_fp32: Path) -> None:
    """Requests that begin alike, at the same time and one after another, give the same as each alone."""
    shared = PROMPTS[-1] * 4
    prompts = [[*shared, *prompt] for prompt in PROMPTS]
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    with LLM(smollm2_fp32, prefix_cache=False) as model:
        alone = [model.generate(prompt, params).token_ids for prompt in prompts]
    with LLM(smollm2_fp32) as model:
        found: list[tuple[int, ...]] = [()] * len(prompts)

        def run(number: int) -> None:
            found[number] = model.generate(prompts[number], params).token_ids

        run_all: Callable[[int], None] = run
        threads = [threading.Thread(target=run_all, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == alone
        assert [result.token_ids for result in model.generate(prompts, params)] == alone
