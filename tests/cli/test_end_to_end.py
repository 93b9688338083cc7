"""The command ``generate`` on real packages: tiny models built in code, run by the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run

TEXT = "Hello wörld 😀\nbye"


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_generate_prints_what_the_model_says(
    run: Run, scripted_package: Callable[..., Path], options: list[str]
) -> None:
    ran = run("generate", scripted_package(TEXT), "-p", "Hi", *options)

    assert (ran.code, ran.out, ran.err) == (0, TEXT + "\n", "")


def test_generate_given_a_stop_text_ends_before_it(run: Run, scripted_package: Callable[..., Path]) -> None:
    ran = run("generate", scripted_package(TEXT), "-p", "Hi", "--stop", "😀", "--json-output")

    value = json.loads(ran.out)
    assert (value["text"], value["finish_reason"]) == ("Hello wörld ", "stop")
    assert value["choices"][0]["stop_reason"] == "😀"


def test_generate_given_a_full_window_ends_with_length(run: Run, scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package("x" * 500, context_length=40, chat_template=None)

    value = json.loads(run("generate", folder, "-p", "Hi", "--json-output").out)

    assert value["finish_reason"] == "length"
    assert (value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]) == (2, 40 - 2)


def test_generate_given_a_profile_prints_it_in_place_of_the_numbers(
    run: Run, scripted_package: Callable[..., Path]
) -> None:
    command = ("generate", scripted_package(TEXT), "-p", "Hi")

    plain, profiled = run(*command, terminal=True), run(*command, "--profile", terminal=True)

    assert "[ " in plain.err
    assert " on cpu · " in plain.err
    assert "[ " not in profiled.err
    assert "generated tokens" in profiled.err


def test_generate_given_a_prompt_as_long_as_the_window_fails(run: Run, scripted_package: Callable[..., Path]) -> None:
    folder = scripted_package("x", context_length=10, chat_template=None)

    ran = run("generate", folder, "-p", "0123456789")

    assert (ran.code, ran.out) == (1, "")
    assert "10/10 tokens" in ran.err


def test_generate_given_max_new_tokens_makes_exactly_that_many(run: Run, scripted_package: Callable[..., Path]) -> None:
    value = json.loads(
        run("generate", scripted_package(TEXT), "-p", "Hi", "--max-new-tokens", "5", "--json-output").out
    )

    assert (len(value["token_ids"]), value["finish_reason"]) == (5, "length")


def test_generate_given_the_same_seed_gives_the_same_answer(run: Run, checksum_package: Callable[..., Path]) -> None:
    command = (
        "generate",
        checksum_package("gqa"),
        "-p",
        "w5 w6",
        "--raw",
        "--temperature",
        "1.5",
        "--max-new-tokens",
        "12",
    )

    first, again, other = (run(*command, "--seed", seed).out for seed in (7, 7, 8))

    assert first == again != other


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "config.json"])
def test_generate_given_a_broken_file_names_it(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in scripted_package(TEXT).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / name).write_bytes((folder / name).read_bytes()[:40])

    ran = run("generate", folder, "-p", "Hi")

    assert (ran.code, ran.out) == (1, "")
    assert name in ran.err
    assert "Traceback" not in ran.err


def test_generate_given_the_native_backend_and_nothing_quantized_fails(
    run: Run, scripted_package: Callable[..., Path]
) -> None:
    ran = run("generate", scripted_package(TEXT), "-p", "Hi", "--backend", "native")

    assert (ran.code, ran.out) == (1, "")
    assert "backend is 'native'" in ran.err
    assert "no quantized matrix products" in ran.err


def test_generate_given_a_provider_that_is_not_here_warns_in_one_line_and_runs_on_the_cpu(
    run: Run, scripted_package: Callable[..., Path]
) -> None:
    command = ("generate", scripted_package(TEXT), "-p", "Hi", "--ep", "nosuch,cpu")

    lenient, strict = run(*command), run(*command, "--ep-strict")

    assert (lenient.code, lenient.out) == (0, TEXT + "\n")
    assert re.fullmatch(
        r"warning: execution provider nosuch is not in ONNX Runtime [0-9.]+, which has [a-z ]+; running on cpu\n",
        lenient.err,
    )
    assert (strict.code, strict.out) == (1, "")
    assert "nosuch" in strict.err


def test_generate_given_a_file_of_the_package_takes_the_package(
    run: Run, scripted_package: Callable[..., Path]
) -> None:
    assert run("generate", scripted_package(TEXT) / "model.onnx", "-p", "Hi").out == TEXT + "\n"


@pytest.mark.real_model
def test_generate_given_the_real_model_counts(run: Run, smollm2: Path) -> None:
    ran = run("generate", smollm2, "-p", "Count from 1 to 10.", "--max-new-tokens", "64")

    assert ran.code == 0
    assert all(str(number) in ran.out for number in range(1, 11))
