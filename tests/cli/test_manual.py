"""Help with examples, manual pages, and what the Tab key offers."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from onnx_genai.cli.app import COMMANDS, group
from onnx_genai.cli.manual import EXAMPLES
from tests.cli.conftest import Run

LINES = [line for examples in EXAMPLES.values() for _, line in examples]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_examples_in_help_and_manual(run: Run, name: str) -> None:
    assert len(EXAMPLES[name]) >= 2

    short, long = run(name, "-h").out, run("help", name).out

    for _, line in EXAMPLES[name]:
        assert line in short
        assert line in long
    for heading in ("NAME", "SYNOPSIS", "OPTIONS", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES"):
        assert f"\n{heading}:\n" in f"\n{long}"
    assert max(map(len, long.splitlines())) <= 110


@pytest.mark.parametrize("line", LINES)
def test_every_example_is_a_right_command_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("person.json", "in.jsonl", "texts.txt", "model.gguf", "keys.txt"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    line = line.removeprefix('eval "$(').removesuffix(')"').split("|")[-1].split(">")[0]
    program, *words = shlex.split(line)
    root = click.Context(group, info_name="onnx-genai")

    command, rest = group.find_command(root, words)

    assert program == "onnx-genai"
    assert command is not None
    command.make_context(command.name, rest, parent=root)  # raises if an option is wrong


def test_help_without_a_command_lists_them(run: Run) -> None:
    assert run("help").out == run("--help").out
    assert run("help", "nosuch").code == 2


def test_manual_names_the_variables_of_an_option(run: Run) -> None:
    page = run("help", "generate").out

    assert "ONNX_GENAI_GENERATE_EP, ONNX_GENAI_EP" in page
    assert "ONNX_GENAI_CPU_DECODE_THREADS" in page
    assert "ONNX_GENAI_GENERATE_JSON" in page


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(run: Run, shell: str) -> None:
    ran = run("completion", shell)

    assert (ran.code, ran.err) == (0, "")
    assert "_ONNX_GENAI_COMPLETE" in ran.out


def test_completion_given_another_shell_is_wrong_usage(run: Run) -> None:
    assert run("completion", "tcsh").code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gen"], {"generate"}),
        (["generate", "smol"], {"smollm2", "smollm2-1.7b"}),
        (["generate", "x", "--kv-dtype", "flo"], {"float32", "float16"}),
        (["serve", "x", "--max-out"], {"--max-output-tokens"}),
        (["completion", "b"], {"bash"}),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_tab_in_bash_offers(tmp_path: Path, words: list[str], expected: set[str]) -> None:
    program = tmp_path / "onnx-genai"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom onnx_genai.cli import main\nsys.exit(main())\n", encoding="utf-8"
    )
    program.chmod(0o755)
    typed = " ".join(shlex.quote(word) for word in ["onnx-genai", *words])
    script = (
        f'PATH={shlex.quote(str(tmp_path))}:$PATH\neval "$(onnx-genai completion bash)"\nCOMP_WORDS=({typed})\n'
        f"COMP_CWORD={len(words)}\ncompopt() {{ :; }}\n_onnx_genai_completion onnx-genai\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )

    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)

    assert set(done.stdout.split()) == expected
