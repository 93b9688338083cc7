"""``generate`` with saved turns and with grammars, on tiny packages; and MODEL by the name that ``list`` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM
from tests.cli.conftest import Run
from tests.models.packages import CHATML

TEXT = "Hello wörld 😀\nbye"


@pytest.mark.parametrize("option", ["--lark", "--schema"])
def test_a_file_that_is_not_utf_8_is_told(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, option: str
) -> None:
    file = tmp_path / "form"
    file.write_bytes(b"{}\xff")

    ran = run("generate", scripted_package("x"), "-p", "Hi", option, file)

    assert ran.code == 2
    assert "is not UTF-8 (byte 2)" in " ".join(ran.err.split())
    assert "fault in onnx-genai" not in ran.err


def test_session_goes_on_with_what_the_template_would_write(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    folder, file = scripted_package(TEXT), tmp_path / "turns.kv"
    command = ("generate", folder, "--session", file, "--system", "Be short.")

    first = run(*command, "-p", "Hi")
    second = json.loads(run(*command[:-2], "-p", "More?", "--json").out)

    assert first.out == TEXT + "\n"
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": TEXT},
        {"role": "user", "content": "More?"},
    ]
    with LLM(folder) as llm:
        expected = llm.encode_chat(messages)
        tokens = list(llm.load_session(file).tokens)
    assert tokens == [*expected, *second["token_ids"]]
    assert second["usage"]["prompt_tokens"] == len(expected)


def test_session_given_raw_appends_the_text(run: Run, scripted_package: Callable[..., Path], tmp_path: Path) -> None:
    folder, file = scripted_package(TEXT), tmp_path / "turns.kv"
    command = ("generate", folder, "--session", file, "--raw", "--max-new-tokens", "2")

    run(*command, "-p", "abc")
    run(*command, "-p", "def")

    with LLM(folder) as llm:
        text = llm.tokenizer.decode(list(llm.load_session(file).tokens))
        assert text.startswith("abc")
        assert "def" in text
        assert len(llm.load_session(file).tokens) == 2 * (3 + 2)


def test_session_file_brings_the_kv_of_the_turns(
    run: Run, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    command = (
        "generate",
        checksum_package("gqa"),
        "--session",
        tmp_path / "turns.kv",
        "--raw",
        "--max-new-tokens",
        "5",
    )
    words = " ".join(f"w{number}" for number in range(1, 41))

    first = json.loads(run(*command, "-p", words, "--json").out)["usage"]
    second = json.loads(run(*command, "-p", "w3 w4", "--json").out)["usage"]

    assert first["cached_tokens"] == 0
    assert second["prompt_tokens"] == first["total_tokens"] + 2
    assert second["cached_tokens"] == first["total_tokens"] // 16 * 16 == 32  # whole blocks


def test_session_given_a_failure_leaves_the_file(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    folder, file = scripted_package(TEXT), tmp_path / "turns.kv"
    assert run("generate", folder, "--session", file, "-p", "Hi").code == 0
    before = file.read_bytes()

    ran = run("generate", folder, "--session", file, "-p", "x" * 5000)
    again = run("generate", folder, "--session", file, "-p", "Hi", "--system", "S")

    assert (ran.code, again.code) == (1, 1)
    assert "context window" in ran.err
    assert "leave --system out" in again.err
    assert file.read_bytes() == before


def test_session_of_another_model_is_refused(
    run: Run, scripted_package: Callable[..., Path], checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "turns.kv"
    assert run("generate", scripted_package(TEXT), "--session", file, "-p", "Hi").code == 0

    ran = run("generate", checksum_package("gqa"), "--raw", "--session", file, "-p", "w5")

    assert ran.code == 1
    assert "another model" in ran.err


@pytest.mark.parametrize(
    ("option", "value", "pattern"),
    [
        ("--regex", "[0-9]{3}-[a-c]", "[0-9]{3}-[a-c]"),
        ("--choice", "yes", "yes|no way"),
        ("--lark", 'start: "<" /[xy]{2}/ ">"', "<[xy]{2}>"),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_generate_given_a_grammar_follows_it(
    run: Run,
    scripted_package: Callable[..., Path],
    tmp_path: Path,
    option: str,
    value: str,
    pattern: str,
    raw: bool,
) -> None:
    if option == "--lark":
        (tmp_path / "grammar.lark").write_text(value, encoding="utf-8")
        value = str(tmp_path / "grammar.lark")
    arguments = [option, value, *(["--choice", "no way"] if option == "--choice" else []), *(["--raw"] if raw else [])]

    ran = run("generate", scripted_package(TEXT), "-p", "Hi", *arguments)

    assert ran.code == 0
    assert re.fullmatch(pattern, ran.out.removesuffix("\n"))


@pytest.mark.parametrize("saved", [False, True])
def test_a_mark_of_reasoning_in_the_prompt_leaves_the_grammar(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, saved: bool
) -> None:
    folder = scripted_package(TEXT, chat_template=CHATML + "{# <think> </think> #}")
    command = ["generate", folder, *(["--session", tmp_path / "turns.kv"] if saved else [])]

    for _ in range(2):
        ran = run(*command, "-p", "What is <think>?", "--regex", "[0-9]{3}-[a-c]")
        assert re.fullmatch("[0-9]{3}-[a-c]\n", ran.out)


def test_a_template_that_opens_reasoning_leaves_it_free_of_the_grammar(
    run: Run, scripted_package: Callable[..., Path]
) -> None:
    folder = scripted_package("Hm.</think>1", chat_template=CHATML + "{% if add_generation_prompt %}<think>{% endif %}")

    ran = run("generate", folder, "-p", "a </think> b", "--regex", "[0-9]")

    assert ran.out == "Hm.</think>1\n"


def test_generate_given_a_schema_gives_json_that_fits(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({**schema, "additionalProperties": False}), encoding="utf-8")

    value: Any = json.loads(run("generate", scripted_package(TEXT), "-p", "Hi", "--schema", file).out)

    assert list(value) == ["ok"]
    assert isinstance(value["ok"], bool)


@pytest.mark.parametrize(("content", "part"), [("{", "is no JSON"), ('"text"', "allowed: an object")])
def test_generate_given_a_schema_that_is_none_is_wrong_usage(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, content: str, part: str
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(content, encoding="utf-8")

    ran = run("generate", scripted_package(TEXT), "-p", "Hi", "--schema", file)

    assert ran.code == 2
    assert part in ran.err


def test_name_that_list_prints_is_a_model_for_other_commands(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    for name in ("own", "group/other"):
        (models / name).mkdir(parents=True)
        for file in scripted_package(TEXT).iterdir():
            (models / name / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("ONNX_GENAI_MODELS_DIR", str(models))

    names = [line.split("\t")[0] for line in run("list").out.splitlines() if str(tmp_path) in line]

    assert names == ["group/other", "own"]
    for name in names:
        assert run("generate", name, "-p", "Hi").out == TEXT + "\n"
        assert f"model directory: {models / name}" in run("show", name).out
    assert run("generate", "nosuch", "-p", "Hi").code == 1


@pytest.mark.real_model
def test_session_of_the_real_model_remembers(run: Run, smollm2: Path, tmp_path: Path) -> None:
    command = ("generate", smollm2, "--session", tmp_path / "turns.kv", "--max-new-tokens", "24")

    run(*command, "-p", "The secret word is banana. Say OK.")
    second = run(*command, "-p", "What is the secret word?")

    assert "banana" in second.out.lower()
