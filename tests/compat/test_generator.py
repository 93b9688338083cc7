"""Generation with the compat names on the checksum model, whose tokens are known for every context."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", ["array", "mask", "list_with_mask", "tensor"])
def test_padded_rows_equal_rows_alone(side: str, how: str, model: og.Model) -> None:
    prompts = [[7], [5, 6, 7], [9, 8, 7, 6, 5]]
    width = 5
    ids = np.full((3, width), PAD, dtype=np.int64)
    mask = np.zeros((3, width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        place = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[row, place], mask[row, place] = prompt, 1
    made = generator(model, batch_size=3, max_length=20)
    given: Any = {"list_with_mask": ids.tolist(), "tensor": og.Tensor(ids)}.get(how, ids)
    made.append_tokens(given, attention_mask=mask if "mask" in how else None)

    found = sequences(made)

    for row, prompt in enumerate(prompts):
        assert found[row][:width] == ids[row].tolist()
        assert found[row][width:] == checksum_generate(prompt, 15)


def test_rows_of_a_list_may_differ_in_length(model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=10)
    made.append_tokens([[5], [6, 7, 8]])

    assert sequences(made) == [[5, *checksum_generate([5], 7)], [6, 7, 8, *checksum_generate([6, 7, 8], 7)]]


def test_pad_id_is_text_where_nothing_says_otherwise(model: og.Model) -> None:
    whole = {"max_length": 8}
    alone = generator(model, **whole)
    alone.append_tokens(np.array([5, 6, PAD]))
    in_list = generator(model, **whole, batch_size=2)
    in_list.append_tokens([[5, 6, PAD], [1, 2, 3]])
    begins_all = generator(model, **whole, batch_size=2)
    begins_all.append_tokens(np.array([[PAD, 5, 6], [PAD, 7, 8]]))

    expected = answer([5, 6, PAD], 5)
    assert sequences(alone)[0][3:] == expected
    assert sequences(in_list)[0][3 : 3 + len(expected)] == expected
    assert sequences(begins_all)[1][3:] == checksum_generate([PAD, 7, 8], 5)


def test_batch_of_encoded_texts_knows_its_padding(model: og.Model) -> None:
    tokenizer = og.Tokenizer(model)
    tensor = tokenizer.encode_batch(["w5 w6 <eos>", "w7"])
    made = generator(model, batch_size=2, max_length=6)
    made.append_tokens(tensor)
    made.generate_next_token()

    assert made.get_next_tokens().tolist() == [checksum_generate([5, 6, 0], 1)[0], checksum_generate([7], 1)[0]]


def finds_end(count: int) -> tuple[list[int], int]:
    """A prompt that ends after some tokens, and after how many."""
    for first in range(3, VOCAB_SIZE):
        ids = checksum_generate([first, 4], count)
        if EOS in ids[1:-2]:
            return [first, 4], ids.index(EOS)
    raise AssertionError("no prompt ends")


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


def test_beams_are_made_at_once_and_ranked(model: og.Model) -> None:
    from onnx_genai import LLM, SamplingParams

    made = generator(model, batch_size=2, num_beams=4, num_return_sequences=2, max_length=8)
    made.append_tokens([[5, 6], [7, 8]])
    assert not made.is_done()
    made.generate_next_token()
    assert made.is_done()

    with LLM(model.package.root) as llm:
        params = SamplingParams(max_new_tokens=6, num_beams=4, n=2, early_stopping=True)
        for row, prompt in enumerate([[5, 6], [7, 8]]):
            for rank, choice in enumerate(llm.generate(prompt, params).choices):
                ids = [token for token in choice.token_ids if token != EOS]
                assert made.get_sequence(2 * row + rank).tolist() == [*prompt, *ids]
    assert made.get_next_tokens().shape == (4,)
    made.rewind_to(2)
    assert not made.is_done()
    assert made.token_count() == 2


@pytest.mark.parametrize("call", ["get_logits", "set_logits", "get_output"])
def test_logits_of_beams_are_refused(call: str, model: og.Model) -> None:
    made = generator(model, num_beams=2, max_length=8)
    made.append_tokens([5])
    with pytest.raises(errors.UnsupportedError, match="beam"):
        getattr(made, call)(*([] if call == "get_logits" else ["logits"]))


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


@pytest.mark.parametrize(
    ("batch", "tokens", "words"),
    [
        (1, [], "rows"),
        (2, [1, 2, 3], "batch_size=2"),
        (2, np.array([1, 2, 3, 4]), r"\[2, n\]"),
        (1, [[1, 2], [3, 4]], "batch_size=1"),
        (1, np.array([[1, 2], [3, 4]]), r"\[1, n\]"),
        (2, [[1], []], "not empty"),
        (1, [1.0], "an int"),
        (1, np.array([1.0]), "float64"),
        (1, [VOCAB_SIZE], r"97; allowed: 0\.\.96"),
        (1, [-1], "-1; allowed"),
        (1, "12", "str"),
        (2, np.array([[0, 0], [1, 2]]), "row 0 has no token"),
        (1, np.zeros((1, 0), np.int32), "shape"),
    ],
)
def test_wrong_tokens_are_refused_and_nothing_is_added(batch: int, tokens: Any, words: str, model: og.Model) -> None:
    made = generator(model, batch_size=batch, max_length=10)
    with pytest.raises(errors.InvalidArgumentError, match=words):
        made.append_tokens(tokens)
    assert made.token_count() == 0


def test_wrong_calls_are_refused(model: og.Model) -> None:
    made = generator(model, max_length=4)
    for call in (made.generate_next_token, made.get_next_tokens, made.get_logits):
        with pytest.raises(errors.InvalidArgumentError, match=r"append_tokens|generate_next_token"):
            call()
    assert not made.is_done()
    made.append_tokens([5, 6])
    for index in (1, -1, 2**40, True, "0", 0.0):
        with pytest.raises(errors.InvalidArgumentError, match=r"allowed: 0\.\.0"):
            made.get_sequence(index)  # type: ignore[arg-type]
    for length in (3, -1, 1.0):
        with pytest.raises(errors.InvalidArgumentError, match=r"allowed: 0\.\.2"):
            made.rewind_to(length)  # type: ignore[arg-type]
    with pytest.raises(errors.ContextOverflowError, match="max_length, which is 4"):
        made.append_tokens([1, 2, 3])
    for logits in (np.zeros((1, 5), np.float32), np.zeros((1, VOCAB_SIZE), np.int32)):
        with pytest.raises(errors.InvalidArgumentError, match=r"\[1, 1, 97\]"):
            made.set_logits(logits)
    with pytest.raises(errors.InvalidArgumentError, match="attention_mask"):
        made.append_tokens([7], attention_mask=[1, 1])
    assert made.get_sequence(0).tolist() == [5, 6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 2}, "top_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": 3.5}, "whole number"),
        ({"max_length": 5000}, "allowed: at most 4096"),
        ({"do_sample": 1}, "True or False"),
        ({"early_stopping": 1}, "True or False"),
        ({"num_beams": 2, "do_sample": True}, "do_sample"),
        ({"num_return_sequences": 2}, r"allowed: 1\.\.1"),
        ({"bogus": 1}, "there are: batch_size"),
        ({"top_k": 98}, "at most 97"),
        ({"batch_size": "2"}, "a number"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_set(options: dict[str, Any], words: str, model: og.Model) -> None:
    params = og.GeneratorParams(model)
    before = params.get_search_options()
    with pytest.raises(errors.InvalidArgumentError, match=words):
        params.set_search_options(**options)
    assert params.get_search_options() == before


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


def test_what_does_not_exist_yet_says_so(model: og.Model) -> None:
    made = generator(model, max_length=8)
    calls: list[Callable[[], object]] = [
        lambda: og.Adapters(model),
        lambda: og.Images.open("a.png"),
        lambda: og.Audios.open_bytes(b""),
        lambda: og.MultiModalProcessor(model),
        lambda: og.StreamingProcessor(model),
        lambda: og.Engine(model),
        model.create_multimodal_processor,
        lambda: made.set_active_adapter(None, "a"),  # type: ignore[arg-type]
        lambda: made.set_model_input("x", np.zeros(1)),
        lambda: made.set_runtime_option("enable_profiling", "1"),
        lambda: og.register_execution_provider_library("a", "b"),
        lambda: og.set_current_gpu_device_id(1),
    ]
    for call in calls:
        with pytest.raises(errors.UnsupportedError, match="not available"):
            call()


def test_guidance_of_an_unknown_kind_is_refused(model: og.Model) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="json_schema, regex, lark_grammar"):
        og.GeneratorParams(model).set_guidance("xml", "a")


@pytest.mark.parametrize(
    ("kind", "data", "pattern"),
    [
        ("regex", "[0-9]{3}", r"\d{3}"),
        ("lark_grammar", 'start: "yes" | "no"', "yes|no"),
        ("json_schema", '{"enum": [true, "a"]}', 'true|"a"'),
    ],
)
def test_guidance_constrains_every_row(
    scripted_package: Callable[..., Path], kind: str, data: str, pattern: str
) -> None:
    model = og.Model(str(scripted_package("hello")))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=40, batch_size=2)
    params.set_guidance(kind, data)
    made = og.Generator(model, params)
    made.append_tokens([[10, 11, 12], [13, 14, 15]])
    while not made.is_done():
        made.generate_next_token()
    tokenizer = og.Tokenizer(model)
    for row in range(2):
        assert re.fullmatch(pattern, tokenizer.decode(made.get_sequence(row)[3:]))


PROMPT = (10, 11, 12)


@pytest.fixture
def guided(scripted_package: Callable[..., Path]) -> Callable[..., tuple[og.Generator, og.Tokenizer]]:
    """``guided(kind, data, rows)``: generators of a model that would say "hello", with :data:`PROMPT` appended."""
    model = og.Model(str(scripted_package("hello")))

    def make(kind: str, data: str, rows: int = 1) -> tuple[og.Generator, og.Tokenizer]:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=60, batch_size=rows)
        params.set_guidance(kind, data)
        made = og.Generator(model, params)
        made.append_tokens([list(PROMPT)] * rows)
        return made, og.Tokenizer(model)

    return make


def step(made: og.Generator, count: int = 100) -> None:
    for _ in range(count):
        if not made.is_done():
            made.generate_next_token()


@pytest.mark.parametrize(("first", "kept"), [(4, 2), (4, 0), (4, 4), (6, 3), (6, 6), (100, 6), (100, 5)])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_guided_answer_goes_on_where_it_was_cut(guided: Any, first: int, kept: int, rows: int) -> None:
    made, tokenizer = guided("regex", "[0-9]{3}[a-f]{3}", rows)
    step(made, first)
    before = made.get_sequence(rows - 1).tolist()
    made.rewind_to(len(PROMPT) + kept)
    for row in range(rows):
        assert made.get_sequence(row).tolist() == before[: len(PROMPT) + kept]
    step(made)

    for row in range(rows):
        assert re.fullmatch("[0-9]{3}[a-f]{3}", tokenizer.decode(made.get_sequence(row)[len(PROMPT) :]))
    assert made.is_done()


def test_a_guided_answer_is_cut_again_and_again(guided: Any) -> None:
    made, tokenizer = guided("json_schema", '{"enum": ["abcdef"]}')
    for kept in (5, 3, 7, 1, 8, 2):
        step(made)
        made.rewind_to(len(PROMPT) + kept)
    step(made)

    assert tokenizer.decode(made.get_sequence(0)[len(PROMPT) :]) == '"abcdef"'


def test_tokens_that_fit_a_guided_answer_are_a_piece_of_it(guided: Any) -> None:
    made, tokenizer = guided("regex", "[0-9]{3}[a-f]{3}")
    step(made, 2)
    made.append_tokens(tokenizer.encode("7ab"))
    step(made)
    text = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch("[0-9]{2}7ab[a-f]", text)

    made.rewind_to(len(PROMPT) + 1)
    made.append_tokens(tokenizer.encode("99"))
    step(made)
    text = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch("[0-9]99[a-f]{3}", text)


def test_the_next_turn_has_a_guided_answer_of_its_own(guided: Any) -> None:
    made, tokenizer = guided("regex", "[0-9]{3}")
    step(made, 2)
    turn = tokenizer.encode("stop. Again:")
    made.append_tokens(turn)  # no piece of the answer
    step(made)
    text = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch("[0-9]{2}stop. Again:[0-9]{3}", text)

    made.append_tokens(tokenizer.encode("12"))  # behind an answer that is over
    step(made)
    again = tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])
    assert re.fullmatch(re.escape(text) + "12[0-9]{3}", again)
    assert made.is_done()

    made.rewind_to(len(PROMPT) + len(text) - 1)
    step(made)
    assert tokenizer.decode(made.get_sequence(0)[len(PROMPT) :])[:-1] == text[:-1]
    assert made.token_count() == len(PROMPT) + len(text)


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
    calls = 0
    submit = model.engine.submit

    def interrupted(*args: Any) -> Generation:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return submit(*args)

    monkeypatch.setattr(model.engine, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.generate_next_token()

    assert made.token_count() == 2
    assert sequences(made) == [[first, *checksum_generate([first], 19)] for first in (5, 6, 7)]


def test_row_of_padding_alone_after_a_rewind_is_refused(model: og.Model) -> None:
    made = generator(model, batch_size=2, max_length=20)
    made.append_tokens(np.array([[PAD, PAD, 5], [1, 2, 3]]))
    made.rewind_to(2)
    with pytest.raises(errors.InvalidArgumentError, match="empty"):
        made.generate_next_token()

    made.append_tokens([[5], [3]])
    made.generate_next_token()
    assert made.get_next_tokens().tolist() == [checksum_generate([5], 1)[0], checksum_generate([1, 2, 3], 1)[0]]


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
