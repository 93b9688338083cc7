"""Graphs that were exported with KV in blocks of their own: alone, in batches, with shared and lost blocks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from onnx_genai import LLM, SamplingParams, errors
from onnx_genai.graph import CacheStyle, resolve
from onnx_genai.package import read
from tests.models.blocks import BLOCK_VOCAB, BlockGraph, block_generate, write_block_package

pytestmark = pytest.mark.boundary

NEW = 20
GREEDY = SamplingParams(max_new_tokens=NEW, temperature=0, ignore_eos=True)
PROMPTS = [
    [(5 * row + 3 * column) % BLOCK_VOCAB for column in range(size)] for row, size in enumerate((1, 3, 4, 9, 30))
]
GRAPHS = {
    "rows": BlockGraph(),
    "rows, float16": BlockGraph(dtype="float16"),
    "all tokens": BlockGraph(logits="tokens"),
    "picked": BlockGraph(logits="picked"),
    "positions": BlockGraph(positions=True),
    "metadata": BlockGraph(checks_metadata=True),
    "open sizes": BlockGraph(num_blocks=None, block_size=None),
}


@pytest.fixture(scope="module", params=sorted(GRAPHS))
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_block_package(tmp_path_factory.mktemp("blocks") / "model", GRAPHS[request.param])
    with LLM(folder, threads=1) as model:
        yield model


def test_prompts_alone_and_together_give_the_oracle_ids(llm: LLM) -> None:
    expected = [block_generate(prompt, NEW) for prompt in PROMPTS]

    assert [list(llm.generate(prompt, GREEDY).token_ids) for prompt in PROMPTS] == expected
    assert [list(result.token_ids) for result in llm.generate(PROMPTS, GREEDY)] == expected


def test_requests_that_come_and_go_do_not_change_each_other(llm: LLM) -> None:
    def one(row: int) -> list[int]:
        prompt = PROMPTS[row % len(PROMPTS)]
        params = SamplingParams(max_new_tokens=2 + row % 9, temperature=0, ignore_eos=True)
        return list(llm.generate(prompt, params).token_ids)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(one, range(40)))

    assert found == [block_generate(PROMPTS[row % len(PROMPTS)], 2 + row % 9) for row in range(40)]


def test_blocks_of_a_prefix_are_shared_and_copied_on_write(llm: LLM) -> None:
    prompt = [7, *PROMPTS[4]]
    llm.generate(prompt, GREEDY)

    again = llm.generate(prompt, GREEDY)
    forked = llm.generate(prompt, SamplingParams(max_new_tokens=6, n=3, temperature=1.0, seed=5, ignore_eos=True))

    assert again.usage.cached_tokens >= 16
    assert list(again.token_ids) == block_generate(prompt, NEW)
    assert [list(choice.token_ids) for choice in forked.choices] == [
        list(choice.token_ids)
        for choice in llm.generate(
            prompt, SamplingParams(max_new_tokens=6, n=3, temperature=1.0, seed=5, ignore_eos=True)
        ).choices
    ]


def test_more_sequences_than_blocks_wait_or_are_computed_anew(tmp_path: Path) -> None:
    folder = write_block_package(tmp_path / "model", BlockGraph(num_blocks=16))
    prompts = [[row, *PROMPTS[3]] for row in range(8)]

    with LLM(folder, threads=1) as model:
        results = model.generate(prompts, GREEDY)

    assert [list(result.token_ids) for result in results] == [block_generate(prompt, NEW) for prompt in prompts]


def test_end_token_stops(tmp_path: Path) -> None:
    ids = block_generate([5, 6], 12)
    eos = ids[7]
    folder = write_block_package(tmp_path / "model", BlockGraph(), eos=eos)

    with LLM(folder, threads=1) as model:
        result = model.generate([5, 6], SamplingParams(max_new_tokens=12, temperature=0))

    assert list(result.token_ids) == ids[: ids.index(eos) + 1]
    assert result.finish_reason == "stop"


def test_contract_names_what_the_graph_has(tmp_path: Path) -> None:
    contract = resolve(read(write_block_package(tmp_path / "model", BlockGraph())))

    assert contract.cache is CacheStyle.PAGED
    assert (contract.num_blocks, contract.block_size, contract.logits_of_rows) == (64, 4, True)
    (layer,) = contract.paged_layers
    assert (layer.kv_heads, layer.head_dim, layer.value_dim) == (2, 3, 3)
    assert (layer.key_cache, layer.key_present) == ("past_key_values.0.key", "present.0.key")


def test_choices_that_the_graph_does_not_have_are_refused(tmp_path: Path) -> None:
    package = read(write_block_package(tmp_path / "model", BlockGraph()))

    with pytest.raises(errors.UnsupportedError, match="decoder is 'copy', but the graph runs as 'paged' only"):
        resolve(package, decoder="copy")
    with pytest.raises(errors.UnsupportedError, match="kv_dtype is 'int8', but the graph keeps blocks of float32"):
        resolve(package, kv_dtype="int8")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        ("present", errors.PackageError, "no output goes on with the KV input past_key_values.0.value"),
        ("rank", errors.UnsupportedError, r"input input_ids \(token ids\) has the shape \[batch, num_tokens\]"),
        ("extra", errors.PackageError, "input strange .* has no known role"),
        ("logits", errors.UnsupportedError, r"output logits has the shape \[a, b, c\]"),
        ("caches", errors.UnsupportedError, "2 different numbers or sizes of blocks"),
    ],
)
def test_broken_graphs_are_refused(spoil: str, kind: type[Exception], words: str, tmp_path: Path) -> None:
    folder = write_block_package(tmp_path / "model", BlockGraph())
    model = onnx.load(folder / "decoder.onnx")
    graph = model.graph
    if spoil == "present":
        del graph.output[2]
    elif spoil == "rank":
        graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("input_ids", 7, ["batch", "num_tokens"]))
    elif spoil == "extra":
        graph.input.append(onnx.helper.make_tensor_value_info("strange", 1, [2]))
    elif spoil == "logits":
        graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("logits", 1, ["a", "b", "c"]))
    else:
        graph.input[6].CopyFrom(onnx.helper.make_tensor_value_info("past_key_values.0.value", 1, [32, 4, 2, 3]))
    onnx.save(model, folder / "decoder.onnx")

    with pytest.raises(kind, match=words):
        resolve(read(folder))
