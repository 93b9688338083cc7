"""The Python API on small models: results, streams, text, stops, log-probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from onnx_genai import LLM, Chunk, SamplingParams
from tests.models.checksum import checksum_generate, checksum_logits

pytestmark = pytest.mark.boundary

TEXT = "the quick 🦊 jumps — over ‘the’ lazy dog. END of story"


@pytest.fixture(scope="module")
def checksum(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa"), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def scripted(scripted_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(scripted_package(TEXT), threads=1) as model:
        yield model


def test_scripted_answer_is_text_ids_reason_and_usage(scripted: LLM) -> None:
    result = scripted.generate("x", SamplingParams(temperature=0))

    assert result.text == TEXT
    assert result.finish_reason == "stop"
    assert scripted.tokenizer.decode(list(result.token_ids)) == TEXT
    assert result.usage.prompt_tokens == 1
    assert result.usage.completion_tokens == len(result.token_ids)
    assert result.prompt_token_ids == tuple(scripted.tokenizer.encode("x"))


def test_eos_is_a_token_but_not_text(scripted: LLM) -> None:
    result = scripted.generate("x", SamplingParams(temperature=0))

    assert result.token_ids[-1] == scripted.package.eos_token_ids[0]
    assert "<|" not in result.text


def test_stream_pieces_join_to_the_text_and_never_split_a_character(scripted: LLM) -> None:
    chunks = list(scripted.stream("x", SamplingParams(temperature=0)))

    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert all("�" not in chunk.text for chunk in chunks)
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("stop", ["END", "D of", "🦊", "—", "the’", " lazy dog. E", "q"])
def test_stop_string_ends_the_text_before_it_and_never_leaks(scripted: LLM, stop: str) -> None:
    chunks: list[Chunk] = []
    for chunk in scripted.stream("x", SamplingParams(temperature=0, stop=stop)):
        chunks.append(chunk)
        assert stop not in "".join(each.text for each in chunks)

    assert "".join(chunk.text for chunk in chunks) == TEXT[: TEXT.index(stop)]
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].stop_reason == stop


def test_stop_string_that_only_begins_is_released(scripted: LLM) -> None:
    result = scripted.generate("x", SamplingParams(temperature=0, stop=["storybook", "ENDING"]))

    assert result.text == TEXT


def test_include_stop_keeps_the_match(scripted: LLM) -> None:
    result = scripted.generate("x", SamplingParams(temperature=0, stop=["END"], include_stop=True))

    assert result.text == TEXT[: TEXT.index("END") + 3]


def test_stop_string_that_is_a_special_token_ends_by_its_id(scripted_package: Callable[..., Path]) -> None:
    with LLM(scripted_package([70, 71, 1, 72]), threads=1) as model:
        result = model.generate("x", SamplingParams(temperature=0, stop=["<|im_start|>"]))

    assert result.token_ids == (70, 71, 1)
    assert result.finish_reason == "stop"


def test_stop_token_id_is_named_as_the_reason(scripted_package: Callable[..., Path]) -> None:
    with LLM(scripted_package([70, 71, 72, 73]), threads=1) as model:
        result = model.generate("x", SamplingParams(temperature=0, stop_token_ids=(72,)))

    assert result.token_ids == (70, 71, 72)
    assert result.choices[0].stop_reason == 72


def test_special_tokens_show_only_when_asked(scripted_package: Callable[..., Path]) -> None:
    script = [70, 1, 71]
    with LLM(scripted_package(script), threads=1) as model:
        hidden = model.generate("x", SamplingParams(temperature=0))
        shown = model.generate("x", SamplingParams(temperature=0, skip_special_tokens=False))

        assert hidden.text == model.tokenizer.decode(script)
        assert shown.text == model.tokenizer.decode(script, skip_special_tokens=False)


def test_invalid_bytes_become_replacement_marks_as_in_the_one_shot_decode(
    scripted_package: Callable[..., Path],
) -> None:
    script = [3 + byte for byte in (0x41, 0xC3, 0x28, 0xED, 0xA0, 0x80, 0xF0, 0x9F)]
    with LLM(scripted_package(script), threads=1) as model:
        chunks = list(model.stream("x", SamplingParams(temperature=0)))

        assert "".join(chunk.text for chunk in chunks) == model.tokenizer.decode(script)


def test_package_with_two_eos_ids_ends_at_either(checksum_package: Callable[..., Path]) -> None:
    expected = checksum_generate([1, 2, 3], 6)
    with LLM(checksum_package("gqa", eos=[expected[5], expected[3]]), threads=1) as model:
        result = model.generate([1, 2, 3], SamplingParams(temperature=0))

    assert list(result.token_ids) == expected[: 1 + min(expected.index(expected[3]), expected.index(expected[5]))]


def test_list_in_list_out_keeps_the_order(checksum: LLM) -> None:
    prompts = [[row] for row in range(20)]

    results = checksum.generate(prompts, SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True))

    assert [list(result.token_ids) for result in results] == [checksum_generate(prompt, 3) for prompt in prompts]
    assert checksum.generate([]) == []


def test_arrays_are_prompts(checksum: LLM) -> None:
    params = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)

    assert (
        checksum.generate(np.array([1, 2, 3], dtype=np.int64), params).token_ids
        == checksum.generate(np.array([1, 2, 3], dtype=np.int32), params).token_ids
        == checksum.generate([1, 2, 3], params).token_ids
    )


def test_logprobs_are_the_log_softmax_of_the_raw_logits(checksum: LLM) -> None:
    prompt = [3, 1, 4]
    params = SamplingParams(
        max_new_tokens=4, temperature=0.7, top_k=3, seed=5, logprobs=True, top_logprobs=5, ignore_eos=True
    )

    result = checksum.generate(prompt, params)

    assert result.logprobs is not None
    assert len(result.logprobs) == 4
    history = list(prompt)
    for entry, token in zip(result.logprobs, result.token_ids, strict=True):
        logits = checksum_logits(history).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        assert [top.token_id for top in entry.top] == list(np.argsort(-logits, kind="stable")[:5])
        assert [top.logprob for top in entry.top] == pytest.approx(sorted(expected)[::-1][:5], abs=1e-5)
        history.append(token)


def test_same_seed_same_tokens_other_seed_other_tokens(checksum: LLM) -> None:
    def run(seed: int | None) -> tuple[int, ...]:
        return checksum.generate(
            [9, 9], SamplingParams(max_new_tokens=30, temperature=2.0, seed=seed, ignore_eos=True)
        ).token_ids

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(None) != run(None)


def test_choices_with_one_seed_differ_from_each_other(checksum: LLM) -> None:
    result = checksum.generate([9, 9], SamplingParams(max_new_tokens=30, temperature=2.0, seed=1, n=4, ignore_eos=True))

    assert len({choice.token_ids for choice in result.choices}) == 4


def test_package_defaults_hold_until_overridden(checksum_package: Callable[..., Path]) -> None:
    folder = checksum_package("concat", generation={"do_sample": False})
    with LLM(folder, threads=1) as model:
        greedy = model.generate([1, 2], SamplingParams(max_new_tokens=20, ignore_eos=True))
        sampled = model.generate([1, 2], SamplingParams(max_new_tokens=20, temperature=2.0, seed=1, ignore_eos=True))

    assert list(greedy.token_ids) == checksum_generate([1, 2], 20)
    assert sampled.token_ids != greedy.token_ids


def test_chat_uses_the_template(scripted: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]

    assert scripted.render(messages) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert scripted.chat(messages, SamplingParams(temperature=0)).text == TEXT


def test_metrics_are_those_of_the_guide(checksum: LLM) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    table = guide.split("## Facts and metrics")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]

    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]

    assert sorted(named) == sorted(checksum.metrics())


def test_metrics_and_info_name_what_runs(checksum: LLM) -> None:
    before = checksum.metrics()["num_finished_requests"]
    checksum.generate([1], SamplingParams(max_new_tokens=2, temperature=0))

    info = checksum.info()
    assert info["decoder"] == "paged"
    assert info["execution_provider"] == "cpu"
    assert info["intra_op_threads"] == 1
    assert info["llguidance"] == "c"
    assert math.isfinite(checksum.metrics()["run_seconds"])
    assert checksum.metrics()["num_requests"] >= before + 1
