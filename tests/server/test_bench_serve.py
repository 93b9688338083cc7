"""``onnx-genai bench serve`` against running servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.cli import main
from onnx_genai.server import ModelSpec
from tests.server.running import RunningServer, wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
"""In which a process of its own starts and ends, on a busy machine."""
Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("ONNX_GENAI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def go(*arguments: object) -> tuple[int, str, str]:
        code = main(["bench", "serve", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return go


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_load_gives_json_with_the_usual_keys(hello: RunningServer, bench: Bench, endpoint: str) -> None:
    options = ["--num-prompts", 6, "--random-input-len", 9, "--random-output-len", 4, "--endpoint", endpoint]
    code, out, err = bench("--base-url", hello.url, *options, "--ignore-eos", "--json", "--max-concurrency", 2)

    assert code == 0, err
    record: dict[str, Any] = json.loads(out)
    assert (record["completed"], record["failed"], record["num_prompts"]) == (6, 0, 6)
    assert record["total_output_tokens"] == 24
    assert record["model_id"] == "org/hello"
    assert record["tokens_counted_by"] == "server"
    assert record["request_rate"] == "inf"
    assert record["max_concurrent_requests"] <= 2
    assert 0 < record["mean_ttft_ms"] <= record["mean_e2el_ms"]
    assert record["output_throughput"] == pytest.approx(24 / record["duration"])


def test_goals_may_stand_behind_each_other_and_the_table_counts_who_met_them(
    hello: RunningServer, bench: Bench
) -> None:
    options = ["--num-prompts", 3, "--random-input-len", 5, "--request-rate", 50, "--burstiness", "inf"]
    code, out, err = bench("--base-url", hello.url + "/v1", *options, "--goodput", "ttft:60000", "tpot:60000")

    assert code == 0, err
    lines = {line[:40].strip(): line[40:].split() for line in out.splitlines()}
    assert lines["Completed requests"] == ["3"]
    assert lines["Good requests/s"] == lines["Requests/s"]
    assert "3 requests, 50 a second (equal gaps)" in out


def test_results_can_be_kept_with_every_request(hello: RunningServer, bench: Bench, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hi", "max_tokens": 2}\n{"prompt": "Ho", "max_tokens": 3}\n', encoding="utf-8")
    file = tmp_path / "new" / "result.json"
    options = ["--dataset", prompts, "--num-prompts", 2, "--save-detailed", "--result-filename", file]

    code, _, err = bench("--base-url", hello.url, *options)

    assert code == 0, err
    record = json.loads(file.read_text(encoding="utf-8"))
    assert sorted(record["output_lens"]) == [2, 3]
    assert [len(record[key]) for key in ("ttfts", "itls", "generated_texts", "errors")] == [2] * 4


def test_keys_are_sent(
    serve: Callable[..., RunningServer], hello_spec: ModelSpec, bench: Bench, monkeypatch: Any
) -> None:
    server = serve(hello_spec, api_keys=("secret",))
    wait_until(lambda: server.server.state.models.is_ready, "the model")
    options = ["--base-url", server.url, "--num-prompts", 1, "--random-input-len", 5]

    assert bench(*options)[0] == 1
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert bench(*options)[0] == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--base-url", "http://127.0.0.1:9"], "cannot connect to http://127.0.0.1:9"),
        (["--base-url", "nonsense"], "base URL is 'nonsense'"),
        (["--model", "nobody"], "There is no model 'nobody' here"),
        (["--dataset", "missing.jsonl"], "missing.jsonl"),
        (["--request-rate", "-1"], "request rate is -1"),
        (["--goodput", "speed:5"], "goodput is 'speed:5'"),
        (["--percentiles", "x"], "percentiles is 'x'"),
        (["--random-input-len", "100000"], "maximum context length"),
    ],
)
def test_what_is_wrong_is_told_and_the_exit_code_says_so(
    hello: RunningServer, bench: Bench, options: list[str], told: str
) -> None:
    given = options if "--base-url" in options else ["--base-url", hello.url, *options]

    code, _, err = bench(*given, "--num-prompts", 1)

    assert code == 1
    assert told in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize("options", [["ttft:5"], ["--extra-body", "5"], ["--header", "nonsense"]])
def test_wrong_usage_exits_with_2(hello: RunningServer, bench: Bench, options: list[str]) -> None:
    assert bench("--base-url", hello.url, *options)[0] == 2


def test_an_interrupt_reports_what_was_done_so_far(slow: RunningServer, tmp_path: Path) -> None:
    slow.wait_idle()
    options = ["--num-prompts", "400", "--random-output-len", "3", "--max-concurrency", "1", "--ignore-eos"]
    program = "import sys; from onnx_genai.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "bench", "serve", "--base-url", slow.url, "--random-input-len", "5", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    done = slow.metric("num_finished_requests")
    try:
        end = time.perf_counter() + START_SECONDS
        while slow.metric("num_finished_requests") < done + 4 and time.perf_counter() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=START_SECONDS)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, err
    completed = next(line.split()[-1] for line in out.splitlines() if line.startswith("Completed requests"))
    assert 2 <= int(completed) < 400
    assert "Traceback" not in err
    slow.wait_idle()
