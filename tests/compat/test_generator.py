"""Generation with the compat names on the checksum model, whose tokens are known for every context."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from tests.compat.calls import generator, sequences
from tests.models.checksum import EOS, VOCAB_SIZE, checksum_generate, checksum_logits

pytestmark = pytest.mark.boundary

PAD = 0
"""The package's pad id, which is also its end id."""


def answer(prompt: list[int], count: int) -> list[int]:
    """What the model says, up to its end token."""
    ids = checksum_generate(prompt, count)
    return ids[: ids.index(EOS)] if EOS in ids else ids


@pytest.fixture(scope="module")
def model(checksum_package: Callable[..., Path]) -> Iterator[og.Model]:
    with og.Model(str(checksum_package("gqa"))) as loaded:
        yield loaded


@pytest.fixture(scope="module", params=["gqa", "concat", "packed", "static"])
def any_model(request: pytest.FixtureRequest, checksum_package: Callable[..., Path]) -> Iterator[og.Model]:
    with og.Model(str(checksum_package(request.param))) as loaded:
        yield loaded


def test_loop_of_an_example_script(any_model: og.Model) -> None:
    params = og.GeneratorParams(any_model)
    params.set_search_options(max_length=40)
    made = og.Generator(any_model, params)
    made.append_tokens(np.array([1, 2, 3], dtype=np.int32))
    tokens = []
    while not made.is_done():
        made.generate_next_token()
        tokens.append(int(made.get_next_tokens()[0]))

    assert tokens == checksum_generate([1, 2, 3], 37)
    assert made.get_sequence(0).tolist() == [1, 2, 3, *tokens]
    assert made.get_sequence(0).dtype == np.int32
    assert made.token_count() == 40


def test_turns_append_to_what_was_generated(model: og.Model) -> None:
    made = generator(model, max_length=40)
    made.append_tokens([5, 6])
    for _ in range(7):
        made.generate_next_token()
    context = made.get_sequence(0).tolist()
    made.append_tokens([9, 8])
    made.generate_next_token()

    assert context == [5, 6, *checksum_generate([5, 6], 7)]
    assert made.get_sequence(0).tolist() == [*context, 9, 8, *checksum_generate([*context, 9, 8], 1)]


@pytest.mark.parametrize("length", range(10))
def test_rewind_to_any_length_equals_a_fresh_start(length: int, model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=40)
    made.append_tokens([[5, 6, 7], [8, 9, 10]])
    for _ in range(6):
        made.generate_next_token()
    rows = [made.get_sequence(row).tolist()[:length] for row in range(2)]

    made.rewind_to(length)
    made.append_tokens([[11, 12], [13, 14]])
    made.generate_next_token()

    for row, tail in enumerate(([11, 12], [13, 14])):
        context = rows[row] + tail
        assert made.get_sequence(row).tolist() == [*context, *checksum_generate(context, 1)]
    assert made.token_count() == length + 3


def test_rewind_then_generate_without_append(model: og.Model) -> None:
    made = generator(model, max_length=30)
    made.append_tokens([5, 6, 7])
    for _ in range(6):
        made.generate_next_token()
    before = made.get_sequence(0).tolist()

    made.rewind_to(5)

    assert made.get_sequence(0).tolist() == before[:5]
    made.generate_next_token()
    assert made.get_sequence(0).tolist() == before[:6]


def test_rows_of_a_list_may_differ_in_length(model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=10)
    made.append_tokens([[5], [6, 7, 8]])

    assert sequences(made) == [[5, *checksum_generate([5], 7)], [6, 7, 8, *checksum_generate([6, 7, 8], 7)]]


def finds_end(count: int) -> tuple[list[int], int]:
    """A prompt that ends after some tokens, and after how many."""
    for first in range(3, VOCAB_SIZE):
        ids = checksum_generate([first, 4], count)
        if EOS in ids[1:-2]:
            return [first, 4], ids.index(EOS)
    raise AssertionError("no prompt ends")


def test_first_of_equal_tokens_is_taken(table_package: Callable[..., Path]) -> None:
    """Which LLM takes for a fault of the model."""
    with og.Model(str(table_package(np.zeros((8, 8), dtype=np.float32)))) as stub:
        made = generator(stub, max_length=5)
        made.append_tokens([3])
        made.generate_next_token()

        assert made.get_next_tokens().tolist() == [0]


def test_end_token_is_reported_and_not_kept(model: og.Model) -> None:
    prompt, steps = finds_end(30)
    made = generator(model, max_length=100)
    made.append_tokens(prompt)
    count = 0
    while not made.is_done():
        made.generate_next_token()
        count += 1

    assert count == steps + 1
    assert made.get_next_tokens().tolist() == [EOS]
    assert made.get_sequence(0).tolist() == [*prompt, *checksum_generate(prompt, steps)]
    with pytest.raises(errors.InvalidArgumentError, match="generation is done"):
        made.generate_next_token()


def test_row_that_ended_emits_padding_until_all_have(model: og.Model) -> None:
    prompt, steps = finds_end(20)
    made = generator(model, batch_size=2, max_length=2 + steps + 4)
    made.append_tokens([prompt, [5, 6]])
    last = []
    while not made.is_done():
        made.generate_next_token()
        last.append(int(made.get_next_tokens()[0]))

    assert last[steps:] == [EOS, PAD, PAD, PAD]
    assert made.get_sequence(0).tolist() == [*prompt, *checksum_generate(prompt, steps), EOS, PAD, PAD, PAD]
    assert made.get_sequence(1).tolist() == [5, 6, *checksum_generate([5, 6], steps + 4)]
    made.rewind_to(2 + steps)
    made.generate_next_token()
    assert made.get_next_tokens()[0] == EOS


def test_min_length_bans_the_end_with_own_logits_and_without(model: og.Model) -> None:
    prompt, steps = finds_end(20)
    ends = len(prompt) + steps
    found = []
    for sets in (False, True):
        made = generator(model, max_length=ends + 3, min_length=ends + 1)
        made.append_tokens(prompt)
        for _ in range(steps + 1):
            if sets:
                made.set_logits(made.get_logits())
            made.generate_next_token()
        found.append(made.get_sequence(0).tolist())

    assert found[0] == found[1]
    assert found[0][ends] == np.argsort(-checksum_logits(found[0][:ends]))[1]


def test_logits_are_those_of_the_next_token(model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=10, repetition_penalty=2.0)
    made.append_tokens([[5], [6, 7]])

    logits = made.get_logits()

    assert logits.shape == (2, 1, VOCAB_SIZE)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[:, 0], [checksum_logits([5]), checksum_logits([6, 7])])
    assert made.token_count() == 2


def test_set_logits_decide_and_count_once(model: og.Model) -> None:
    made = generator(model, max_length=10)
    made.append_tokens([5, 6])
    logits = np.zeros((1, 1, VOCAB_SIZE), dtype=np.float32)
    logits[..., 33] = 9
    made.set_logits(logits)
    assert made.get_logits().argmax() == 33

    made.generate_next_token()
    made.generate_next_token()

    assert made.get_sequence(0).tolist() == [5, 6, 33, *checksum_generate([5, 6, 33], 1)]


def test_draws_follow_the_seed(model: og.Model) -> None:
    def drawn(seed: int, rows: int = 1) -> list[list[int]]:
        made = generator(
            model, do_sample=True, top_k=0, temperature=5.0, max_length=24, random_seed=seed, batch_size=rows
        )
        made.append_tokens([[5, 6]] * rows)
        return sequences(made)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(-1) != drawn(-1)
    first, second = drawn(3, rows=2)
    assert first != second


def test_draws_of_one_step_differ_from_step_to_step(model: og.Model) -> None:
    made = generator(model, do_sample=True, top_k=0, max_length=101, min_length=101, random_seed=7)
    made.append_tokens([5])
    flat = np.arange(VOCAB_SIZE, dtype=np.float32).reshape(1, 1, -1) * 1e-6
    while not made.is_done():
        made.set_logits(flat)
        made.generate_next_token()

    assert len(set(made.get_sequence(0).tolist())) > 40


def test_beams_go_step_by_step_and_are_ranked(model: og.Model) -> None:
    from onnx_genai import LLM, SamplingParams

    made = generator(model, batch_size=2, num_beams=4, num_return_sequences=2, max_length=8)
    made.append_tokens([[5, 6], [7, 8]])
    with LLM(model.package.root) as llm:
        for step in range(1, 7):
            assert not made.is_done()
            made.generate_next_token()
            if step in (1, 3):
                params = SamplingParams(max_new_tokens=step, num_beams=4, n=4, early_stopping=True)
                found = [llm.generate(prompt, params).choices for prompt in ([5, 6], [7, 8])]
                last = [choice.token_ids[-1] for choices in found for choice in choices]
                assert made.get_next_tokens().tolist() == last
                assert made.token_count() == 2 + step
        assert made.is_done()

        params = SamplingParams(max_new_tokens=6, num_beams=4, n=2, early_stopping=True)
        for row, prompt in enumerate([[5, 6], [7, 8]]):
            for rank, choice in enumerate(llm.generate(prompt, params).choices):
                ids = [token for token in choice.token_ids if token != EOS]
                assert made.get_sequence(2 * row + rank).tolist() == [*prompt, *ids]
    assert made.get_next_tokens().shape == (4,)
    with pytest.raises(errors.InvalidArgumentError, match="over"):
        made.get_logits()
    made.rewind_to(2)
    assert not made.is_done()
    assert made.token_count() == 2


@pytest.mark.parametrize("call", ["set_logits", "get_output"])
def test_other_logits_of_beams_are_refused(call: str, model: og.Model) -> None:
    made = generator(model, num_beams=2, max_length=8)
    made.append_tokens([5])
    with pytest.raises(errors.UnsupportedError, match="beam"):
        getattr(made, call)("logits")


def test_logits_of_beams_are_those_of_their_contexts(model: og.Model) -> None:
    made = generator(model, batch_size=2, num_beams=2, num_return_sequences=2, max_length=8)
    made.append_tokens([[5, 6], [7, 8]])
    first = made.get_logits()[:, 0, :VOCAB_SIZE]
    made.generate_next_token()
    second = made.get_logits()[:, 0, :VOCAB_SIZE]

    for beam in range(4):
        prompt = [[5, 6], [7, 8]][beam // 2]
        np.testing.assert_array_equal(first[beam], checksum_logits(prompt))
        np.testing.assert_array_equal(second[beam], checksum_logits(made.get_sequence(beam).tolist()))


def test_output_and_input_of_the_last_run(model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=20)
    made.append_tokens(np.array([[5, 6, 7], [PAD, PAD, 8]]))

    prompt = made.get_output("logits")

    assert prompt.shape == (2, 3, VOCAB_SIZE)
    np.testing.assert_allclose(prompt[0], [checksum_logits([5]), checksum_logits([5, 6]), checksum_logits([5, 6, 7])])
    assert not prompt[1, :2].any()
    np.testing.assert_allclose(prompt[1, 2], checksum_logits([8]))
    assert made.get_input("input_ids").tolist() == [[5, 6, 7], [PAD, PAD, 8]]
    made.generate_next_token()
    made.generate_next_token()
    first = checksum_generate([8], 1)
    np.testing.assert_allclose(made.get_output("logits")[1], [checksum_logits([8, *first])])
    with pytest.raises(errors.UnsupportedError, match="only logits"):
        made.get_output("present.0.key")


def test_defaults_are_those_of_the_package(checksum_package: Callable[..., Path]) -> None:
    folder = checksum_package("gqa", generation={"temperature": 0.5, "top_k": 7, "num_beams": 3, "max_length": 10**6})
    with og.Model(str(folder)) as loaded:
        options = og.GeneratorParams(loaded).get_search_options()

    assert (options["temperature"], options["top_k"], options["num_beams"]) == (0.5, 7, 3)
    assert options["max_length"] == 4096
    assert options["early_stopping"] is True


def test_package_of_another_format_opens(checksum_package: Callable[..., Path]) -> None:
    folder = checksum_package("concat", generation={"do_sample": True, "top_p": 0.5})
    with og.Model(str(folder)) as loaded:
        options = og.GeneratorParams(loaded).get_search_options()
        made = generator(loaded, max_length=9, do_sample=False)
        made.append_tokens([5])
        assert sequences(made) == [[5, *checksum_generate([5], 8)]]

    assert (options["do_sample"], options["top_p"]) == (True, 0.5)
    with pytest.raises(errors.UnsupportedError, match="nothing to merge"):
        og.Config(str(folder)).overlay("{}")


def test_calls_of_early_versions_warn_and_work(model: og.Model) -> None:
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=8)
    params.input_ids = [5, 6]
    with pytest.warns(DeprecationWarning, match="early versions"):
        rows = model.generate(params)
    made = og.Generator(model, params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.compute_logits()
    made.generate_next_token()

    assert [row.tolist() for row in rows] == [[5, 6, *checksum_generate([5, 6], 6)]]
    assert made.get_sequence(0).tolist() == [5, 6, *checksum_generate([5, 6], 1)]


def test_named_inputs_are_appended(model: og.Model) -> None:
    inputs = og.NamedTensors()
    inputs["input_ids"] = np.array([[5, 6]])
    made = generator(model, max_length=8)
    made.set_inputs(inputs)
    made.generate_next_token()
    assert made.get_sequence(0).tolist() == [5, 6, *checksum_generate([5, 6], 1)]

    inputs["pixel_values"] = np.zeros(3)
    with pytest.raises(errors.UnsupportedError, match="pixel_values"):
        made.set_inputs(inputs)


def test_generator_that_is_dropped_early_frees_its_request(model: og.Model) -> None:
    made = generator(model, max_length=4000)
    made.append_tokens([5, 6])
    for _ in range(20):
        made.generate_next_token()
    del made

    assert model.engine.metrics()["num_waiting"] == 0


def test_module_functions() -> None:
    assert og.is_cuda_available() in (True, False)
    assert og.get_current_gpu_device_id() == 0
    og.set_current_gpu_device_id(0)
    og.set_log_options(enabled=True, model_logits=False, filename="a.log")
    og.set_log_callback(None)
    og.disable_telemetry_events()
    with pytest.raises(errors.InvalidArgumentError, match="bogus is no log option"):
        og.set_log_options(bogus=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, {"do_sample": True}])
def test_logits_that_leave_no_choice_are_refused(value: float, options: dict[str, Any], model: og.Model) -> None:
    made = generator(model, max_length=8, **options)
    made.append_tokens([5])
    made.set_logits(np.full((1, 1, VOCAB_SIZE), value, dtype=np.float32))
    with pytest.raises(errors.GenAIError):
        made.generate_next_token()

    made.rewind_to(1)
    made.generate_next_token()
    assert made.token_count() == 2


def test_token_of_own_logits_is_the_same_greedy_or_nearly_so(model: og.Model) -> None:
    """Greedy choices are made here, draws in the engine: a temperature near 0 must agree."""
    found = []
    for options in ({}, {"do_sample": True, "temperature": 1e-6, "top_k": 0}):
        made = generator(model, max_length=14, repetition_penalty=1.5, no_repeat_ngram_size=2, min_length=14, **options)
        made.append_tokens([5, 6, 5])
        logits = np.random.default_rng(3).normal(size=(1, 1, VOCAB_SIZE)).astype(np.float32)
        while not made.is_done():
            made.set_logits(logits)
            made.generate_next_token()
        found.append(made.get_sequence(0).tolist())

    assert found[0] == found[1]
    assert len(found[0]) == 14


def test_rows_stay_together_after_an_interrupt(model: og.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_genai.engine import Generation

    made = generator(model, batch_size=3, max_length=20)
    made.append_tokens([[5], [6], [7]])
    made.generate_next_token()
    submit_all = model.engine.submit_all

    def interrupted(*args: Any) -> list[Generation]:
        def poll(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        started = submit_all(*args)
        monkeypatch.setattr(started[1], "poll", poll)
        return started

    monkeypatch.setattr(model.engine, "submit_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.generate_next_token()
    monkeypatch.undo()

    assert made.token_count() == 2
    assert sequences(made) == [[first, *checksum_generate([first], 19)] for first in (5, 6, 7)]


def test_closed_model_says_so(checksum_package: Callable[..., Path]) -> None:
    with og.Model(str(checksum_package("gqa"))) as loaded:
        made = generator(loaded, max_length=20)
        made.append_tokens([5])
    with pytest.raises(errors.AbortedError):
        made.generate_next_token()


def test_generators_in_several_threads_share_a_model(model: og.Model) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def run(first: int) -> list[int]:
        made = generator(model, max_length=60)
        made.append_tokens([first, 4])
        return sequences(made)[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(3, 15)))

    assert found == [[first, 4, *answer([first, 4], 58)] for first in range(3, 15)]
