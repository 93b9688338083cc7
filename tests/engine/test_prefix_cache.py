"""The prefix cache and the tiers of KV: what is reused, what moves, and that no answer depends on it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, Result, SamplingParams, errors
from tests.engine.processors import StepGate, settled
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

BLOCK = 16
HOT_16_BLOCKS = "64KiB"  # 2 layers x 2 heads x (8 + 8) float32 = 256 bytes a token, 4 KiB a block
ALWAYS_MOVES = BLOCK - 1
"""Tokens of a step with which computing again is never measured, and so taken as dearer than any move."""


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa"), threads=1) as model:
        assert model.info()["decoder"] == "paged"
        yield model


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(97) for _ in range(length)]


def check(result: Result, ids: list[int], count: int) -> None:
    assert list(result.token_ids) == checksum_generate(ids, count)


@pytest.mark.parametrize(
    ("length", "cached"),
    [(1, 0), (15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (100, 96)],
)
def test_second_request_reuses_the_full_blocks_but_never_the_last_token(llm: LLM, length: int, cached: int) -> None:
    ids = prompt(length, seed=length)

    first = llm.generate(ids, greedy(3))
    second = llm.generate(ids, greedy(3))

    check(first, ids, 3)
    check(second, ids, 3)
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, cached)


def test_prompts_that_share_any_number_of_tokens_answer_as_alone(llm: LLM) -> None:
    first = prompt(50, seed=4000)
    llm.generate(first, greedy(1))
    for shared in range(51):
        ids = [*first[:shared], *((token + 1) % 97 for token in first[shared:]), 7]

        result = llm.generate(ids, greedy(2))

        check(result, ids, 2)
        assert result.usage.cached_tokens >= shared // BLOCK * BLOCK


@pytest.mark.parametrize("decoder", ["paged", "slot", "copy"])
def test_a_prompt_that_was_left_half_computed_answers_right_when_it_comes_again(
    checksum_package: Callable[..., Path], decoder: str
) -> None:
    ids = prompt(80, seed=5000)
    with LLM(
        checksum_package("gqa"), threads=1, decoder=decoder, max_prefill_tokens_while_decoding=BLOCK, max_num_seqs=4
    ) as model:
        for chunks in range(1, 5):
            gate = StepGate()
            params = SamplingParams(max_new_tokens=60, temperature=0, ignore_eos=True, logits_processors=(gate,))
            beside = model.stream([9, chunks], params)
            gate.wait()
            own = [(token + chunks) % 97 for token in ids]
            left = model.stream(own, greedy(3))
            for _ in range(chunks):
                gate.step()
            del left  # of its five chunks some have run
            gate.open()

            check(model.generate(own, greedy(3)), own, 3)
            assert [token for chunk in beside for token in chunk.token_ids] == checksum_generate([9, chunks], 60)
        assert settled(model, lambda metrics: not metrics["num_running"] and not metrics["kv_hot_used_blocks"])


def test_follow_up_reuses_prompt_and_answer(llm: LLM) -> None:
    ids = prompt(30, seed=1000)
    answer = llm.generate(ids, greedy(20))

    ids = [*ids, *answer.token_ids, 5, 6]
    follow_up = llm.generate(ids, greedy(3))

    check(follow_up, ids, 3)
    assert follow_up.usage.cached_tokens == 48  # of the 49 positions whose KV was written


def test_prompts_share_only_what_is_equal(llm: LLM) -> None:
    common = prompt(40, seed=2000)
    llm.generate([*common, *prompt(20, seed=1)], greedy(1))

    ids = [*common, *prompt(20, seed=2)]
    result = llm.generate(ids, greedy(5))

    check(result, ids, 5)
    assert result.usage.cached_tokens == 32


def test_requests_of_one_list_share_a_prompt(llm: LLM) -> None:
    ids = prompt(64, seed=2500)
    llm.generate(ids, greedy(1))

    results = llm.generate([[*ids, i] for i in range(8)], greedy(4))

    for i, result in enumerate(results):
        check(result, [*ids, i], 4)
    assert all(result.usage.cached_tokens == 64 for result in results)


def test_salts_do_not_share(llm: LLM) -> None:
    ids = prompt(40, seed=3000)

    used = [llm.generate(ids, greedy(2), cache_salt=salt).usage.cached_tokens for salt in ("a", "b", "", "a", "b", "")]

    assert used == [0, 0, 0, 32, 32, 32]


def test_without_prefix_cache_nothing_is_reused_and_all_is_equal(
    llm: LLM, checksum_package: Callable[..., Path]
) -> None:
    ids = prompt(50, seed=4000)
    with LLM(checksum_package("gqa"), threads=1, prefix_cache=False) as plain:
        for _ in range(2):
            result = plain.generate(ids, greedy(10))
            assert result.usage.cached_tokens == 0
            assert result.token_ids == llm.generate(ids, greedy(10)).token_ids
        assert plain.metrics()["kv_hot_cached_blocks"] == 0


def test_choices_fork_the_prompt_and_are_those_of_single_requests(llm: LLM) -> None:
    ids = prompt(37, seed=5000)
    params = SamplingParams(max_new_tokens=40, temperature=2.0, seed=9, n=8, ignore_eos=True)

    before = llm.metrics()["num_prompt_tokens"]
    together = llm.generate(ids, params)
    computed = llm.metrics()["num_prompt_tokens"] - before

    assert len({choice.token_ids for choice in together.choices}) == 8
    assert computed <= len(ids)
    assert llm.generate(ids, params).choices == together.choices


def test_cleared_cache_is_empty(llm: LLM) -> None:
    ids = prompt(40, seed=6000)
    llm.generate(ids, greedy(2))

    llm.engine.clear_prefix_cache()

    assert settled(llm, lambda metrics: metrics["kv_hot_cached_blocks"] == 0)
    assert llm.generate(ids, greedy(2)).usage.cached_tokens == 0


TIERS: list[tuple[str, dict[str, Any]]] = [
    ("hot", {"vram_limit": HOT_16_BLOCKS, "host_ram_limit": HOT_16_BLOCKS}),
    ("warm", {"vram_limit": HOT_16_BLOCKS, "host_ram_limit": "1MiB"}),
    ("cold", {"vram_limit": HOT_16_BLOCKS, "host_ram_limit": HOT_16_BLOCKS, "disk_limit": "1MiB"}),
    ("both", {"vram_limit": HOT_16_BLOCKS, "host_ram_limit": "128KiB", "disk_limit": "2MiB"}),
]


@pytest.mark.parametrize(("name", "limits"), TIERS, ids=[name for name, _ in TIERS])
@pytest.mark.parametrize("chunk", [2048, 7, ALWAYS_MOVES])
def test_ten_times_more_conversations_than_the_hot_tier_all_answer_right(
    name: str, limits: dict[str, Any], chunk: int, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    if "disk_limit" in limits:
        limits = {**limits, "disk_folder": tmp_path / "kv"}
    package = checksum_package("gqa", context_length=256)
    with LLM(package, threads=1, max_num_batched_tokens=chunk, **limits) as model:
        texts = [prompt(60, seed=i) for i in range(40)]
        for turn in range(3):
            for number, ids in enumerate(texts):
                count = 5 + number % 7
                result = model.generate(ids, greedy(count))
                check(result, ids, count)
                texts[number] = [*ids, *result.token_ids, turn]
        metrics = model.metrics()

    assert metrics["kv_hot_blocks"] == 16
    assert metrics["kv_hot_used_blocks"] == 0
    assert metrics["kv_failed_moves"] == 0
    assert (metrics["kv_warm_blocks"] > 0, metrics["kv_cold_blocks"] > 0) == (
        name in ("warm", "both"),
        name in ("cold", "both"),
    )
    assert (metrics["kv_swapped_out_blocks"] > 0) == (name != "hot")
    if chunk < BLOCK:  # moves for sure
        assert (metrics["kv_swapped_in_blocks"] > 0) == (name != "hot")
        assert (metrics["kv_cold_reads"] > 0) == (name in ("cold", "both"))
    if "disk_folder" in limits:
        assert list((tmp_path / "kv").iterdir()) == []  # the file goes with the model


def test_more_requests_at_once_than_memory_all_answer_right(checksum_package: Callable[..., Path]) -> None:
    package = checksum_package("gqa", context_length=256)
    with LLM(package, threads=1, vram_limit=HOT_16_BLOCKS, host_ram_limit="256KiB") as model:
        prompts = [prompt(20 + i, seed=7000 + i) for i in range(30)]

        results = model.generate(prompts, greedy(100))

        for ids, result in zip(prompts, results, strict=True):
            check(result, ids, 100)
        assert model.metrics()["num_preemptions"] > 0
        assert model.metrics()["kv_hot_used_blocks"] == 0


def test_prompt_that_can_never_fit_is_refused_with_the_limit(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa"), threads=1, vram_limit=HOT_16_BLOCKS) as model:
        with pytest.raises(errors.ContextOverflowError, match=r"vram_limit=64KiB\) holds \d+ tokens"):
            model.generate([1] * 300, greedy(1))
        capped = model.generate([1] * 100, greedy(1000))

    assert capped.budget_cap is not None
    assert capped.budget_cap[0] == 1000
    assert list(capped.token_ids) == checksum_generate([1] * 100, len(capped.token_ids))


def test_limit_below_one_block_is_refused(checksum_package: Callable[..., Path]) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"vram_limit is 1000, .* less than one block"):
        LLM(checksum_package("gqa"), threads=1, vram_limit=1000)


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_kv_dtypes_give_the_same_answers_on_small_whole_numbers(
    kv_dtype: Any, checksum_package: Callable[..., Path]
) -> None:
    ids = prompt(40, seed=8000)
    with LLM(checksum_package("gqa"), threads=1, kv_dtype=kv_dtype) as model:
        check(model.generate(ids, greedy(30)), ids, 30)
        check(model.generate(ids, greedy(30)), ids, 30)


@pytest.mark.parametrize("decoder", ["paged", "slot", "copy"])
def test_every_decoder_that_can_run_the_graph_gives_the_same_answers(
    decoder: Any, checksum_package: Callable[..., Path]
) -> None:
    ids = prompt(40, seed=9000)
    with LLM(checksum_package("gqa"), threads=1, decoder=decoder) as model:
        assert model.info()["decoder"] == decoder
        for result, own in zip(model.generate([ids, ids[:9]], greedy(30)), (ids, ids[:9]), strict=True):
            check(result, own, 30)


def test_decoder_or_kv_dtype_that_a_graph_cannot_have_is_refused(checksum_package: Callable[..., Path]) -> None:
    with pytest.raises(errors.UnsupportedError, match="paged"):
        LLM(checksum_package("concat"), threads=1, decoder="paged")
    with pytest.raises(errors.UnsupportedError, match="kv_dtype"):
        LLM(checksum_package("concat"), threads=1, kv_dtype="int8")


def unnamed_file(folder: Path) -> Path:
    """A file of this process that was made in ``folder`` and has no name any more."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the handle that lists the folder
            if str(folder) in str(path.readlink()):
                return path
    raise AssertionError(f"no file in {folder} is open")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds the unnamed file by /proc")
def test_corrupted_cold_file_costs_time_and_no_answer(checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    limits: dict[str, Any] = {"vram_limit": HOT_16_BLOCKS, "host_ram_limit": HOT_16_BLOCKS, "disk_limit": "1MiB"}
    prompts = [prompt(100, seed=i) for i in range(12)]
    limits["max_num_batched_tokens"] = ALWAYS_MOVES
    with LLM(checksum_package("gqa"), threads=1, disk_folder=tmp_path, **limits) as model:
        for ids in prompts:
            model.generate(ids, greedy(1))
        assert model.metrics()["kv_cold_writes"] > 0
        with unnamed_file(tmp_path).open("r+b") as cold:
            size = cold.seek(0, os.SEEK_END)
            cold.seek(0)
            cold.write(bytes(size))

        for ids in prompts:
            check(model.generate(ids, greedy(5)), ids, 5)

        assert model.metrics()["kv_failed_moves"] > 0
        assert "checksum" in str(model.info()["last_kv_failure"])


def test_full_disk_costs_time_and_no_answer(checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    program = f"""
        import resource, signal
        from onnx_genai import LLM, SamplingParams
        from tests.engine.test_prefix_cache import check, greedy, prompt

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with LLM({str(checksum_package("gqa"))!r}, threads=1, vram_limit="64KiB", host_ram_limit="64KiB",
                 disk_limit="1MiB", disk_folder={str(tmp_path)!r}, max_num_batched_tokens={ALWAYS_MOVES}) as model:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
            for _ in range(2):
                for seed in range(12):
                    ids = prompt(100, seed)
                    check(model.generate(ids, greedy(5)), ids, 5)
            metrics = model.metrics()
            assert metrics["kv_cold_writes"] > 0, metrics
            assert metrics["kv_failed_moves"] > 0, metrics
            assert "cold" in str(model.info()["last_kv_failure"]), model.info()
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
