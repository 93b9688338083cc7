"""Values of onnxruntime-genai's own tests and runs, through compat; where it is wrong, what is right.

Beams that end early are those of transformers 5.24 over the same graph, run without a cache: onnxruntime-genai scores
and ends them differently. All other values are in the files of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import onnx_genai.compat as og
from onnx_genai import errors
from tests.compat.calls import generator, model, sequences

GPT2 = "models/hf-internal-testing/tiny-random-gpt2-fp32"
BEAMS_THAT_END = {
    "beam4_eos131_lp-2.0_esTrue": [
        [131, 131, 131, 181],
        [131, 131, 131, 759],
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp-2.0_esFalse": [
        [131, 131, 131, 181],
        [131, 131, 131, 759],
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp0.0_esTrue": [
        [131, 131, 131, 181],
        [131, 131, 131, 759],
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp0.0_esFalse": [
        [131, 131, 131, 181],
        [131, 131, 131, 759],
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp0.5_esTrue": [
        [131, 131, 131, 181],
        [131, 131, 131, 759],
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp0.5_esFalse": [
        [131, 131, 131, 181],
        [131, 131, 131, 759],
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp1.0_esTrue": [
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 173],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 71, 641, 641],
    ],
    "beam4_eos131_lp1.0_esFalse": [
        [131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 173],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 71, 641, 641],
    ],
    "beam4_eos131_lp2.0_esTrue": [
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 173],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 71, 641, 641],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_eos131_lp2.0_esFalse": [
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 173],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 71, 641, 641],
        [131, 131, 131, 131, 131, 131, 131, 131, 131, 131, 131],
    ],
    "beam4_rep": [
        [891, 149, 131, 181, 638, 641, 54, 832, 948, 873, 208, 333],
    ],
}


@pytest.fixture(scope="module")
def cases(shared_cases: Path) -> dict[str, Any]:
    path = shared_cases / "ort-genai" / "expected.json"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    entries = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return {entry["id"].split()[0]: entry for entry in entries}


@pytest.fixture(scope="module")
def measured(shared_cases: Path) -> dict[str, Any]:
    path = shared_cases / "ort-genai" / "measured-0.18.0-cpu.json"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def gpt2(shared_cases: Path, cases: dict[str, Any]) -> Iterator[og.Model]:
    with model(shared_cases / "ort-genai" / GPT2) as loaded:
        yield loaded


def run(subject: og.Model, entry: dict[str, Any]) -> list[list[int]]:
    made = generator(subject, **entry.get("options", {}))
    made.append_tokens(np.asarray(entry["input_ids"], dtype=np.int32))
    return sequences(made)


@pytest.mark.parametrize("name", ["gpt2-greedy-b2", "gpt2-beam4-b3"])
def test_sequences_equal(name: str, cases: dict[str, Any], gpt2: og.Model) -> None:
    assert run(gpt2, cases[name]) == cases[name]["expect"]


def test_setting_the_logits_that_were_read_changes_nothing(cases: dict[str, Any], gpt2: og.Model) -> None:
    entry = cases["gpt2-greedy-b2"]
    made = generator(gpt2, **entry["options"])
    made.append_tokens(np.asarray(entry["input_ids"], dtype=np.int32))
    while not made.is_done():
        for _ in range(2):
            made.set_logits(made.get_logits())
        made.generate_next_token()

    assert sequences(made) == entry["expect"]


def test_rewind_and_append_again(cases: dict[str, Any], gpt2: og.Model) -> None:
    entry = cases["gpt2-rewind"]
    made = generator(gpt2, **entry["options"])
    made.append_tokens(entry["input_ids"])
    assert sequences(made) == entry["expect"]

    made.rewind_to(3)
    made.append_tokens([731, 731])

    assert sequences(made) == entry["expect"]


def test_batch_rewinds_to_nothing(cases: dict[str, Any], gpt2: og.Model) -> None:
    entry = cases["gpt2-batch-rewind0"]
    made = generator(gpt2, **entry["options"])
    for _ in range(2):
        made.append_tokens(np.asarray(entry["input_ids"]))
        assert sequences(made) == cases["gpt2-greedy-b2"]["expect"]
        made.rewind_to(0)


def test_logits_of_prompt_and_of_a_step(cases: dict[str, Any], gpt2: og.Model) -> None:
    entry = cases["gpt2-logits-prompt"]
    made = generator(gpt2, **entry["options"])
    made.append_tokens(np.asarray(entry["input_ids"]))
    np.testing.assert_allclose(made.get_output("logits")[:, :, ::200], entry["expect"], atol=1e-3)

    made.generate_next_token()
    made.generate_next_token()

    expected = cases["gpt2-logits-step2"]["expect"]
    np.testing.assert_allclose(made.get_output("logits")[:, :, ::200], expected, atol=1e-3)


def test_left_padding_is_not_seen(cases: dict[str, Any], gpt2: og.Model) -> None:
    entry = cases["LEFT-PAD"]
    for mask in (None, [[0, 0, 1, 1], [1, 1, 1, 1]]):
        made = generator(gpt2, batch_size=2, max_length=12)
        made.append_tokens(np.asarray(entry["input_ids"]), attention_mask=mask)
        found = sequences(made)

        assert [row[4] for row in found] == entry["correct_first_tokens"]
        assert found[0][:4] == entry["input_ids"][0]
        alone = generator(gpt2, max_length=10)
        alone.append_tokens([195, 731])
        assert found[0][4:] == sequences(alone)[0][2:]


def graph_says(path: Path, ids: list[int]) -> int:
    """The most likely token of the gpt2 graph after these ids, from onnxruntime alone."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    size = len(ids)
    rows = {"input_ids": ids, "attention_mask": [1] * size, "position_ids": range(size)}
    feeds = {}
    for port in session.get_inputs():
        if port.name in rows:
            feeds[port.name] = np.asarray([list(rows[port.name])], dtype=np.int32)
        else:
            heads, width = port.shape[2], port.shape[4]
            feeds[port.name] = np.zeros((2, 1, heads, 0, width), dtype=np.float32)
    return int(session.run(["logits"], feeds)[0][0, -1].argmax())


def test_stated_single_row_leaves_its_last_prompt_token_out(cases: dict[str, Any], shared_cases: Path) -> None:
    """The graph says 98 after the prompt, and 462, which is stated, after the prompt without its last token."""
    entry = cases["PAD-ID-AT-PROMPT-END"]
    prompt = entry["input_ids"][0]
    path = next((shared_cases / "ort-genai" / GPT2).glob("*.onnx"))

    assert graph_says(path, prompt) == 98
    assert graph_says(path, prompt[:-1]) == entry["single"][3] == 462


def test_prompt_that_ends_in_the_pad_token_keeps_it(cases: dict[str, Any], gpt2: og.Model, shared_cases: Path) -> None:
    """The stated single row leaves the token out of its first step, too: the graph itself says 98 there, which ends."""
    entry = cases["PAD-ID-AT-PROMPT-END"]
    prompt = entry["input_ids"][0]
    rows = []
    for ids in (entry["input_ids"], np.asarray(entry["input_ids"], dtype=np.int32), [prompt], np.asarray([prompt])):
        made = generator(gpt2, batch_size=len(ids), max_length=8, min_length=5)
        made.append_tokens(ids)
        rows.append(sequences(made)[0])
    assert rows == [rows[0]] * 4
    assert rows[0][:3] == prompt
    made = generator(gpt2, batch_size=2, max_length=8)
    made.append_tokens(np.asarray(entry["input_ids"]))
    assert sequences(made)[0] == [*prompt, 98, 98, 98, 98, 98]

    with model(shared_cases / "ort-genai" / GPT2, '{"model": {"eos_token_id": 999}}') as endless:
        made = generator(endless, batch_size=2, max_length=8)
        made.append_tokens([entry["single"][:4], [5, 6, 7, 9]])
        assert sequences(made)[0] == entry["single"]


def test_tables_of_logits_are_sampled_from(cases: dict[str, Any], gpt2: og.Model) -> None:
    def next_tokens(rows: list[list[float]], **options: Any) -> list[int]:
        made = generator(gpt2, batch_size=len(rows), max_length=8, do_sample=True, **options)
        made.append_tokens([[0]] * len(rows))
        logits = np.full((len(rows), 1, gpt2.vocab_size), -1e9, dtype=np.float32)
        logits[:, 0, : len(rows[0])] = rows
        made.set_logits(logits)
        made.generate_next_token()
        return made.get_next_tokens().tolist()

    entry = cases["sampler-topk1-topp"]
    assert next_tokens(entry["logits"], top_k=1, top_p=0.25) == entry["expect"]
    rows = cases["sampler-topk2"]["logits"]
    for seed in range(20):
        for options in ({}, {"top_p": 0.25}):
            tokens = next_tokens(rows, top_k=2, random_seed=seed, **options)
            assert all(row[token] > 1.25 for row, token in zip(rows, tokens, strict=True))


@pytest.mark.parametrize("size", [0, 3])
def test_no_repeated_ngram_of_given_logits(size: int, cases: dict[str, Any], gpt2: og.Model) -> None:
    made = generator(gpt2, max_length=20, no_repeat_ngram_size=size)
    made.append_tokens([5, 6, 7, 8, 5, 6])
    logits = np.full((1, 1, gpt2.vocab_size), 5, dtype=np.float32)
    logits[..., 7], logits[..., 42] = 10, 8
    made.set_logits(logits)

    made.generate_next_token()

    assert made.get_next_tokens().tolist() == [
        cases["sampler-no-repeat-ngram"]["expect"][f"no_repeat_ngram_size={size}"]
    ]


def test_repetition_penalty_of_given_logits(cases: dict[str, Any], gpt2: og.Model) -> None:
    counts = np.zeros(gpt2.vocab_size)
    for seed in range(5):
        options = {"do_sample": True, "repetition_penalty": 2.0, "top_k": 1000, "random_seed": seed}
        made = generator(gpt2, max_length=20, batch_size=100, **options)
        made.append_tokens([list(range(10))] * 100)
        made.set_logits(np.full((100, 1, gpt2.vocab_size), 5, dtype=np.float32) + np.arange(1000) * 1e-6)
        made.generate_next_token()
        np.add.at(counts, made.get_next_tokens(), 1)

    # Ten of a thousand ids would get 5 of 500 draws; with half their logit, of 5, they get 0.4.
    assert counts.sum() == 500
    assert counts[10:].mean() > 3 * counts[:10].mean()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 512},
        {"num_beams": 0},
        {"batch_size": 512},
        {"batch_size": 0},
        {"num_beams": 4, "num_return_sequences": 8},
        {"num_return_sequences": 0},
        {"top_k": 5000},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], cases: dict[str, Any], gpt2: og.Model) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=next(iter(options)) if len(options) == 1 else "8"):
        generator(gpt2, **options)


@pytest.mark.parametrize(
    ("overlay", "options", "words"),
    [
        ('{"model": {"vocab_size": 1, "eos_token_id": 0, "pad_token_id": 0}}', {"num_beams": 2}, "num_beams"),
        ('{"model": {"vocab_size": 5, "eos_token_id": 5, "pad_token_id": 0}}', {}, "eos_token_id is 5"),
    ],
)
def test_wrong_vocabularies_are_refused(
    overlay: str, options: dict[str, Any], words: str, cases: dict[str, Any], shared_cases: Path
) -> None:
    with (
        model(shared_cases / "ort-genai" / GPT2, overlay) as loaded,
        pytest.raises(errors.GenAIError, match=words),
    ):
        generator(loaded, **options)


def test_template_with_tools_in_a_message(cases: dict[str, Any], gpt2: og.Model) -> None:
    entry = cases["chat-template-tools"]
    tokenizer = og.Tokenizer(gpt2)
    messages = [
        {"role": "system", "content": "You are helpful.", "tools": '[{"name": "add"}]'},
        {"role": "user", "content": "1 + 1?"},
    ]

    text = tokenizer.apply_chat_template(json.dumps(messages), template_str=entry["template"])

    assert text == (
        '<|system|>You are helpful.<|tool|>[{"name": "add"}]<|/tool|><|end|><|user|>1 + 1?<|end|><|assistant|>'
    )
    own = entry["kwargs_case"]
    assert tokenizer.apply_chat_template(messages, template_str=own["template"], **own["kwargs"]) == own["expect"]


@pytest.mark.parametrize("name", ["vlm-decoder-without-input_ids", "vlm-decoder-with-input_ids"])
def test_decoder_on_embeddings_is_given_what_it_declares(name: str, cases: dict[str, Any], shared_cases: Path) -> None:
    """The graphs are stubs, whose logits are all zero."""
    entry = cases[name]
    with model(shared_cases / "ort-genai" / entry["model"]) as loaded:
        assert run(loaded, entry) == entry["measured"]


def paged_next(ids: list[int]) -> int:
    """The formula of the entry."""
    return (ids[0] + ids[-1] + len(ids)) % 64


def paged_answer(ids: list[int], total: int) -> list[int]:
    """The ids and what follows, up to `total` or an end token, which is left out."""
    ids = list(ids)
    while len(ids) < total and paged_next(ids) != 1:
        ids.append(paged_next(ids))
    return ids


def test_blocks_of_the_graph_itself(cases: dict[str, Any], shared_cases: Path) -> None:
    entry = cases["synthetic-paged-formula"]
    prompts = [[5, 9, 13], [7, 2, 20, 4], [3, 8, 2, 15, 6, 11]]
    with model(shared_cases / "ort-genai" / entry["model"]) as loaded:
        made = generator(loaded, max_length=3 + 12)
        made.append_tokens(prompts[0])
        assert sequences(made) == [[*prompts[0], *entry["expect"]["A,12 new"]]]

        alone = []
        for prompt in prompts:
            made = generator(loaded, max_length=40)
            made.append_tokens(prompt)
            alone += sequences(made)
        assert alone == [paged_answer(prompt, 40) for prompt in prompts]
        assert any(len(row) < 40 for row in alone)

        made = generator(loaded, batch_size=3, max_length=18)
        made.append_tokens(prompts)
        assert sequences(made) == [paged_answer(prompt, 12 + len(prompt)) for prompt in prompts]


def test_follow_up_with_an_end_token_inside(cases: dict[str, Any], shared_cases: Path) -> None:
    with model(shared_cases / "ort-genai" / cases["synthetic-paged-formula"]["model"]) as loaded:
        made = generator(loaded, max_length=20)
        made.append_tokens([5, 9, 13])
        for _ in range(4):
            made.generate_next_token()
        made.append_tokens([1, 12])

        assert sequences(made) == [paged_answer([*paged_answer([5, 9, 13], 7), 1, 12], 20)]


def test_running_and_dropped_requests_leave_each_other_alone(cases: dict[str, Any], shared_cases: Path) -> None:
    """Admitted one after another, one dropped in the middle; more of them than the package's largest batch."""
    with model(shared_cases / "ort-genai" / cases["synthetic-paged-formula"]["model"]) as loaded:
        running = []
        for first in range(2, 12):
            made = generator(loaded, max_length=24)
            made.append_tokens([first, 8, 2])
            made.generate_next_token()
            running.append(made)
        del running[4]

        found = [sequences(made)[0] for made in running]

    assert found == [paged_answer([first, 8, 2], 24) for first in range(2, 12) if first != 6]


def test_beams_of_an_encoder_decoder(cases: dict[str, Any], shared_cases: Path) -> None:
    """The graph's answer shows in which row of its four each beam was computed a step before."""
    entry = cases["marian-beams"]
    with model(shared_cases / "ort-genai" / entry["model"]) as loaded:
        made = generator(loaded, batch_size=entry["options"]["batch_size"])
        made.append_tokens(entry["input_ids"])
        made.generate_next_token()
        assert not made.is_done()
        assert made.get_logits().shape == (4, 1, 32001)
        made.generate_next_token()

        assert made.get_next_tokens().tolist() == entry["expect"]


def test_rows_of_an_encoder_decoder_run_in_one_step(cases: dict[str, Any], shared_cases: Path) -> None:
    """The graphs have two rows of two tokens, the end of the source among them, and logits that are all equal."""
    with model(shared_cases / "ort-genai" / cases["marian-io"]["model"]) as loaded:
        before = loaded.engine.metrics()
        made = generator(loaded, batch_size=2)
        made.append_tokens([[5], [7]])
        made.generate_next_token()

        assert made.get_next_tokens().tolist() == [0, 0]
        assert made.is_done()
        assert made.get_sequence(0).tolist() == [5]
        assert made.get_sequence(1).tolist() == [7]
        assert loaded.engine.metrics()["num_steps"] - before["num_steps"] == 1


def test_speech_models_are_refused_by_kind(shared_cases: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match="an encoder-decoder pipeline for speech"):
        og.Model(str(shared_cases / "ort-genai" / "models" / "whisper"))


def test_tokenizer_of_a_model_that_cannot_run(cases: dict[str, Any], shared_cases: Path) -> None:
    tokenizer = og.Tokenizer(str(shared_cases / "ort-genai" / "models" / "phi3-v"))

    assert tokenizer.encode("Hello world").tolist() == [15043, 3186]
    assert tokenizer.eos_token_ids.tolist() == [32007, 32000]
    assert tokenizer.encode_batch(["a b c", "d"]).as_numpy().tolist() == [[263, 289, 274], [270, 32000, 32000]]
    chat = tokenizer.apply_chat_template('[{"role": "user", "content": "hi"}]')
    assert chat == "<|user|>\nhi<|end|>\n<|assistant|>\n"


GREEDY = ["greedy30", "greedy_long_prompt", "ngram1", "ngram2", "ngram3", "ngram4", "rep1.1", "rep1.3", "rep2.0"]
ENDS = ["rep0.8", "min_length_with_eos", "eos114", "eos_multi", "eos_batch", "right_padded_batch", "unpadded_195_731"]
BEAMS = ["beam2", "beam3", "beam4", "beam8", "beam2_nrs", "beam4_nrs", "beam8_nrs", "beam4_ngram2"]
QWEN = [pytest.param(name, marks=pytest.mark.slow) for name in ("gqa_cpu", "gqa_cpu_single_10_20")]


@pytest.mark.parametrize("name", [*GREEDY, *ENDS, *BEAMS, *QWEN])
def test_measured_runs_equal(name: str, measured: dict[str, Any], shared_cases: Path) -> None:
    entry = measured[name]
    overlay = json.dumps(entry["overlay"]) if entry["overlay"] else None

    with model(shared_cases / "ort-genai" / "models" / entry["model"], overlay) as loaded:
        assert run(loaded, entry) == entry["sequences"]


@pytest.mark.parametrize("name", BEAMS_THAT_END)
def test_beams_that_end_early_equal_transformers(name: str, measured: dict[str, Any], shared_cases: Path) -> None:
    entry = measured[name]
    overlay = json.dumps(entry["overlay"]) if entry["overlay"] else None
    prompt = entry["input_ids"][0]

    with model(shared_cases / "ort-genai" / "models" / entry["model"], overlay) as loaded:
        assert [row[len(prompt) :] for row in run(loaded, entry)] == BEAMS_THAT_END[name]
