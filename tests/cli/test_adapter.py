"""``onnx-genai generate --adapter``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.graph.tiny_attention import VOCAB, Tiny, build
from tests.models.lora import Greedy, add_lora, draw_adapter, merge, write_adapter
from tests.models.packages import scripted_facts, write_package
from tests.models.texts import word_level_tokenizer

TARGETS = ("wq.0", "wv.1", "wo.0")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package and an adapter."""
    folder = tmp_path_factory.mktemp("adapter")
    graph = build(Tiny(form="gqa"))
    facts = replace(scripted_facts(word_level_tokenizer(VOCAB), VOCAB, 256), eos=VOCAB + 1, chat_template=None)
    package = write_package(folder / "model", add_lora(graph, TARGETS), facts, "optimum")
    return package, write_adapter(folder / "a.onnx_adapter", draw_adapter(graph, TARGETS, 1))


def words(ids: list[int]) -> list[str]:
    return word_level_tokenizer(VOCAB).decode(ids, skip_special_tokens=True).split()


def test_answer_with_an_adapter_is_that_of_merged_weights(run: Run, files: tuple[Path, Path]) -> None:
    package, adapter = files
    graph = build(Tiny(form="gqa"))
    ask = ["generate", package, "-p", "w5 w9 w4", "--max-new-tokens", "6", "--no-stats"]

    plain, changed = run(*ask), run(*ask, "--adapter", adapter)

    assert (plain.code, changed.code) == (0, 0), changed.err
    assert plain.out.split() == words(Greedy(graph).generate([5, 9, 4], 6))
    assert changed.out.split() == words(Greedy(merge(graph, draw_adapter(graph, TARGETS, 1))).generate([5, 9, 4], 6))


def test_session_goes_on_with_its_adapter_only(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    package, adapter = files
    merged = Greedy(merge(build(Tiny(form="gqa")), draw_adapter(build(Tiny(form="gqa")), TARGETS, 1)))
    ask = ["generate", package, "-p", "w5 w9 w4", "--max-new-tokens", "6", "--no-stats"]
    ask += ["--session", tmp_path / "a.session"]

    first, second, other = run(*ask, "--adapter", adapter), run(*ask, "--adapter", adapter), run(*ask)

    start = merged.generate([5, 9, 4], 6)
    assert first.out.split() == words(start)
    assert second.out.split() == words(merged.generate([5, 9, 4, *start, 5, 9, 4], 6))
    assert other.code != 0
    assert "adapter is " in other.err


def test_adapter_and_batch_exclude_each_other(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    package, adapter = files
    (tmp_path / "a.jsonl").write_text('{"prompt": "w5"}\n', encoding="utf-8")

    ran = run("generate", package, "--batch", tmp_path / "a.jsonl", "--adapter", adapter)

    assert ran.code == 2
    assert "--adapter and --batch exclude each other" in ran.err
