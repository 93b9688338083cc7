"""The command ``generate`` on a scripted model: streams, exit codes, flags, budget."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import errors
from tests.cli.conftest import Run
from tests.cli.fake_llm import Script


def test_generate_prints_the_answer_and_nothing_else_on_stdout(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi")

    assert (ran.code, ran.out, ran.err) == (0, "Hello\n", "")
    assert script.closed


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_generate_given_a_pipe_prints_the_same_bytes_with_and_without_stats(
    run: Run, script: Script, model: Path, options: list[str]
) -> None:
    with_stats = run("generate", model, "-p", "Hi", *options)
    without = run("generate", model, "-p", "Hi", "--no-stats", *options)

    assert with_stats == without
    assert with_stats.out == "Hello\n"


@pytest.mark.parametrize("pieces", [("a", "b"), ("a", "b\n"), ("a\n\n",), ("",)])
def test_stream_to_a_pipe_adds_exactly_one_line_end(
    run: Run, script: Script, model: Path, pieces: tuple[str, ...]
) -> None:
    script.pieces = pieces

    assert run("generate", model, "-p", "Hi", "--stream").out == "".join(pieces) + "\n"


@pytest.mark.parametrize(("pieces", "out"), [(("a", "b"), "ab\n"), (("a", "b\n"), "ab\n"), (("",), "")])
def test_stream_to_a_terminal_adds_a_line_end_only_where_one_is_missing(
    run: Run, script: Script, model: Path, pieces: tuple[str, ...], out: str
) -> None:
    script.pieces = pieces

    assert run("generate", model, "-p", "Hi", "--stream", terminal=True).out == out


def test_generate_given_terminals_prints_one_line_of_numbers_on_stderr(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi", terminal=True)

    assert ran.out == "Hello\n"
    assert ran.err.startswith("[ 8 in · 2 out · cache 0/8 (0%) · ctx 10 / 100 · backend slot on cpu · ")
    assert ran.err.count("\n") == 1
    assert run("generate", model, "-p", "Hi", "--no-stats", terminal=True).err == ""
    assert run("generate", model, "-p", "Hi", "--json-output", terminal=True).err == ""


def test_generate_applies_the_template_without_special_tokens_around_it(run: Run, script: Script, model: Path) -> None:
    run("generate", model, "-p", "Hi", "--system", "Be brief.")

    assert script.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert (script.prompts, script.special) == (["<system>Be brief.<user>Hi"], [False])


@pytest.mark.parametrize("raw", [True, False])
def test_generate_given_raw_or_no_template_takes_the_prompt_as_it_is(
    run: Run, script: Script, model: Path, raw: bool
) -> None:
    script.has_template = raw

    run("generate", model, "-p", "Hi", *(["--raw"] if raw else []))

    assert (script.prompts, script.special) == (["Hi"], [True])


def test_generate_given_a_broken_template_warns_and_goes_on_without(run: Run, script: Script, model: Path) -> None:
    script.render_error = errors.PackageError("chat_template.jinja: line 3: no end")

    ran = run("generate", model, "-p", "Hi")

    assert (ran.code, ran.out, script.prompts) == (0, "Hello\n", ["Hi"])
    assert ran.err.startswith("warning: the chat template is broken")
    assert "line 3" in ran.err


def test_generate_given_messages_that_the_template_refuses_fails(run: Run, script: Script, model: Path) -> None:
    script.render_error = errors.InvalidArgumentError("the chat template refuses the messages: no system")

    ran = run("generate", model, "-p", "Hi", "--system", "x")

    assert (ran.code, ran.out) == (1, "")
    assert "refuses the messages" in ran.err


def test_generate_given_system_without_a_template_fails(run: Run, script: Script, model: Path) -> None:
    script.has_template = False

    assert run("generate", model, "-p", "Hi", "--system", "x").code == 1
    assert run("generate", model, "-p", "Hi", "--system", "x", "--raw").code == 2


@pytest.mark.parametrize("arguments", [["-p", "-"], []])
def test_generate_given_stdin_reads_the_prompt_there(
    run: Run, script: Script, model: Path, arguments: list[str]
) -> None:
    ran = run("generate", model, "--raw", *arguments, stdin="zwei\nLinien é\r\n".encode())

    assert ran.code == 0
    assert script.prompts == ["zwei\nLinien é"]


@pytest.mark.parametrize(
    ("stdin", "code", "message"),
    [(b"", 2, "prompt is empty"), (b"\n", 2, "prompt is empty"), (b"\xff\xfe", 1, "not UTF-8 (byte 0)")],
)
def test_generate_given_a_stdin_without_text_says_so(
    run: Run, script: Script, model: Path, stdin: bytes, code: int, message: str
) -> None:
    ran = run("generate", model, stdin=stdin)

    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_generate_given_no_prompt_on_a_terminal_asks_for_it(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, stdin=b"", terminal=True)

    assert ran.code == 2
    assert "'-p' / '--prompt'" in ran.err


@pytest.mark.parametrize(
    ("arguments", "temperature"),
    [
        ([], 0.0),
        (["--temperature", "0.7"], 0.7),
        (["--temperature", "0"], 0.0),
        (["--top-p", "0.9"], 1.0),
        (["--top-k", "5"], 1.0),
        (["--top-k", "0"], 0.0),
        (["--min-p", "0.1"], 1.0),
        (["--seed", "1"], 0.0),
        (["--no-greedy"], 1.0),
        (["--temperature", "0.7", "--greedy"], 0.0),
        (["--temperature", "0", "--top-p", "0.9", "--no-greedy"], 0.0),
        (["--temperature", "0", "--top-k", "5"], 0.0),
    ],
)
def test_sampling_flags_decide_the_mode(
    run: Run, script: Script, model: Path, arguments: list[str], temperature: float
) -> None:
    run("generate", model, "-p", "Hi", *arguments)

    assert script.params is not None
    assert script.params.temperature == temperature


@pytest.mark.parametrize(("package", "temperature"), [(0.6, None), (0.0, 1.0), (None, 1.0)])
def test_no_greedy_takes_the_packages_temperature_unless_that_is_greedy(
    run: Run, script: Script, model: Path, package: float | None, temperature: float | None
) -> None:
    script.package_temperature = package

    run("generate", model, "-p", "Hi", "--no-greedy")

    assert script.params is not None
    assert script.params.temperature == temperature


def test_sampling_options_reach_the_params(run: Run, script: Script, model: Path) -> None:
    run(
        "generate", model, "-p", "Hi", "--max-new-tokens", "7", "--temperature", "0.5", "--top-p", "0.9",
        "--top-k", "40", "--min-p", "0.05", "--seed", "42", "--repetition-penalty", "1.1", "--frequency-penalty", "0.2",
        "--presence-penalty", "-0.3", "--stop", "END", "--stop", "\n", "--logprobs", "3", "--n", "2",
    )  # fmt: skip

    params = script.params
    assert params is not None
    assert (params.max_new_tokens, params.temperature, params.top_p, params.top_k) == (7, 0.5, 0.9, 40)
    assert (params.min_p, params.seed, params.repetition_penalty) == (0.05, 42, 1.1)
    assert (params.frequency_penalty, params.presence_penalty, params.stop) == (0.2, -0.3, ("END", "\n"))
    assert (params.logprobs, params.top_logprobs, params.n) == (True, 3, 2)


def test_model_options_reach_the_model(run: Run, script: Script, model: Path) -> None:
    run(
        "generate", model, "-p", "Hi", "--ep", "cuda", "--backend", "ort", "--variant", "q4", "--max-context", "64",
        "--vram-limit", "8GiB", "--host-ram-limit", "0.5", "--threads", "3", "--disk-limit", "1GiB",
        "--disk-folder", "kv", "--packed-cache", "2GiB", "--kv-dtype", "int8", "--no-prefix-cache",
        "--decoder", "paged",
    )  # fmt: skip

    assert script.path == model
    assert script.options == {
        "ep": "cuda",
        "ep_strict": False,
        "backend": "ort",
        "variant": "q4",
        "max_context": 64,
        "vram_limit": "8GiB",
        "host_ram_limit": "0.5",
        "disk_limit": "1GiB",
        "disk_folder": Path("kv"),
        "packed_cache": "2GiB",
        "kv_dtype": "int8",
        "prefix_cache": False,
        "decoder": "paged",
        "threads": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--greedy", "--no-greedy"], "exclude each other"),
        (["--backend", "onnx"], "auto, ort, or native"),
        (["--kv-dtype", "int4"], "bfloat16"),
        (["--decoder", "fast"], "paged"),
        (["--disk-folder", "kv"], "--disk-limit"),
        (["--disk-limit", "1TiB"], "8GiB"),
        (["--temperature", "-1"], "temperature is -1.0; allowed: a finite number >= 0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--top-k", "-2"], "top_k is -2"),
        (["--min-p", "1.5"], "min_p is 1.5"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--presence-penalty", "3"], "presence_penalty is 3.0"),
        (["--seed", "-1"], "seed is -1"),
        (["--stop", ""], "stop[0] is ''"),
        (["--n", "0"], "--n"),
        (["--n", "500"], "n is 500"),
        (["--n", "2", "--stream"], "--stream prints one answer"),
        (["--logprobs", "21"], "top_logprobs is 21"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--max-context", "0"], "--max-context"),
        (["--threads", "0"], "--threads"),
        (["--vram-limit", "1TiB"], "8GiB"),
        (["--host-ram-limit", "1 GiB"], "8GiB"),
        (["--no-such-option"], "No such option"),
        (["--model", "x"], "No such option"),
        (["one more"], "unexpected extra argument"),
        (["-p", ""], "prompt is empty"),
    ],
)
def test_generate_given_wrong_usage_exits_with_2_before_loading(
    run: Run, script: Script, model: Path, arguments: list[str], message: str
) -> None:
    ran = run("generate", model, "-p", "Hi", *arguments)

    assert (ran.code, ran.out, script.path) == (2, "", None)
    assert message in ran.err


def test_generate_given_no_model_exits_with_2(run: Run, script: Script) -> None:
    assert run("generate", "-p", "Hi").code == 2


def test_generate_given_a_prompt_that_fills_the_window_fails_with_the_numbers(
    run: Run, script: Script, model: Path
) -> None:
    script.context_limit = 8

    ran = run("generate", model, "-p", "Hi")

    assert (ran.code, ran.out) == (1, "")
    assert "8/8 tokens" in ran.err
    assert "shorten the prompt" in ran.err
    assert "--max-context" in ran.err


def test_generate_given_a_known_limit_fills_the_context(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi")

    assert script.params is not None
    assert (script.params.max_new_tokens, ran.err) == (None, "")


def test_generate_given_no_known_limit_takes_512_and_warns(run: Run, script: Script, model: Path) -> None:
    script.context_limit = None

    ran = run("generate", model, "-p", "Hi")

    assert script.params is not None
    assert script.params.max_new_tokens == 512
    assert "--max-context" in ran.err
    assert "model.max_sequence_length" in ran.err
    assert run("generate", model, "-p", "Hi", "--max-new-tokens", "9").err == ""


def test_generate_given_a_capped_budget_names_both_numbers(run: Run, script: Script, model: Path) -> None:
    script.budget_cap = (90, 40)

    ran = run("generate", model, "-p", "Hi")

    assert ran.out == "Hello\n"
    assert "allows 40 of the 90 new tokens" in ran.err


def test_generate_given_several_answers_prints_each_on_its_own_line(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi", "--n", "2")

    assert ran.out == "=== answer 1 of 2 ===\nHello\n=== answer 2 of 2 ===\nHello\n"


@pytest.mark.parametrize(
    ("prompt", "stdin", "expected"),
    [("Sum up:", b"some\ntext\n", "Sum up:\n\nsome\ntext"), ("Hi", b"", "Hi"), ("", b"only", "only"), ("-", b"x", "x")],
)
def test_generate_given_a_prompt_and_stdin_joins_them(
    run: Run, script: Script, model: Path, prompt: str, stdin: bytes, expected: str
) -> None:
    run("generate", model, "-p", prompt, stdin=stdin)

    assert script.messages == [{"role": "user", "content": expected}]


def test_generate_given_json_is_the_same_as_json_output(run: Run, script: Script, model: Path) -> None:
    value = json.loads(run("generate", model, "-p", "Hi", "--json").out)

    assert value["text"] == "Hello"
    assert value["execution_provider"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regex", "a+", "--choice", "b"], "regex and choice exclude each other"),
        (["--output", "o.jsonl"], "--batch"),
        (["--parallel", "4"], "--batch"),
        (["--n", "2", "--session", "s.kv"], "--n 1"),
        (["--schema", "nosuch.json"], "nosuch.json"),
    ],
)
def test_generate_given_options_that_do_not_fit_is_wrong_usage(
    run: Run, script: Script, model: Path, arguments: list[str], message: str
) -> None:
    ran = run("generate", model, "-p", "Hi", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert script.path is None


def test_generate_given_another_provider_says_which_is_in_use(run: Run, script: Script, model: Path) -> None:
    script.provider = "ggml"

    assert run("generate", model, "-p", "Hi", "--ep", "ggml").err == (
        "execution provider: ggml, and cpu for what it does not take\n"
    )


def test_generate_given_more_threads_than_cores_warns(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi", "--threads", "1024")

    assert ran.err.startswith("warning: --cpu-cores 1024 is more than the ")
    assert script.options["threads"] == 1024


def test_generate_given_json_output_prints_one_object(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi", "--json-output", "--n", "2", "--logprobs", "1")

    value: dict[str, Any] = json.loads(ran.out)
    assert (value["text"], value["token_ids"], value["finish_reason"]) == ("Hello", [0, 1], "stop")
    assert value["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12, "cached_tokens": 0}
    assert [choice["index"] for choice in value["choices"]] == [0, 1]
    assert value["choices"][1]["logprobs"][0] == {
        "token": "Hel",
        "bytes": [72, 101, 108],
        "token_id": 1,
        "logprob": -0.5,
        "top": [{"token": "?", "bytes": [63], "token_id": 9, "logprob": -2.0}],
    }


def test_generate_given_json_output_and_stream_prints_an_object_a_line(run: Run, script: Script, model: Path) -> None:
    lines = run("generate", model, "-p", "Hi", "--json-output", "--stream").out.splitlines()

    values = [json.loads(line) for line in lines]
    assert "".join(value["text"] for value in values) == "Hello"
    assert [value["finish_reason"] for value in values] == [None, "stop"]
    assert values[-1]["usage"]["completion_tokens"] == 2


def test_generate_given_logprobs_prints_them_on_stderr(run: Run, script: Script, model: Path) -> None:
    ran = run("generate", model, "-p", "Hi", "--logprobs", "1")

    assert ran.out == "Hello\n"
    assert ran.err.splitlines()[0] == "'Hel' -0.5000 |  '?' -2.0000"


def test_generate_given_an_emoji_prints_it(run: Run, script: Script, model: Path) -> None:
    script.pieces = ("é", "😀")

    assert run("generate", model, "-p", "Hi", "--stream").out == "é😀\n"


def test_generate_interrupted_while_it_runs_exits_with_130(run: Run, script: Script, model: Path) -> None:
    script.stream_error = KeyboardInterrupt()

    ran = run("generate", model, "-p", "Hi")

    assert (ran.code, ran.out, ran.err) == (130, "", "^C interrupted\n")
    assert script.closed


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.PackageError("model/model.onnx: is cut off"), "model/model.onnx: is cut off"),
        (errors.BackendError("ORT 1: no such operator"), "ORT 1"),
        (errors.ResourceExhaustedError("KV needs 9 GiB, the budget is 1 GiB"), "9 GiB"),
        (errors.UnsupportedError("backend is 'native', but no operator of this graph has a kernel of ours"), "native"),
        (PermissionError(13, "Permission denied", "/x/model.onnx"), "Permission denied: /x/model.onnx"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "MemoryError"),
        (ModuleNotFoundError("No module named 'gguf'"), "No module named 'gguf'"),
        (RuntimeError("something odd"), "RuntimeError: something odd"),
    ],
)
@pytest.mark.parametrize("place", ["load_error", "stream_error"])
def test_generate_given_a_failure_prints_what_why_and_how(
    run: Run, script: Script, model: Path, error: Exception, message: str, place: str
) -> None:
    setattr(script, place, error)

    ran = run("generate", model, "-p", "Hi")

    lines = ran.err.splitlines()
    assert (ran.code, ran.out) == (1, "")
    assert lines[0].startswith("What happened: ")
    assert message in lines[0]
    assert lines[1].startswith("Why: ")
    assert lines[2].startswith("How to fix: ")
    assert "Traceback" not in ran.err


def test_generate_given_a_failure_with_a_cause_prints_the_chain(run: Run, script: Script, model: Path) -> None:
    error = errors.PackageError("model.onnx cannot be read")
    error.__cause__ = OSError(5, "Input/output error")
    script.load_error = error

    assert "(Input/output error)" in run("generate", model, "-p", "Hi").err


def test_generate_given_debug_prints_the_traceback_too(run: Run, script: Script, model: Path) -> None:
    script.load_error = errors.PackageError("broken")

    ran = run("--debug", "generate", model, "-p", "Hi")

    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "What happened: broken" in ran.err


def test_generate_given_a_missing_path_fails_without_fetching(run: Run, script: Script, tmp_path: Path) -> None:
    ran = run("generate", tmp_path / "no" / "model", "-p", "Hi")

    assert (ran.code, ran.out) == (1, "")
    assert "does not exist" in ran.err


def test_generate_given_terminals_everywhere_prints_two_lines_of_numbers(
    run: Run, script: Script, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    lines = run("generate", model, "-p", "Hi", terminal=True).err.splitlines()

    assert len(lines) == 2
    assert lines[0].startswith("[ 8 in · 2 out · backend slot on cpu · ")
    assert lines[0].endswith(" · finish eos")
    assert lines[1].strip().startswith("cache 0/8 0% · ctx 10/100 · ")
