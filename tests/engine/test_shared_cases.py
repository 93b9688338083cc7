"""Single-graph language models that others made, with the values that they state.

The values of the tiny packages come from their authors' tests and from plain ONNX Runtime loops; those of the gpt2 and
qwen graphs from onnxruntime-genai's own tests and runs. Greedy, ties to the lowest id, EOS does not end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_genai import LLM, SamplingParams, errors

TINY_LLM = {
    (2, 4, 3): [22, 22, 20, 3, 13, 29, 11, 15],
    (2, 4, 5, 3): [5, 23, 30, 30, 12, 22, 25, 23],
    (3, 26, 11): [22, 22, 20, 3],
    (3, 26, 11, 9, 29, 3): [8, 13, 29, 11],
    (4, 5): [11, 22, 22, 20],
    (6, 7, 8): [22, 22, 20, 1],
    (1, 2, 3): [22, 22, 20, 3],
}
TINY_SCATTER = {
    (2, 4, 3): [23, 15, 28, 0, 24, 15, 28, 0],
    (2, 4, 5, 3): [23, 15, 28, 0, 24, 15, 28, 0],
    (3, 26, 11): [11, 11, 11, 11],
    (3, 26, 11, 9, 29, 3): [23, 15, 28, 0],
    (4, 5): [14, 5, 14, 5],
    (6, 7, 8): [1, 8, 1, 8],
    (1, 2, 3): [23, 15, 28, 0],
}
GPT2 = {
    (0, 0, 0, 52): [204, 204, 204, 204, 204, 204],
    (0, 0, 195, 731): [731, 114, 114, 114, 114, 114],
}
QWEN = {(10, 20, 30, 40): [231, 970, 539, 144, 127, 760, 952, 16, 914, 496, 291, 560, 365, 365]}
PACKAGES = {
    "packages/tiny-llm": TINY_LLM,
    "packages/tiny-llm-explicit-io": TINY_LLM,
    "packages/tiny-llm-sharedbuffer": TINY_LLM,
    "packages/tiny-llm-scatter": TINY_SCATTER,
    "packages/tiny-native-engine": {(0,): [1, 1, 1]},
    "packages/tiny-native-cuda-engine": {(0,): [1] * 16},
    "packages/tiny-mtp-full": {(2, 4, 3): [0, 17, 1, 19, 24, 16, 23, 27]},
    "packages/tiny-gemma4-assistant": {(2, 4, 5, 3): [6, 22, 24, 2, 7, 30, 5, 2]},
    "ort-genai/models/hf-internal-testing/tiny-random-gpt2-fp32": GPT2,
    "ort-genai/models/hf-internal-testing/tiny-qwen35-cuda": QWEN,
}


def open_case(folder: Path) -> LLM:
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    return LLM(folder, threads=1)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("name", PACKAGES)
def test_each_prompt_gives_the_stated_ids(name: str, shared_cases: Path) -> None:
    with open_case(shared_cases / name) as model:
        for prompt, expected in PACKAGES[name].items():
            assert list(model.generate(list(prompt), greedy(len(expected))).token_ids) == expected


@pytest.mark.parametrize("name", PACKAGES)
def test_all_prompts_together_give_the_stated_ids(name: str, shared_cases: Path) -> None:
    expected = PACKAGES[name]
    with open_case(shared_cases / name) as model:
        results = model.generate([list(prompt) for prompt in expected], [greedy(len(ids)) for ids in expected.values()])

    assert [list(result.token_ids) for result in results] == list(expected.values())


def test_eos_of_the_package_ends_the_sequence(shared_cases: Path) -> None:
    with open_case(shared_cases / "packages" / "tiny-llm") as model:
        result = model.generate("hello", SamplingParams(max_new_tokens=8, temperature=0))

    assert result.token_ids == (22, 22, 20, 3)
    assert result.finish_reason == "stop"


def test_context_of_the_package_ends_the_sequence(shared_cases: Path) -> None:
    with open_case(shared_cases / "packages" / "tiny-llm") as model:
        result = model.generate([2, 4, 3], greedy(32))

    assert len(result.token_ids) == 13
    assert result.finish_reason == "length"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("tiny-native-sub4-engine", errors.UnsupportedError, "BlockQuantizedMatMul"),
        ("tiny-glm52-qmoe-indexshare", errors.UnsupportedError, "IndexShare"),
        ("tiny-whisper", errors.UnsupportedError, "pipeline"),
        ("tiny-tts", errors.UnsupportedError, "pipeline"),
        ("tiny-diffusion", errors.UnsupportedError, "pipeline"),
    ],
)
def test_what_cannot_run_yet_is_refused_by_kind(
    name: str, error: type[Exception], words: str, shared_cases: Path
) -> None:
    with pytest.raises(error, match=words):
        open_case(shared_cases / "packages" / name)


def test_graph_that_loads_but_cannot_run_says_so(shared_cases: Path) -> None:
    folder = shared_cases / "packages" / "tiny-native-scalar-gqa"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    with pytest.raises(errors.GenAIError, match=r"head_size|multiple of 8"), LLM(folder, threads=1) as model:
        model.generate([0], greedy(2))
