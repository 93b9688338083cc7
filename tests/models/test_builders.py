"""The tiny models do what they promise, shown with plain onnxruntime and no code of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml
from tokenizers import Tokenizer

from tests.models import checksum
from tests.models.checksum import (
    CHECKSUM_STYLES,
    VOCAB_SIZE,
    ChecksumSpec,
    build_checksum,
    checksum_generate,
    checksum_logits,
    checksum_next,
)
from tests.models.packages import write_checksum_package, write_scripted_package, write_table_package
from tests.models.reference import (
    BufferDecoder,
    ConcatDecoder,
    Decoder,
    greedy,
    make_decoder,
    open_session,
    why_not_runnable,
)
from tests.models.scripted import build_dialogue, build_scripted
from tests.models.texts import BYTE_LEVEL_SPECIALS, byte_level_tokenizer, word_level_tokenizer

RAGGED = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8], [96], [10, 0, 10, 0, 10]]
EVEN = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]


def session_or_skip(spec: ChecksumSpec) -> ort.InferenceSession:
    """A session for `spec`, or a skip where the installed onnxruntime is older than the operators."""
    reason = why_not_runnable(spec)
    if reason:
        pytest.skip(reason)
    return open_session(spec)


def test_checksum_next_by_hand() -> None:
    # One token 4: layer 0 keeps 1*5=5 and 2*7=14, so s0 = 5+28 = 33; layer 1 keeps 3*34=102=5 and 1*38=38, so
    # s1 = 5+76 = 81; next = 33 + 3*81 + 11 = 287 = 2*97 + 93.
    assert checksum_next([4]) == 93
    # Then token 0 at position 1: 2*1=2 and 3*3=9 add 2+18, s0 = 53; 4*54=216=22 and 2*58=116=19 add 22+38, s1 = 141
    # = 44; next = 53 + 3*44 + 22 = 207 = 2*97 + 13.
    assert checksum_next([4, 0]) == 13


@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("style", CHECKSUM_STYLES)
def test_style_equals_the_oracle_in_a_ragged_batch(style: str, chunk: int | None) -> None:
    spec = CHECKSUM_STYLES[style]
    prompts = EVEN if style == "concat_no_mask" else RAGGED

    answers = greedy(make_decoder(spec, session_or_skip(spec)), prompts, 12, chunk)

    assert answers == [checksum_generate(prompt, 12) for prompt in prompts]


@pytest.mark.parametrize("style", ["gqa", "gqa_fp16", "static", "static_plain"])
def test_buffer_style_without_shared_memory_equals_the_oracle(style: str) -> None:
    spec = CHECKSUM_STYLES[style]

    answers = greedy(BufferDecoder(spec, session_or_skip(spec), in_place=False), RAGGED, 12)

    assert answers == [checksum_generate(prompt, 12) for prompt in RAGGED]


@pytest.mark.parametrize("style", ["concat", "gqa", "static", "static_plain"])
def test_style_is_exact_over_a_long_history(style: str) -> None:
    spec = replace(CHECKSUM_STYLES[style], capacity=2048)
    prompt = [(7 * index * index + 3) % VOCAB_SIZE for index in range(2000)]

    answers = greedy(make_decoder(spec, session_or_skip(spec)), [prompt], 8, chunk=512)

    assert answers == [checksum_generate(prompt, 8)]


@pytest.mark.parametrize("style", CHECKSUM_STYLES)
def test_logits_are_the_ladder_of_the_oracle(style: str) -> None:
    spec = CHECKSUM_STYLES[style]

    logits = make_decoder(spec, session_or_skip(spec)).prefill([[3, 1, 4]])

    np.testing.assert_array_equal(logits[0], checksum_logits([3, 1, 4], spec.logits_width))


class SpoiledDecoder:
    """Runs a fault between prefill and decode, as a broken engine would."""

    def __init__(self, decoder: Decoder, fault: Callable[[Decoder], None]) -> None:
        self.decoder = decoder
        self.fault = fault

    def prefill(self, prompts: Sequence[Sequence[int]], chunk: int | None = None) -> np.ndarray:
        logits = self.decoder.prefill(prompts, chunk)
        self.fault(self.decoder)
        return logits

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        return self.decoder.decode(ids)


def _swap_rows(decoder: ConcatDecoder) -> None:
    decoder.past = [tensor[::-1].copy() for tensor in decoder.past]


def _swap_layers(decoder: ConcatDecoder) -> None:
    decoder.past = decoder.past[2:] + decoder.past[:2]


def _swap_heads(decoder: ConcatDecoder) -> None:
    decoder.past = [tensor[:, ::-1].copy() for tensor in decoder.past]


def _swap_keys_and_values(decoder: ConcatDecoder) -> None:
    decoder.past = [decoder.past[index] for index in (1, 0, 3, 2)]


def _copy_a_place_of_row_0(decoder: ConcatDecoder) -> None:
    decoder.past[3][0, :, 1] = decoder.past[3][0, :, 0]


def _lose_a_key(decoder: ConcatDecoder) -> None:
    decoder.past[0][:, :, 2] = 0


def _mask_a_token(decoder: ConcatDecoder) -> None:
    decoder.mask[:, 1] = 0


def _double_the_last_token(decoder: ConcatDecoder) -> None:
    decoder.mask = np.concatenate([decoder.mask, np.ones_like(decoder.mask[:, :1])], axis=1)
    decoder.past = [np.concatenate([tensor, tensor[:, :, -1:]], axis=2) for tensor in decoder.past]


@pytest.mark.parametrize(
    "fault",
    [
        _swap_rows,
        _swap_layers,
        _swap_heads,
        _swap_keys_and_values,
        _copy_a_place_of_row_0,
        _lose_a_key,
        _mask_a_token,
        _double_the_last_token,
    ],
)
def test_checksum_given_a_spoiled_cache_changes_the_answer(fault: Callable[[Decoder], None]) -> None:
    decoder = ConcatDecoder(CHECKSUM_STYLES["concat"], open_session(CHECKSUM_STYLES["concat"]))

    answers = greedy(SpoiledDecoder(decoder, fault), EVEN, 6)

    for answer, prompt in zip(answers, EVEN, strict=True):
        right = checksum_generate(prompt, 6)
        if fault is _copy_a_place_of_row_0 and prompt is EVEN[1]:
            assert answer == right  # the fault is in row 0 alone
        else:
            assert answer[0] == right[0]
            assert answer[1:] != right[1:]


@pytest.mark.parametrize("style", ["gqa", "static", "static_plain"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_buffer_style_given_a_wrong_length_changes_the_answer(style: str, shift: int) -> None:
    def fault(decoder: BufferDecoder) -> None:
        decoder.lengths = [length + shift for length in decoder.lengths]

    spec = CHECKSUM_STYLES[style]
    decoder = BufferDecoder(spec, session_or_skip(spec))

    answers = greedy(SpoiledDecoder(decoder, fault), EVEN, 6)

    assert all(a[1:] != checksum_generate(p, 6)[1:] for a, p in zip(answers, EVEN, strict=True))


@pytest.mark.parametrize(
    ("kind", "looks_right"),
    [
        ("nan", lambda row: np.isnan(row).all()),
        ("one_nan", lambda row: np.isnan(row).sum() == 1),
        ("equal", lambda row: (row == row[0]).all() and np.isfinite(row).all()),
        ("inf", lambda row: np.isposinf(row).sum() == 1),
        ("minus_inf", lambda row: np.isneginf(row).all()),
    ],
)
def test_bad_logits_begin_at_the_given_token(kind: str, looks_right: Callable[[np.ndarray], bool]) -> None:
    spec = replace(CHECKSUM_STYLES["concat"], bad_from=4, bad_logits=kind)
    decoder = ConcatDecoder(spec, open_session(spec))

    before = decoder.prefill([[5, 6, 7]])
    after = decoder.decode([27])

    np.testing.assert_array_equal(before[0], checksum_logits([5, 6, 7]))
    assert looks_right(after[0])


@pytest.mark.parametrize("style", CHECKSUM_STYLES)
def test_checksum_package_holds_a_small_graph_and_a_tokenizer(tmp_path: Path, style: str) -> None:
    folder = write_checksum_package(tmp_path / style, style)

    (graph,) = folder.rglob("*.onnx")
    assert graph.stat().st_size < 100_000
    assert len(onnx.load(graph).graph.output) == (3 if style == "packed" else 5)
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == VOCAB_SIZE
    names = {path.name for path in folder.iterdir()}
    markers = names & {"config.json", "genai_config.json", "inference_metadata.yaml"}
    assert len(markers) == (0 if style == "concat_no_mask" else 1)


def test_package_files_state_what_the_graph_has(tmp_path: Path) -> None:
    genai = json.loads((write_checksum_package(tmp_path / "g", "gqa") / "genai_config.json").read_text("utf-8"))
    native = yaml.safe_load(
        (write_checksum_package(tmp_path / "n", "concat_custom_names") / "inference_metadata.yaml").read_text("utf-8")
    )
    static = yaml.safe_load(
        (write_checksum_package(tmp_path / "s", "static") / "inference_metadata.yaml").read_text("utf-8")
    )

    assert genai["model"]["decoder"]["inputs"]["past_key_names"] == "past_key_values.%d.key"
    assert genai["search"]["past_present_share_buffer"] is True
    assert native["model"]["io"]["kv_inputs"] == ["k_in_0", "v_in_0", "k_in_1", "v_in_1"]
    assert static["model"]["max_sequence_length"] == CHECKSUM_STYLES["static"].capacity


class PlainLoop:
    """One sequence on a scripted or table model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.past = [np.zeros((1, 1, 0, 8), dtype=np.float32)] * 2

    def run(self, ids: Sequence[int]) -> int:
        feeds = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, self.past[0].shape[2] + len(ids)), dtype=np.int64),
            "past_key_values.0.key": self.past[0],
            "past_key_values.0.value": self.past[1],
        }
        logits, *self.past = self.session.run(None, feeds)
        return int(logits[0, -1].argmax())

    def generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        answer = [self.run(prompt)]
        while len(answer) < num_tokens:
            answer.append(self.run(answer[-1:]))
        return answer


@pytest.mark.parametrize("script", [[5, 6, 7], [5, 5, 5, 6, 5, 5], [8, 9, 8, 9, 8, 8]])
def test_scripted_model_says_its_script_then_eos_and_again(script: list[int]) -> None:
    loop = PlainLoop(build_scripted(script, vocab_size=20, eos=0))

    answer = loop.generate([11, script[0], 12, 13], 2 * len(script) + 1)

    assert answer == [*script, 0, *script]


def test_scripted_model_given_a_masked_token_stays_where_it_is() -> None:
    loop = PlainLoop(build_scripted([5, 6], vocab_size=20, eos=0))
    feeds = {
        "input_ids": np.array([[11, 5], [5, 11]]),
        "attention_mask": np.array([[1, 1], [1, 0]]),
        "past_key_values.0.key": np.zeros((2, 1, 0, 8), dtype=np.float32),
        "past_key_values.0.value": np.zeros((2, 1, 0, 8), dtype=np.float32),
    }

    logits = loop.session.run(["logits"], feeds)[0]

    assert logits[:, -1].argmax(axis=1).tolist() == [6, 6]


def test_scripted_package_speaks_text(tmp_path: Path) -> None:
    folder = write_scripted_package(tmp_path, "the END 🙂!")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("Say it: ").ids
    ids = PlainLoop(onnx.load(folder / "model.onnx")).generate(prompt, 40)

    answer = ids[: ids.index(tokenizer.token_to_id("<|im_end|>"))]

    assert tokenizer.decode(answer) == "the END 🙂!"


def test_table_package_gives_the_rows_of_its_table(tmp_path: Path) -> None:
    table = np.random.default_rng(3).normal(size=(11, 11)).astype(np.float32)
    folder = write_table_package(tmp_path, table)

    loop = PlainLoop(onnx.load(folder / "model.onnx"))

    assert loop.generate([4, 7], 3)[0] == int(table[7].argmax())


def test_byte_level_tokenizer_keeps_any_text_and_splits_characters() -> None:
    tokenizer = byte_level_tokenizer()
    text = " the tea 🙂 naïve\n<b>"

    ids = tokenizer.encode(text).ids

    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("🙂").ids) == 3
    assert tokenizer.encode("<|im_end|>").ids == [BYTE_LEVEL_SPECIALS.index("<|im_end|>")]
    assert tokenizer.decode([3 + ord("A")]) == "A"


def test_word_level_tokenizer_maps_words_to_their_number() -> None:
    tokenizer = word_level_tokenizer(VOCAB_SIZE)

    assert tokenizer.encode("w5 w96 nothing <eos>").ids == [5, 96, 2, checksum.EOS]
    assert tokenizer.decode([5, 96]) == "w5 w96"


def test_build_checksum_is_reproducible() -> None:
    spec = CHECKSUM_STYLES["concat"]

    assert build_checksum(spec).SerializeToString() == build_checksum(spec).SerializeToString()


def test_dialogue_model_says_another_answer_in_each_turn_and_ends_where_one_was_changed() -> None:
    turn, eos = 9, 0
    model = build_dialogue([[5, 6, 5], [7]], vocab_size=20, eos=eos, turn=turn)

    assert PlainLoop(model).generate([11, turn], 4) == [5, 6, 5, eos]
    assert PlainLoop(model).generate([11, turn, 5, 6, 5, 12, turn], 2) == [7, eos]
    assert PlainLoop(model).generate([turn, 12, 13, turn], 2) == [7, eos], "the history may be written otherwise"
    assert PlainLoop(model).generate([turn, 5, 12], 1) == [eos], "a changed answer does not go on"
    assert PlainLoop(model).generate([11], 1) == PlainLoop(model).generate([turn, turn, turn, 5], 1) == [eos]
