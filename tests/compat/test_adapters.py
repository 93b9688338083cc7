"""LoRA adapters through compat, against onnxruntime that is given the same tensors token by token."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from tests.compat.calls import generator
from tests.graph.tiny import save
from tests.graph.tiny_attention import VOCAB, Tiny, build
from tests.models.lora import Adapter, Greedy, Stepper, add_lora, draw_adapter, merge, write_adapter

pytestmark = pytest.mark.boundary

TARGETS = ("wq.0", "wv.0", "wo.1")
PROMPT = [(5 * place + 2) % VOCAB for place in range(19)]
MORE = [3, 1, 4, 1, 5]


@dataclass(frozen=True)
class Case:
    model: og.Model
    adapters: og.Adapters
    graph: onnx.ModelProto
    tensors: dict[str, Adapter]
    files: dict[str, Path]

    def stepper(self) -> Stepper:
        return Stepper(add_lora(self.graph, TARGETS))

    def generator(self, **options: int) -> og.Generator:
        return generator(self.model, max_length=48, **options)


@pytest.fixture(scope="module", params=["gqa", "static"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("adapters")
    graph = build(Tiny(form=request.param, attributes={"is_causal": 1} if request.param == "static" else {}))
    tensors = {name: draw_adapter(graph, TARGETS, seed) for name, seed in (("red", 1), ("blue", 2))}
    files = {name: write_adapter(folder / f"{name}.onnx_adapter", tensors[name]) for name in tensors}
    with og.Model(str(save(add_lora(graph, TARGETS), folder / "model"))) as model:
        adapters = og.Adapters(model)
        for name, file in files.items():
            adapters.load(str(file), name)
        yield Case(model, adapters, graph, tensors, files)


def taken(made: og.Generator, count: int) -> list[int]:
    """The next tokens."""
    tokens = []
    for _ in range(count):
        made.generate_next_token()
        tokens.append(int(made.get_next_tokens()[0]))
    return tokens


def test_adapter_that_is_active_before_the_prompt_equals_merged_weights(case: Case) -> None:
    for name in ("red", "blue"):
        made = case.generator()
        made.set_active_adapter(case.adapters, name)
        made.append_tokens(PROMPT)

        expected = Greedy(merge(case.graph, case.tensors[name])).generate(PROMPT, 12)
        assert taken(made, 12) == expected


def test_generators_with_different_adapters_do_not_change_each_other(case: Case) -> None:
    names = (None, "red", "blue")
    made = {name: case.generator() for name in names}
    for name, each in made.items():
        if name is not None:
            each.set_active_adapter(case.adapters, name)
        each.append_tokens(PROMPT)
    found: dict[str | None, list[int]] = {name: [] for name in names}
    for _ in range(8):
        for name, each in made.items():
            found[name] += taken(each, 1)

    for name in names:
        graph = case.graph if name is None else merge(case.graph, case.tensors[name])
        assert found[name] == Greedy(graph).generate(PROMPT, 8), name


def test_rows_of_a_batch_run_with_the_adapter(case: Case) -> None:
    rows = [PROMPT[:4], PROMPT[2:11]]
    made = case.generator(batch_size=2)
    made.set_active_adapter(case.adapters, "red")
    made.append_tokens(rows)
    found: list[list[int]] = [[], []]
    for _ in range(6):
        made.generate_next_token()
        for row, token in enumerate(made.get_next_tokens()):
            found[row].append(int(token))

    merged = Greedy(merge(case.graph, case.tensors["red"]))
    assert found == [merged.generate(row, 6) for row in rows]


def test_logits_are_those_of_the_adapter(case: Case) -> None:
    made = case.generator()
    made.set_active_adapter(case.adapters, "red")
    made.append_tokens(PROMPT)

    expected = Greedy(merge(case.graph, case.tensors["red"])).logits(PROMPT)
    near = 256 * np.finfo(np.float32).eps * np.abs(expected).max()  # sums of at most 64 terms, in five products
    np.testing.assert_allclose(made.get_logits()[0, 0], expected, rtol=0, atol=near)


def test_what_has_run_stays_when_the_adapter_changes(case: Case) -> None:
    if case.graph.graph.input[1].name != "attention_mask":
        pytest.skip("the reference goes on with KV that grows")
    made = case.generator()
    made.append_tokens(PROMPT)
    made.set_active_adapter(case.adapters, "red")
    found = taken(made, 4)
    made.set_active_adapter(case.adapters, "blue")
    found += taken(made, 3)
    made.append_tokens(MORE)
    found += taken(made, 3)

    reference = case.stepper()
    expected = [reference.run(PROMPT)]
    for _ in range(3):
        expected.append(reference.run(expected[-1:], case.tensors["red"]))
    for _ in range(3):
        expected.append(reference.run(expected[-1:], case.tensors["blue"]))
    last = reference.run([expected[-1], *MORE], case.tensors["blue"])
    expected.append(last)
    for _ in range(2):
        expected.append(reference.run(expected[-1:], case.tensors["blue"]))
    assert found == expected


def test_rewind_keeps_what_ran_before_and_the_adapter_that_is_active(case: Case) -> None:
    if case.graph.graph.input[1].name != "attention_mask":
        pytest.skip("the reference goes on with KV that grows")
    made = case.generator()
    made.append_tokens(PROMPT)
    made.set_active_adapter(case.adapters, "red")
    taken(made, 5)
    made.rewind_to(10)
    made.append_tokens(MORE)
    found = taken(made, 4)

    reference = case.stepper()
    reference.run(PROMPT[:10])
    expected = [reference.run(MORE, case.tensors["red"])]
    for _ in range(3):
        expected.append(reference.run(expected[-1:], case.tensors["red"]))
    assert found == expected


def test_prompt_of_early_versions_runs_with_the_adapter_that_is_set_behind_it(case: Case) -> None:
    params = og.GeneratorParams(case.model)
    params.set_search_options(max_length=48)
    params.input_ids = np.array([PROMPT], dtype=np.int32)
    made = og.Generator(case.model, params)
    made.set_active_adapter(case.adapters, "blue")

    assert taken(made, 6) == Greedy(merge(case.graph, case.tensors["blue"])).generate(PROMPT, 6)


def test_adapter_in_use_cannot_be_unloaded(case: Case) -> None:
    adapters = og.Adapters(case.model)
    adapters.load(str(case.files["red"]), "own")
    made = case.generator()
    made.set_active_adapter(adapters, "own")

    with pytest.raises(errors.InvalidArgumentError, match="'own' is still in use: it was activated in 1 generator;"):
        adapters.unload("own")

    del made
    gc.collect()
    adapters.unload("own")
    with pytest.raises(errors.NotFoundError, match="no adapter 'own'"):
        adapters.unload("own")


def test_wrong_calls_are_refused(case: Case, tmp_path: Path) -> None:
    made = case.generator()
    with pytest.raises(errors.NotFoundError, match="no adapter 'green'; loaded are: red, blue"):
        made.set_active_adapter(case.adapters, "green")
    with pytest.raises(errors.InvalidArgumentError, match="NoneType; allowed: Adapters"):
        made.set_active_adapter(None, "red")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgumentError, match="model is str"):
        og.Adapters("model")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgumentError, match="'red' is loaded already"):
        case.adapters.load(str(case.files["red"]), "red")
    with pytest.raises(errors.NotFoundError, match="no such adapter file"):
        case.adapters.load(str(tmp_path / "missing"), "x")
    made.set_active_adapter(case.adapters, "red")
    others = og.Adapters(case.model)
    others.load(str(case.files["red"]), "red")
    with pytest.raises(errors.InvalidArgumentError, match="another Adapters object"):
        made.set_active_adapter(others, "red")
