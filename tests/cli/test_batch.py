"""``generate --batch``: order, bad lines, and going on after every way to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.cli import batch
from onnx_genai.cli.batch_line import check_fields, parse_fields
from onnx_genai.cli.options import SamplingOptions
from onnx_genai.errors import InvalidArgumentError
from tests.cli.conftest import Run

TEXT = "Hello wörld 😀\nbye"


def _write(path: Path, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_batch_answers_each_line_in_order(run: Run, scripted_package: Callable[..., Path], tmp_path: Path) -> None:
    prompts = _write(
        tmp_path / "in.jsonl",
        [
            {"id": "a", "prompt": "Hi"},
            "",
            {"custom_id": 7, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
            {"prompt": "Hi", "stop": "😀"},
        ],
    )

    ran = run("generate", scripted_package(TEXT), "--batch", prompts, "--output", tmp_path / "out.jsonl")

    assert (ran.code, ran.out) == (0, "")
    first, second, third = _records(tmp_path / "out.jsonl")
    assert (first["id"], first["line"], first["text"], first["finish_reason"]) == ("a", 1, TEXT, "stop")
    assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert (second["id"], second["line"], second["finish_reason"]) == (7, 3, "length")
    assert second["usage"]["completion_tokens"] == 3
    assert (third["text"], third["stop_reason"]) == ("Hello wörld ", "😀")


def test_batch_given_bad_lines_records_errors_and_goes_on(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = _write(
        tmp_path / "in.jsonl",
        [
            "{broken",
            "[1]",
            {"prompt": ""},
            {"prompt": "a", "messages": []},
            {"prompt": "a", "temprature": 1},
            {"prompt": "a", "temperature": -1},
            {"prompt": "a", "temperature": "hot"},
            {"prompt": "a", "n": 0},
            {"prompt": "a", "raw": 3},
            {"prompt": "a", "schema": {"type": "object"}, "regex": "b"},
            {"prompt": "a" * 5000},
            {"prompt": "Hi"},
        ],
    )
    (tmp_path / "in.jsonl").write_bytes(prompts.read_bytes() + b'\xff{"prompt": 1}\n')

    ran = run("generate", scripted_package(TEXT), "--batch", prompts, "--output", tmp_path / "out.jsonl")

    records = _records(tmp_path / "out.jsonl")
    assert ran.code == 0
    assert "13 prompts answered, 12 of them with an error" in ran.err
    assert [("error" in record) for record in records] == [True] * 11 + [False, True]
    messages = [record["error"]["message"] for record in records if "error" in record]
    assert "did you mean temperature?" in messages[4]
    assert "temperature is 'hot'" in messages[6]
    assert "exclude each other" in messages[9]
    assert records[10]["error"]["type"] == "ContextOverflowError"
    assert records[11]["text"] == TEXT


def test_batch_given_options_of_a_line_lets_them_win(
    run: Run, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    line = {"prompt": "w5 w6", "raw": True}
    prompts = _write(
        tmp_path / "in.jsonl",
        [
            line,
            {**line, "temperature": 1.5, "seed": 7},
            {**line, "temperature": 1.5, "seed": 7},
            {**line, "n": 2},
            line,
        ],
    )
    command = ("generate", checksum_package("gqa"), "--batch", prompts, "--greedy", "--max-new-tokens", "12")

    lines = [json.loads(text) for text in run(*command).out.splitlines()]

    assert lines[1]["text"] == lines[2]["text"] != lines[0]["text"] == lines[4]["text"]
    assert len(lines[3]["choices"]) == 2
    alone = run("generate", command[1], "-p", "w5 w6", "--raw", "--max-new-tokens", "12")
    assert alone.out == lines[0]["text"] + "\n"


def test_batch_given_a_seed_counts_it_up(run: Run, checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "w5 w6"}] * 3)
    command = ("generate", checksum_package("gqa"), "--raw", "--temperature", "1.5", "--max-new-tokens", "12")

    first, second, third = (json.loads(t) for t in run(*command, "--batch", prompts, "--seed", 7).out.splitlines())

    assert len({first["text"], second["text"], third["text"]}) == 3
    assert run(*command, "-p", "w5 w6", "--seed", 8).out == second["text"] + "\n"


@pytest.mark.parametrize("rest", [b"", b'{"line": 3, "inp', b'{"line": 3}'])
def test_batch_given_half_an_output_goes_on(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, rest: bytes
) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": f"Hi {n}", "max_new_tokens": n + 1} for n in range(6)])
    command = ("generate", scripted_package(TEXT), "--batch", prompts, "--output")
    assert run(*command, tmp_path / "whole.jsonl").code == 0
    whole = (tmp_path / "whole.jsonl").read_bytes()
    half = tmp_path / "half.jsonl"
    half.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]) + rest)

    ran = run(*command, half)

    assert half.read_bytes() == whole
    assert "2 of 6 answers are there" in ran.err
    assert run(*command, half).err == f"{half}: 6 prompts answered\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json\n{}\n", "line 1 is no record of a batch"),
        (b"the only line of some notes\n", "line 1 is no record of a batch"),
        (b'{"line": 1, "input": "other"}\n', "record 1 does not belong to these prompts"),
    ],
)
def test_batch_given_an_output_of_something_else_refuses_it(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, content: bytes, message: str
) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "Hi"}])
    output = tmp_path / "out.jsonl"
    output.write_bytes(content)
    command = ("generate", scripted_package(TEXT), "--batch", prompts, "--output", output)

    ran = run(*command)

    assert ran.code == 1
    assert message in ran.err
    assert output.read_bytes() == content
    assert run(*command, "--overwrite").code == 0
    assert _records(output)[0]["text"] == TEXT


def test_batch_given_its_own_input_as_output_refuses_it(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "Hi"}])
    before = prompts.read_bytes()

    ran = run("generate", scripted_package(TEXT), "--batch", prompts, "--output", prompts, "--overwrite")

    assert ran.code == 1
    assert prompts.read_bytes() == before


@pytest.mark.parametrize("existing", [True, False])
def test_batch_given_overwrite_and_a_model_that_is_not_there_keeps_the_output(
    run: Run, tmp_path: Path, existing: bool
) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "Hi"}])
    output = tmp_path / "out.jsonl"
    if existing:
        output.write_bytes(b"kept\n")

    ran = run("generate", tmp_path / "nosuch", "--batch", prompts, "--output", output, "--overwrite")

    assert ran.code == 1
    assert (output.read_bytes() if output.exists() else b"") == (b"kept\n" if existing else b"")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("to_file", [True, False])
def test_batch_given_a_pipe_answers_each_line(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, to_file: bool
) -> None:
    pipe, output = tmp_path / "in.pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    lines = [{"id": n, "prompt": "Hi " + "x" * 50, "max_new_tokens": 2} for n in range(2000)]
    text = "".join(json.dumps(line) + "\n" for line in lines)  # more than a pipe holds
    writer = threading.Thread(target=lambda: pipe.write_text(text, encoding="utf-8"), daemon=True)
    writer.start()

    ran = run(
        "generate", scripted_package(TEXT), "--batch", pipe, "--parallel", "64", *(["--output", output] * to_file)
    )

    writer.join(timeout=60)
    assert ran.code == 0
    found = [json.loads(line) for line in (output.read_text("utf-8") if to_file else ran.out).splitlines()]
    assert [record["id"] for record in found] == list(range(2000))
    assert {record["usage"]["completion_tokens"] for record in found} == {2}


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="needs /dev/stdin")
def test_batch_given_standard_input_answers_each_line(
    scripted_package: Callable[..., Path], tmp_path: Path, own_settings: Path
) -> None:
    program = "import sys; from onnx_genai.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "generate", str(scripted_package(TEXT)), "--batch", "/dev/stdin"]

    done = subprocess.run(command, input=b'{"prompt": "Hi"}\n' * 3, capture_output=True, timeout=300, check=False)

    assert done.returncode == 0
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [TEXT] * 3


def test_batch_given_a_file_that_shrinks_meanwhile_fails(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "Hi"}] * 3)
    opened = batch._open

    def shrink(*arguments: Any) -> Any:
        _write(prompts, [{"prompt": "Hi"}])
        return opened(*arguments)

    monkeypatch.setattr(batch, "_open", shrink)
    for output in ([], ["--output", tmp_path / "out.jsonl"]):
        _write(prompts, [{"prompt": "Hi"}] * 3)

        ran = run("generate", scripted_package(TEXT), "--batch", prompts, *output)

        assert ran.code == 1
        assert "had 3 prompts at the start and 1 at the end" in ran.err
        assert "3 prompts answered" not in ran.err


@pytest.mark.skipif(sys.platform == "win32", reason="devices of POSIX")
def test_batch_given_a_device_or_pipe_in_the_wrong_place_says_so(run: Run, model: Path, tmp_path: Path) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "Hi"}])
    pipe = tmp_path / "out.pipe"
    os.mkfifo(pipe)

    for output in (pipe, "/dev/null"):
        ran = run("generate", model, "--batch", prompts, "--output", output)
        assert ran.code == 1
        assert f"--output is {output}, a pipe or device" in ran.err
    ran = run("generate", model, "--batch", "/dev/zero")
    assert ran.code == 1
    assert "--batch is /dev/zero, a device" in ran.err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"prompt": "a", "system": []}', r"system is \[\]; allowed: a text"),
        ('{"prompt": "a", "logprobs": []}', r"logprobs is \[\]; allowed: a whole number"),
        ('{"prompt": "a", "logprobs": true}', "logprobs is True"),
        ('{"prompt": "a", "frequency_penalty": ""}', "frequency_penalty is ''; allowed: a number"),
        ('{"prompt": "a", "presence_penalty": false}', "presence_penalty is False"),
        ('{"prompt": "a", "top_p": "1"}', "top_p is '1'"),
        ('{"prompt": "a", "top_k": 2.5}', "top_k is 2.5; allowed: a whole number"),
        ('{"prompt": "a", "stop": [1]}', r"stop is \[1\]"),
        ('{"prompt": "a", "regex": 1}', "regex is 1"),
        ('{"prompt": "a", "lark": {}}', "lark is {}"),
        ('{"prompt": "a", "schema": "x"}', "schema is 'x'"),
        ('{"prompt": "a", "choice": "x"}', "choice is 'x'; allowed: a list of texts"),
        ('{"prompt": "a", "max_tokens": 2, "max_new_tokens": 3}', "max_tokens and max_new_tokens"),
        ('{"prompt": "a", "id": 2, "custom_id": 3}', "custom_id and id"),
        ('{"prompt": "a", "seed": 2, "seed": 3}', "the key 'seed' twice"),
        ('{"messages": null}', "needs either prompt or messages"),
        ('{"messages": ["a"]}', "messages is"),
    ],
)
def test_line_given_a_field_that_would_have_no_effect_is_refused(text: str, part: str) -> None:
    with pytest.raises(InvalidArgumentError, match=part):
        check_fields(parse_fields(text.encode(), 1), 1)


def test_line_given_null_says_nothing() -> None:
    names = dict.fromkeys(SamplingOptions.__dataclass_fields__)

    assert parse_fields(json.dumps({"prompt": "a", "system": None, **names}).encode(), 1) == {"prompt": "a"}


def test_every_sampling_option_is_a_key_of_a_line() -> None:
    for name in SamplingOptions.__dataclass_fields__:
        with pytest.raises(InvalidArgumentError, match=f"{name} is"):
            check_fields({"prompt": "a", name: {}}, 1)


def test_batch_given_messages_puts_the_system_message_before_them(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    user = {"role": "user", "content": "Hi"}
    own = {"role": "system", "content": "Own."}
    prompts = _write(
        tmp_path / "in.jsonl",
        [
            {"messages": [user]},
            {"messages": [{"role": "system", "content": "Given."}, user], "raw": False},
            {"messages": [user], "system": "Own."},
            {"messages": [own, user]},
            {"id": 5, "messages": [own, user], "system": "Other."},
            {"id": 6, "messages": [user], "raw": True},
            {"id": 7, "prompt": "Hi", "raw": True, "system": "Own."},
        ],
    )
    given = ("--system", "Given.", "--max-new-tokens", "2")

    ran = run("generate", scripted_package(TEXT), "--batch", prompts, *given)

    first, second, third, fourth, *bad = (json.loads(line) for line in ran.out.splitlines())
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert third["usage"]["prompt_tokens"] == fourth["usage"]["prompt_tokens"] < first["usage"]["prompt_tokens"]
    assert [record["id"] for record in bad] == [5, 6, 7]
    texts = [record["error"]["message"] for record in bad]
    assert "one in system" in texts[0]
    assert "messages need the chat template" in texts[1]
    assert "system and raw exclude each other" in texts[2]


def test_batch_given_a_greedy_command_line_lets_a_line_sample(
    run: Run, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    line = {"prompt": "w5 w6", "raw": True, "seed": 7}
    prompts = _write(tmp_path / "in.jsonl", [line, {**line, "top_k": 40}, {**line, "no_greedy": True}])
    command = ("generate", checksum_package("gqa"), "--max-new-tokens", "12")

    lines = [json.loads(text) for text in run(*command, "--temperature", 0, "--batch", prompts).out.splitlines()]

    alone = [
        run(*command, "-p", "w5 w6", "--raw", "--seed", "7", *more).out
        for more in ([], ["--top-k", "40"], ["--no-greedy"])
    ]
    assert [record["text"] + "\n" for record in lines] == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize("arguments", [["-p", "x"], ["--stream"], ["--json"], ["--session", "s"], ["--overwrite"]])
def test_batch_given_options_of_one_prompt_is_an_error(
    run: Run, scripted_package: Callable[..., Path], tmp_path: Path, arguments: list[str]
) -> None:
    prompts = _write(tmp_path / "in.jsonl", [{"prompt": "Hi"}])

    assert run("generate", scripted_package(TEXT), "--batch", prompts, *arguments).code == 2


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_batch_interrupted_twice_gives_the_file_of_an_uninterrupted_one(
    checksum_package: Callable[..., Path], tmp_path: Path, own_settings: Path
) -> None:
    lines = [
        {"id": n, "prompt": f"w{n % 40} w{n % 7}", "max_new_tokens": 10 + n % 9, "temperature": n % 2, "seed": n}
        for n in range(200)
    ]
    prompts = _write(tmp_path / "in.jsonl", [*lines[:50], "{broken", *lines[51:]])
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"

    # Each answer takes 40 ms at least, four at once: nearly all are still to come when the lines looked for are there.
    slow = """
import asyncio, sys
from onnx_genai.cli import main
from onnx_genai.pipelines import AsyncLLM

answer = AsyncLLM.generate

async def slowly(self, *arguments, **options):
    await asyncio.sleep(0.04)
    return await answer(self, *arguments, **options)

AsyncLLM.generate = slowly
sys.exit(main())
"""

    def start(output: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", slow, "generate", str(checksum_package("gqa")), "--raw"]
        command += ["--batch", str(prompts), "--output", str(output), "--parallel", "4"]
        return subprocess.Popen(command, stderr=None, env={**os.environ, "PYTHONUNBUFFERED": "1"})

    assert start(whole).wait(timeout=300) == 0
    for wanted, stop, code in ((30, signal.SIGKILL, -signal.SIGKILL), (90, signal.SIGINT, 130)):
        process = start(parts)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline and _num_lines(parts) < wanted:
            time.sleep(0.005)
        process.send_signal(stop)
        assert process.wait(timeout=60) == code
        assert wanted <= _num_lines(parts) < 200
        assert parts.read_bytes() == whole.read_bytes()[: parts.stat().st_size]
    assert start(parts).wait(timeout=300) == 0

    assert parts.read_bytes() == whole.read_bytes()
    assert len(_records(parts)) == 200


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
