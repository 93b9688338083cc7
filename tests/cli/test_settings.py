"""Config file, environment, and which of them wins."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.fake_llm import Script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the folder for settings is that of Linux")


@pytest.fixture
def config(own_settings: Path) -> Callable[[str], Path]:
    """Writes the user's config file."""

    def write(text: str) -> Path:
        own_settings.mkdir(parents=True, exist_ok=True)
        path = own_settings / "config.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_config_file_sets_options_of_one_command_and_of_all(
    run: Run, script: Script, model: Path, config: Callable[[str], Path]
) -> None:
    config('max-context = 50\n[generate]\nmax_new_tokens = 7\nstop = ["a", "b"]\nraw = true\n[serve]\nport = 1\n')

    assert run("generate", model, "-p", "Hi").code == 0

    assert script.options["max_context"] == 50
    assert script.params is not None
    assert (script.params.max_new_tokens, script.params.stop) == (7, ("a", "b"))
    assert script.messages is None  # raw


def test_flag_beats_environment_beats_config_beats_default(
    run: Run, script: Script, model: Path, config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def context() -> object:
        assert run("generate", model, "-p", "Hi", *flags).code == 0
        return script.options["max_context"]

    flags: list[str] = []
    assert context() is None
    config("max-context = 1\n")
    assert context() == 1
    config("max-context = 1\n[generate]\nmax-context = 2\n")
    assert context() == 2
    monkeypatch.setenv("ONNX_GENAI_MAX_CONTEXT", "30")
    assert context() == 30
    monkeypatch.setenv("ONNX_GENAI_GENERATE_MAX_CONTEXT", "40")
    assert context() == 40
    flags = ["--max-context", "50"]
    assert context() == 50


def test_threads_have_the_variable_of_their_own(
    run: Run, script: Script, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_GENAI_CPU_DECODE_THREADS", "1")
    run("generate", model, "-p", "Hi")
    assert script.options["threads"] == 1

    run("generate", model, "-p", "Hi", "--cpu-cores", "2")
    assert script.options["threads"] == 2


def test_sampling_flag_beats_greedy_of_the_config_file(
    run: Run, script: Script, model: Path, config: Callable[[str], Path]
) -> None:
    config("[generate]\ngreedy = true\n")

    run("generate", model, "-p", "Hi")
    assert script.params is not None
    assert script.params.temperature == 0

    run("generate", model, "-p", "Hi", "--temperature", "0.5")
    assert script.params.temperature == 0.5


def test_greedy_flag_beats_no_greedy_of_the_config_file(
    run: Run, script: Script, model: Path, config: Callable[[str], Path]
) -> None:
    config("[generate]\nno-greedy = true\n")

    assert run("generate", model, "-p", "Hi", "--greedy").code == 0
    assert script.params is not None
    assert script.params.temperature == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-contxt = 5\n", "unknown key max-contxt, did you mean max-context?"),
        ("[generate]\ntemprature = 5\n", "unknown key [generate] temprature, did you mean temperature?"),
        ("[serv]\nport = 5\n", "the table [serv], did you mean serve?"),
        ("generate = 5\n", "generate is a command; write a table, [generate]"),
        ("[generate]\ntemperature = 'hot'\n", "[generate] temperature is 'hot'"),
        ("[generate]\nraw = 1\n", "[generate] raw is 1; allowed: true or false"),
        ("[generate]\nseed = [1]\n", "[generate] seed is [1]; allowed: a text or a number"),
        ("[generate\n", "is no TOML"),
    ],
)
def test_config_file_that_is_wrong_is_an_error_with_the_place(
    run: Run, script: Script, model: Path, config: Callable[[str], Path], text: str, message: str
) -> None:
    path = config(text)

    ran = run("generate", model, "-p", "Hi")

    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err
    assert str(path) in ran.err
    assert script.path is None


def test_config_option_and_variable_name_a_file(
    run: Run, script: Script, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    file.write_text("max-context = 5\n", encoding="utf-8")

    assert run("--config", file, "generate", model, "-p", "Hi", "--raw").code == 0
    assert script.options["max_context"] == 5
    monkeypatch.setenv("ONNX_GENAI_CONFIG", str(tmp_path / "nosuch.toml"))
    assert "nosuch.toml" in run("generate", model, "-p", "Hi").err


def test_no_file_of_the_working_folder_is_read(
    run: Run, script: Script, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("onnx-genai.toml", "config.toml"):
        (tmp_path / name).write_text("max-context = 5\n", encoding="utf-8")

    run("generate", model, "-p", "Hi")

    assert script.options["max_context"] is None


def test_show_config_tells_value_and_source_of_each_option(
    run: Run, scripted_package: Callable[..., Path], config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("max-context = 9\n[generate]\nseed = 3\ntop-k = 4\n")
    monkeypatch.setenv("ONNX_GENAI_GENERATE_SEED", "5")

    facts = json.loads(run("show", "--config", "--json").out)

    options = {row["option"]: (row["value"], row["source"]) for row in facts["options"]}
    assert facts["config_file"] == str(path)
    assert facts["precedence"] == ["command line", "environment", "config file", "package", "default"]
    assert options["--max-context"] == (9, "config file, max-context")
    assert options["--top-k"] == (4, "config file, [generate] top-k")
    assert options["--seed"] == (5, "environment ONNX_GENAI_GENERATE_SEED")
    assert options["--ep"] == ("cpu", "default")
    assert options["--temperature"] == (None, "default")
    lines = run("show", "--config", "--command", "serve").out.splitlines()
    assert lines[0] == f"config file: {path}"
    assert any(line.split()[:2] == ["--port", "8080"] for line in lines)


def test_show_config_given_a_model_adds_what_its_package_says(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in scripted_package("Hello").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.25}', encoding="utf-8")

    facts = json.loads(run("show", folder, "--config", "--json").out)

    row = next(row for row in facts["options"] if row["option"] == "--temperature")
    assert row["value"] == 0.25
    assert row["source"].startswith("package, ")
    assert row["source"].endswith("generation_config.json")


def test_command_of_two_words_has_a_table_of_its_own(
    run: Run, config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config('seed = 3\n[bench]\nrepetitions = 2\n[bench.serve]\nnum-prompts = 7\nbase-url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv("ONNX_GENAI_BENCH_SERVE_BURSTINESS", "2")

    facts = json.loads(run("show", "--config", "--command", "bench serve", "--json").out)
    ran = run("bench", "serve")

    options = {row["option"]: (row["value"], row["source"]) for row in facts["options"]}
    assert options["--num-prompts"] == (7, "config file, [bench.serve] num-prompts")
    assert options["--seed"] == (3, "config file, seed")
    assert options["--burstiness"] == (2.0, "environment ONNX_GENAI_BENCH_SERVE_BURSTINESS")
    assert ran.code == 1
    assert "127.0.0.1:9" in ran.err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[bench.serve]\nnum-prompt = 7\n", "unknown key [bench.serve] num-prompt, did you mean num-prompts?"),
        ("[bench.serve]\nnum-prompts = 0\n", "[bench.serve] num-prompts is 0"),
        ("[bench.nosuch]\nx = 0\n", "unknown key [bench] nosuch"),
    ],
)
def test_table_of_two_words_that_is_wrong_is_an_error(
    run: Run, config: Callable[[str], Path], text: str, part: str
) -> None:
    config(text)

    ran = run("show", "--config")

    assert ran.code == 1
    assert part in ran.err


def test_show_config_given_no_command_is_wrong_usage(run: Run) -> None:
    for name in ("nosuch", "bench nosuch", ""):
        assert run("show", "--config", "--command", name).code == 2
