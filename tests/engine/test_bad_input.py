"""Bad input: a typed error with what, value and limit; and the model goes on."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_genai import LLM, SamplingParams, errors
from tests.models.checksum import CHECKSUM_STYLES, checksum_generate

pytestmark = pytest.mark.boundary

GREEDY = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa", context_length=64), threads=1) as model:
        yield model
        assert list(model.generate([1, 2], GREEDY).token_ids) == checksum_generate([1, 2], 3)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", errors.InvalidArgumentError, "prompt is empty"),
        ([[]], errors.InvalidArgumentError, "prompt is empty"),
        ([1, 97], errors.InvalidArgumentError, "token 1 has id 97; allowed: 0..96"),
        ([-1], errors.InvalidArgumentError, "-1"),
        ([2**40], errors.InvalidArgumentError, str(2**40)),
        ([1.5], errors.InvalidArgumentError, "1.5"),
        ([True], errors.InvalidArgumentError, "True"),
        (b"bytes", errors.InvalidArgumentError, "bytes"),
        (None, errors.InvalidArgumentError, "NoneType"),
        (7, errors.InvalidArgumentError, "int"),
        (np.arange(10)[::2], errors.InvalidArgumentError, "ascontiguousarray"),
        (np.ones((2, 2), np.int64), errors.InvalidArgumentError, "(2, 2)"),
        (np.ones(3, np.float32), errors.InvalidArgumentError, "float32"),
        ([1] * 64, errors.ContextOverflowError, "64/64"),
        ([1] * 1000, errors.ContextOverflowError, "1000/64"),
    ],
)
def test_bad_prompt_is_refused_with_its_value(llm: LLM, prompt: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        llm.generate(prompt, GREEDY)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 2.0),
        ("typical_p", 0.0),
        ("top_a", -0.1),
        ("mirostat", 1),
        ("mirostat_tau", 0.0),
        ("xtc_threshold", 0.7),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", 3.0),
        ("presence_penalty", math.inf),
        ("dry_base", 0.5),
        ("no_repeat_ngram_size", -1),
        ("max_new_tokens", 0),
        ("max_new_tokens", True),
        ("min_new_tokens", -1),
        ("n", 0),
        ("n", 1000),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [-1]),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", [1]),
        ("bad_words", [[]]),
        ("top_logprobs", 3),
        ("forced_tokens", {-1: 2}),
        # what the core's own types cannot hold, and what converts by accident
        *((name, None) for name in ("n", "min_new_tokens", "typical_p", "dry_base", "top_logprobs", "mirostat")),
        *((name, 2**63) for name in ("max_new_tokens", "min_new_tokens", "top_k", "no_repeat_ngram_size")),
        *((name, 2**31) for name in ("n", "top_logprobs")),
        *((name, [2**31]) for name in ("stop_token_ids", "suppress_tokens", "dry_sequence_breakers")),
        *((name, [None]) for name in ("stop_token_ids", "begin_suppress_tokens")),
        *((name, "yes") for name in ("logprobs", "include_stop", "ignore_eos", "skip_special_tokens")),
        *((name, 1) for name in ("logprobs", "ignore_eos")),
        ("temperature", 10**400),
        ("temperature", 1e300),
        ("repetition_penalty", 1e-46),
        ("logit_bias", {2**31: 1.0}),
        ("logit_bias", {1: 1e300}),
        ("bad_words", [[2**31]]),
        ("forced_tokens", {0: 2**31}),
        ("forced_tokens", {2**63: 1}),
        ("stop", "\ud800"),
    ],
)
def test_bad_sampling_parameter_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=field):
        SamplingParams(**{field: value})


def test_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"min_new_tokens is 5; .* which is 3"):
        SamplingParams(min_new_tokens=5, max_new_tokens=3)


def test_numpy_numbers_are_numbers(llm: LLM) -> None:
    params = SamplingParams(
        max_new_tokens=int(np.int64(3)),
        temperature=np.float32(0),  # type: ignore[arg-type]
        logit_bias={np.int64(5): np.float32(-np.inf)},  # type: ignore[dict-item]
        ignore_eos=np.True_,  # type: ignore[arg-type]
    )

    assert list(llm.generate([1, 2], params).token_ids) == checksum_generate([1, 2], 3)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("logit_bias", {97: 1.0}, "97"),
        ("bad_words", [[97]], "97"),
        ("suppress_tokens", [500], "500"),
        ("suppress_tokens", list(range(97)), "suppress_tokens"),
        ("stop_token_ids", [97], "97"),
        ("forced_tokens", {0: 97}, "97"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(llm: LLM, field: str, value: Any, words: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=words):
        llm.generate([1, 2], SamplingParams(max_new_tokens=2, **{field: value}))


def test_top_k_above_the_vocabulary_keeps_everything(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=10, temperature=2.0, seed=3, ignore_eos=True)

    wide = llm.generate([1, 2], replace(params, top_k=10**6))

    assert wide.token_ids == llm.generate([1, 2], params).token_ids


@pytest.mark.parametrize("kind", ["nan", "one_nan", "equal", "inf", "minus_inf"])
def test_unusable_logits_end_their_request_and_no_other(kind: Any, checksum_package: Callable[..., Path]) -> None:
    spec = replace(CHECKSUM_STYLES["gqa"], bad_from=10, bad_logits=kind)
    params = SamplingParams(max_new_tokens=5, temperature=0, ignore_eos=True)
    with LLM(checksum_package(spec), threads=1) as model:
        good = model.stream([1, 2], params)
        with pytest.raises(errors.BackendError, match="unusable logits"):
            model.generate([1] * 8, params)

        assert [token for chunk in good for token in chunk.token_ids] == checksum_generate([1, 2], 5)


def test_chunks_before_a_failure_are_delivered(checksum_package: Callable[..., Path]) -> None:
    spec = replace(CHECKSUM_STYLES["gqa"], bad_from=6)
    with LLM(checksum_package(spec), threads=1) as model:
        seen: list[int] = []
        stream = model.stream([1, 2, 3], SamplingParams(max_new_tokens=9, temperature=0, ignore_eos=True))
        with pytest.raises(errors.BackendError):
            seen.extend(token for chunk in stream for token in chunk.token_ids)

    assert seen == checksum_generate([1, 2, 3], 3)


def test_wrong_params_type_and_count_are_refused(llm: LLM) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="params"):
        llm.generate([1], {"max_new_tokens": 3})  # type: ignore[call-overload]
    with pytest.raises(errors.InvalidArgumentError, match="2 entries for 1"):
        llm.generate([[1]], [GREEDY, GREEDY])
    with pytest.raises(errors.InvalidArgumentError, match="params is int"):
        llm.generate([[1]], 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("backend", "gpu", errors.InvalidArgumentError),
        ("backend", "native", errors.UnsupportedError),
        ("threads", 0, errors.InvalidArgumentError),
        ("threads", 100_000, errors.InvalidArgumentError),
        ("max_context", 2**63, errors.InvalidArgumentError),
        ("max_num_seqs", 2**31, errors.InvalidArgumentError),
        ("host_ram_limit", 0, errors.InvalidArgumentError),
        ("host_ram_limit", "0.0", errors.InvalidArgumentError),
        ("host_ram_limit", None, errors.InvalidArgumentError),
        ("vram_limit", "8TB", errors.InvalidArgumentError),
        ("variant", 4, errors.InvalidArgumentError),
        ("ep_options", {"device_id": "0"}, errors.InvalidArgumentError),
        ("ep_options", {"device_id": 0}, errors.InvalidArgumentError),
        ("ep_options", 5, errors.InvalidArgumentError),
        ("max_context", -5, errors.InvalidArgumentError),
        ("host_ram_limit", "8TB", errors.InvalidArgumentError),
        ("max_num_seqs", 0, errors.InvalidArgumentError),
        ("ep", "nosuch", errors.UnsupportedError),
        ("ep", "", errors.InvalidArgumentError),
    ],
)
def test_bad_option_is_refused(
    option: str, value: Any, error: type[Exception], checksum_package: Callable[..., Path]
) -> None:
    with pytest.raises(error, match=value or option if option == "ep" else option):
        LLM(checksum_package("gqa"), **{option: value})


def test_missing_model_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="pull"):
        LLM(tmp_path / "nowhere")


@pytest.mark.parametrize("model", [None, 5, b"/tmp", ""])
def test_what_can_be_no_model_is_refused(model: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="model is"):
        LLM(model)


def test_model_name_that_no_file_system_takes_is_not_found() -> None:
    with pytest.raises(errors.NotFoundError, match="name too long"):
        LLM("x" * 5000)


@pytest.mark.parametrize("given", [5, {5: 5}, {"messages": []}, {"add_generation_prompt": True}])
def test_template_kwargs_that_cannot_be_passed_on_are_refused(
    given: Any, scripted_package: Callable[..., Path]
) -> None:
    model = LLM(scripted_package("Hi."), threads=1)

    with model, pytest.raises(errors.InvalidArgumentError, match="template_kwargs"):
        model.render([{"role": "user", "content": "Hi"}], template_kwargs=given)


def test_use_after_close_is_refused_and_closing_twice_is_fine(checksum_package: Callable[..., Path]) -> None:
    model = LLM(checksum_package("gqa"), threads=1)
    stream = model.stream([1, 2], SamplingParams(max_new_tokens=4000, temperature=0, ignore_eos=True))
    next(stream)
    model.close()
    model.close()

    with pytest.raises(errors.AbortedError, match="closed"):
        model.generate([1, 2], GREEDY)
    with pytest.raises(errors.AbortedError, match="closed"):
        list(stream)


def test_memory_budget_lowers_the_length_or_refuses(checksum_package: Callable[..., Path]) -> None:
    folder = checksum_package("gqa")
    with LLM(folder, threads=1) as model:
        per_token = model.info()["kv_bytes_per_token"]
    assert isinstance(per_token, int)
    # KV comes in blocks of 16 tokens, so of 40 tokens' bytes 32 can be used.
    with LLM(folder, threads=1, host_ram_limit=40 * per_token) as model:
        result = model.generate([1, 2], SamplingParams(max_new_tokens=100, temperature=0, ignore_eos=True))
        assert list(result.token_ids) == checksum_generate([1, 2], 30)
        assert result.budget_cap == (100, 30)
        with pytest.raises(errors.ContextOverflowError, match="host_ram_limit"):
            model.generate([1] * 32, GREEDY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_refused_and_the_parent_goes_on(llm: LLM) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate([1, 2], GREEDY)
            answer = b"no error"
        except errors.AbortedError as error:
            answer = str(error).encode()
        except BaseException as error:  # noqa: BLE001 (the child must report whatever happens)
            answer = repr(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 4096).decode()
    os.waitpid(child, 0)

    assert "fork" in answer
    assert list(llm.generate([1, 2], GREEDY).token_ids) == checksum_generate([1, 2], 3)


def test_package_without_a_tokenizer_still_takes_ids(checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(checksum_package("gqa"), folder)
    (folder / "tokenizer.json").unlink()

    with LLM(folder, threads=1) as model:
        result = model.generate([1, 2], GREEDY)
        assert list(result.token_ids) == checksum_generate([1, 2], 3)
        assert result.text == ""
        with pytest.raises(errors.PackageError, match=r"tokenizer\.json is missing"):
            model.generate("text", GREEDY)


def test_ids_beyond_the_tokenizer_are_never_drawn(checksum_package: Callable[..., Path]) -> None:
    params = SamplingParams(max_new_tokens=200, temperature=50.0, seed=1, ignore_eos=True, n=4)

    with LLM(checksum_package("concat_padded_vocab"), threads=1) as model:
        result = model.generate([1, 2], params)

    assert max(max(choice.token_ids) for choice in result.choices) < 97
