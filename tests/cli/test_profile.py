"""``--profile``, ``--profile-json``, ``--profile-trace`` and what ``/profile`` obeys."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onnx_genai.cli.profile import ProfileOptions, Profiler, parse_verbosity
from onnx_genai.cli.profile_report import AnswerTimes, KvPages, Memory, Report, nearest_rank, size_text, stage_lines
from onnx_genai.engine.profile import Profile
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import Chunk, Usage
from tests.chrome_trace import check_trace, read_trace, thread
from tests.cli.conftest import Run

Package = Callable[..., Path]

FULL = Report(
    model="/models/m",
    execution_provider="cpu",
    decode_backend="paged",
    phases=(("model load", 1.23456),),
    prompt_tokens=40,
    generated_tokens=5,
    cached_tokens=16,
    started=10.0,
    token_times=(10.5, 10.6, 10.7, 10.8, 11.3),
    finished=11.5,
    counters=(("denoise steps", 20.0, "steps"),),
    finish_reason="length",
    budget_cap=(100, 50),
    kv_pages=KvPages(allocated=4, freed=3, hot_evictions=2, prefix_evictions=1, allocation_failures=0),
    memory=Memory(
        peak_resident=3 * 2**30,
        kv_budget=2**30,
        kv_budget_tokens=2048,
        engine=150 * 2**20,
        limit=400 * 2**20,
        weights=100 * 2**20,
        activations=20 * 2**20,
        kv=30 * 2**20,
        kv_pages=60,
        kv_page_bytes=2**19,
    ),
)
"""Percentiles by hand: gaps of 100, 100, 100 and 500 ms."""

LINES = """
model                    /models/m
execution provider       cpu
decode backend           paged
model load                   1234.6 ms
prompt tokens                    40
generated tokens                  5
prefix cache reuse               16 tokens (40%)
time to first token           500.0 ms
generation wall time         1500.0 ms
decode throughput              5.00 tok/s
end-to-end throughput          3.33 tok/s
inter-token latency      200.0 / 100.0 / 500.0 / 500.0 / 500.0 ms (mean / p50 / p90 / p99 / max)
denoise steps                 20.00 steps
finish reason            length
scheduler cap            100 -> 50
kv page activity
  allocated                       4
  freed                           3
  evicted from hot tier (pool under pressure)          2
  reclaimed from prefixes          1
peak resident memory     3.0 GiB
kv cache budget          1.0 GiB (2048 tokens)
engine host ram in use   150.0 MiB
device memory breakdown
  model weights          100.0 MiB (25.0%)
  activations            20.0 MiB (5.0%)
  kv cache               30.0 MiB (7.5%)
  kv pages               60 x 512.0 KiB
""".strip().splitlines()


def test_report_has_every_line_in_order() -> None:
    lines = FULL.lines()

    assert "profile" in lines[0]
    assert lines[1 : 1 + len(LINES)] == LINES
    assert lines[-2].startswith("  (not measured")
    assert lines[-1] == "device memory in use     150.0 MiB of 400.0 MiB"


def test_report_tells_an_exhausted_pool_and_overhead_only_where_there_are_any() -> None:
    pages = replace(_given(FULL.kv_pages), allocation_failures=7)
    report = replace(FULL, kv_pages=pages, memory=replace(FULL.memory, overhead=10 * 2**20))

    more = [line for line in report.lines() if line not in FULL.lines()]

    assert more[0] == "  allocation failures (pool exhausted)          7"
    assert more[1] == "  runtime overhead       10.0 MiB (2.5%)"
    assert more[2:] == ["device memory in use     160.0 MiB of 400.0 MiB"]


def test_stages_have_total_calls_and_both_means() -> None:
    stages = (
        SimpleNamespace(name="run", seconds=0.5, calls=20),
        SimpleNamespace(name="sample", seconds=0.001, calls=8),
    )

    assert stage_lines(cast(Profile, SimpleNamespace(stages=stages)), 10) == [
        "stage                     total_ms     calls   us/call  us/token",
        "run                          500.0        20   25000.0   50000.0",
        "sample                         1.0         8     125.0     100.0",
    ]


@pytest.mark.parametrize("width", [40, 59])
def test_report_on_a_narrow_terminal_fits_and_loses_nothing(width: int) -> None:
    report = replace(FULL, model="/models/a-name-with-hyphens")

    lines = report.lines(width)

    assert max(map(len, lines)) <= width
    # Only what is longer than a whole row is broken.
    words = " ".join(report.lines()[1:]).split()
    assert "".join(lines[1:]).replace(" ", "") == "".join(words)
    assert width < 59 or " ".join(lines[1:]).split() == words


def test_stages_on_a_narrow_terminal_keep_their_numbers_and_cut_names() -> None:
    stages = (SimpleNamespace(name="SkipSimplifiedLayerNormalization", seconds=0.5, calls=20),)

    assert stage_lines(cast(Profile, SimpleNamespace(stages=stages)), 10, 59) == [
        "stage                total_ms     calls   us/call  us/token",
        "SkipSimplifiedLaye…     500.0        20   25000.0   50000.0",
    ]


def _given(pages: KvPages | None) -> KvPages:
    assert pages is not None
    return pages


def test_report_leaves_out_what_was_not_measured() -> None:
    bare = Report(model="m", execution_provider="cpu")

    assert [line.split("  ")[0] for line in bare.lines()[1:]] == ["model", "execution provider"]
    assert bare.as_dict() == {"model": "m", "execution_provider": "cpu"}


def test_one_stall_shows_in_the_high_percentiles_alone() -> None:
    # 100 gaps, of which one is 400 ms and the others 10 ms.
    times = [10.0]
    for gap in [0.010] * 60 + [0.400] + [0.010] * 39:
        times.append(times[-1] + gap)

    report = replace(FULL, token_times=tuple(times), generated_tokens=101)

    latency = report.as_dict()["inter_token_latency_ms"]
    assert (latency["p50"], latency["p90"], latency["p99"]) == pytest.approx((10.0, 10.0, 10.0))
    assert latency["max"] == pytest.approx(400.0)
    assert latency["mean"] == pytest.approx(13.9)
    shorter = replace(report, token_times=tuple(times[30:90]))
    assert shorter.as_dict()["inter_token_latency_ms"]["p99"] == pytest.approx(400.0)
    assert shorter.as_dict()["inter_token_latency_ms"]["p50"] == pytest.approx(10.0)


@pytest.mark.parametrize(("tokens", "has_rate"), [((1.0,), False), ((1.0, 1.5), True)])
def test_rates_need_two_tokens(tokens: tuple[float, ...], has_rate: bool) -> None:
    report = Report(model="m", execution_provider="cpu", token_times=tokens, generated_tokens=len(tokens), finished=2.0)
    values = report.as_dict()

    assert ("decode_tokens_per_second" in values) is has_rate
    assert ("inter_token_latency_ms" in values) is has_rate
    assert values["time_to_first_token_ms"] == 1000.0


def test_zero_figures_of_the_pool_and_of_the_cache_are_left_out() -> None:
    report = Report(model="m", execution_provider="cpu", prompt_tokens=3, cached_tokens=0)

    assert not any("prefix cache reuse" in line for line in report.lines())
    assert KvPages.between({"kv_allocated_blocks": 5}, {"kv_allocated_blocks": 5}) is None


def test_json_has_the_documented_keys() -> None:
    values = json.loads(FULL.json_line())

    assert FULL.json_line().count("\n") == 1
    assert values["model_load_ms"] == 1234.56
    assert values["prefix_cache_hit_tokens"] == 16
    assert values["prefix_cache_hit_percent"] == 40.0
    assert values["time_to_first_token_ms"] == 500.0
    assert values["generation_wall_ms"] == 1500.0
    assert values["decode_tokens_per_second"] == 5.0
    assert values["end_to_end_tokens_per_second"] == 3.333
    assert values["inter_token_latency_ms"] == {"mean": 200.0, "p50": 100.0, "p90": 500.0, "p99": 500.0, "max": 500.0}
    assert values["denoise_steps"] == 20.0
    assert values["budget_cap"] == {"requested_max_new_tokens": 100, "admitted_max_new_tokens": 50}
    assert values["decode_backend"] == "paged"
    assert values["kv_pages"] == {
        "allocated": 4,
        "freed": 3,
        "hot_evictions": 2,
        "prefix_evictions": 1,
        "allocation_failures": 0,
    }
    assert values["peak_resident_bytes"] == 3 * 2**30
    assert values["kv_cache_budget_bytes"] == 2**30
    assert values["kv_cache_max_tokens"] == 2048
    assert values["engine_host_ram_bytes"] == 150 * 2**20
    assert values["device_memory_bytes"] == 150 * 2**20
    assert values["device_memory_limit_bytes"] == 400 * 2**20
    assert values["device_memory_breakdown"] == {
        "model_weights_bytes": 100 * 2**20,
        "activations_bytes": 20 * 2**20,
        "kv_bytes": 30 * 2**20,
        "kv_pages": 60,
        "kv_page_bytes": 2**19,
    }


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 50, 5.0), ([4.0, 1.0, 3.0, 2.0], 50, 2.0), ([4.0, 1.0, 3.0, 2.0], 90, 4.0), (list(range(1, 101)), 99, 99)],
)
def test_percentiles_use_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert nearest_rank(values, percent) == expected


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0 B"), (1023, "1023.0 B"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (2**40, "1024.0 GiB")]
)
def test_sizes_have_one_decimal(size: int, text: str) -> None:
    assert size_text(size) == text


def test_answer_times_come_from_its_pieces() -> None:
    answer = AnswerTimes()

    answer.add(Chunk(index=0, text="a", token_ids=(1, 2)))
    answer.add(Chunk(index=0, text="", token_ids=()))
    answer.add(
        Chunk(
            index=0,
            text="b",
            token_ids=(3,),
            finish_reason="length",
            usage=Usage(prompt_tokens=4, completion_tokens=3),
            budget_cap=(9, 3),
        )
    )

    assert len(answer.token_times) == 3
    assert answer.token_times == sorted(answer.token_times)
    assert answer.finished == answer.token_times[-1]
    assert (answer.finish_reason, answer.budget_cap) == ("length", (9, 3))


@pytest.mark.parametrize(("word", "level"), [("FULL", "full"), (" detail ", "full"), ("Ops", "ops")])
def test_verbosity_words_in_any_case(word: str, level: str) -> None:
    assert parse_verbosity(word) == level


def test_wrong_verbosity_lists_the_words() -> None:
    with pytest.raises(InvalidArgumentError, match="verbosity is 'loud'; allowed: decisions, ops, full"):
        parse_verbosity("loud")


def test_profile_command_switches_report_timeline_and_verbosity(tmp_path: Path) -> None:
    profiler = Profiler(ProfileOptions())
    path = tmp_path / "my trace.json"

    assert profiler.command("") == "profile report off, timeline off"
    assert profiler.command("on") == "profile report on, timeline onnx-genai-session.perfetto.json (full)"
    assert profiler.command(f"trace {path}") == f"profile report on, timeline {path} (full)"
    assert profiler.command("verbosity OPS") == "profile verbosity ops"
    assert "about 4 %" in profiler.command("verbosity detail")
    assert profiler.command("trace off") == "profile report on, timeline off"
    assert profiler.command("off") == "profile report off, timeline off"
    assert not profiler.wanted


def test_timeline_of_the_command_line_is_stopped_by_profile_trace_off(tmp_path: Path) -> None:
    profiler = Profiler(ProfileOptions(profile_trace=tmp_path / "t.json"))

    profiler.command("trace off")

    assert profiler.trace_path is None
    assert not profiler.wanted


@pytest.mark.parametrize("argument", ["maybe", "on now", "trace", "verbosity", "trace /no/such/folder/t.json"])
def test_wrong_profile_command_says_what_is_right(argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"/profile on|name a file in a folder"):
        Profiler(ProfileOptions()).command(argument)


def test_generate_reports_on_stderr_and_the_answer_alone_on_stdout(
    run: Run, scripted_package: Package, tmp_path: Path
) -> None:
    package, trace = scripted_package("Hello world"), tmp_path / "trace.json"

    plain = run("generate", package, "-p", "x")
    ran = run("generate", package, "-p", "x", "--profile", "--profile-trace", trace)

    assert (ran.code, ran.out) == (0, plain.out)
    assert re.search("(?m)(^|\\n)\\n── profile ─", ran.err)  # a blank line above
    labels = [line[:24].strip() for line in ran.err.splitlines()]
    wanted = ["model", "execution provider", "decode backend", "model load", "prompt tokens", "generated tokens"]
    wanted += ["time to first token", "generation wall time", "decode throughput", "end-to-end throughput"]
    wanted += ["inter-token latency", "finish reason", "kv page activity", "peak resident memory", "stage"]
    places = [labels.index(label) for label in wanted]
    assert places == sorted(places)
    assert f"[profile] wrote {trace}" in ran.err
    events = read_trace(trace)
    check_trace(events)
    assert {span["name"] for span in thread(events, "command")} == {"model load", "turn"}


def test_profile_json_to_stdout_is_one_object_behind_the_answer(run: Run, scripted_package: Package) -> None:
    ran = run("generate", scripted_package("Hello world"), "-p", "x", "--profile-json", "-")

    answer, line = ran.out.splitlines()
    values = json.loads(line)
    assert answer == "Hello world"
    assert values["execution_provider"] == "cpu"
    assert values["finish_reason"] == "stop"
    assert values["generated_tokens"] == values["engine"]["generated_tokens"]
    assert None not in values.values()
    assert ran.err == ""


@pytest.mark.parametrize(
    ("value", "is_on"),
    [
        ("1", True),
        ("true", True),
        ("yes", True),
        ("TRUE", False),
        ("Yes", False),
        ("on", False),
        ("0", False),
        ("2", False),
        ("", False),
    ],
)
def test_variable_is_on_for_three_words_exactly(
    run: Run, scripted_package: Package, monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool
) -> None:
    monkeypatch.setenv("ONNX_GENAI_PROFILE", value)

    ran = run("generate", scripted_package("Hello world"), "-p", "x")

    assert (ran.code, ran.out) == (0, "Hello world\n")
    assert ("── profile " in ran.err) == is_on


def test_variable_of_the_command_is_stronger_and_takes_any_switch(
    run: Run, scripted_package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("generate", scripted_package("Hello world"), "-p", "x")
    monkeypatch.setenv("ONNX_GENAI_PROFILE", "1")
    monkeypatch.setenv("ONNX_GENAI_GENERATE_PROFILE", "off")
    assert "── profile " not in run(*command).err

    monkeypatch.setenv("ONNX_GENAI_PROFILE", "no")
    monkeypatch.setenv("ONNX_GENAI_GENERATE_PROFILE", "on")
    assert "── profile " in run(*command).err

    monkeypatch.setenv("ONNX_GENAI_TRACE", str(tmp_path / "t.json"))
    monkeypatch.setenv("ONNX_GENAI_TRACE_VERBOSITY", "ops")
    run(*command)
    check_trace(read_trace(tmp_path / "t.json"))


def test_options_may_stand_before_the_command(run: Run, scripted_package: Package, tmp_path: Path) -> None:
    options = ("--profile", "--profile-json", tmp_path / "p.json", "--profile-trace", tmp_path / "t.json")

    ran = run(*options, "--profile-verbosity", "ops", "generate", scripted_package("Hello world"), "-p", "x")

    assert (ran.code, ran.out) == (0, "Hello world\n")
    assert "── profile " in ran.err
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["generated_tokens"] > 0
    check_trace(read_trace(tmp_path / "t.json"))


def test_options_before_a_command_that_has_none_are_wrong_usage(run: Run) -> None:
    for name in ("version", "embed"):
        ran = run("--profile", name)

        assert (ran.code, ran.out) == (2, "")
        assert f"--profile has no meaning for {name}; generate, run, bench and serve take it" in ran.err


def test_place_that_cannot_be_written_is_told_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    ran = run("generate", tmp_path / "no-model", "-p", "x", "--profile-trace", tmp_path / "no" / "t.json")

    assert ran.code == 2
    assert "name a file in a folder that exists" in ran.err


def test_several_turns_are_in_one_timeline_and_the_last_in_the_json(scripted_package: Package, tmp_path: Path) -> None:
    from onnx_genai import LLM, SamplingParams

    options = ProfileOptions(profile_json=str(tmp_path / "p.json"), profile_trace=tmp_path / "t.json")
    profiler = Profiler(options)

    with LLM(scripted_package("Hello world")) as llm:
        for prompt in ("a", "bb"):
            profiler.begin(llm)
            answer = AnswerTimes()
            for chunk in llm.stream(prompt, SamplingParams(temperature=0)):
                answer.add(chunk)
            profiler.end(answer)
        profiler.close()

    events = read_trace(tmp_path / "t.json")
    check_trace(events)
    assert sum(event["ph"] == "s" for event in events) == 2
    assert sum(span["name"] == "turn" for span in thread(events, "command")) == 2
    values = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert len(values["engine"]["requests"]) == 1
    assert values["prompt_tokens"] == 2


def test_serve_writes_its_timeline_when_it_is_told_to_end(scripted_package: Package, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    program = "import sys; from onnx_genai.cli import main; sys.exit(main())"
    arguments = ["serve", f"m={scripted_package('Hello world')}", "--port", "0", "--profile-trace", str(trace)]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert server.stderr is not None
        port = None
        for line in server.stderr:
            found = re.search(r"listening on http://127.0.0.1:(\d+)", line)
            port = found.group(1) if found else port
            if " ready" in line:
                break
        body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 4}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=300)[1]
    finally:
        server.kill()
        server.wait()

    assert server.returncode == 0
    assert f"[profile] wrote {trace}" in rest
    events = read_trace(trace)
    check_trace(events)
    assert sum(event["ph"] == "s" for event in events) == 1


def test_bench_is_recorded_and_refuses_to_mix_two_models(run: Run, scripted_package: Package, tmp_path: Path) -> None:
    package, path = scripted_package("Hello world"), tmp_path / "p.json"
    small = ("-p", "4", "-n", "2", "-r", "1")

    ran = run("bench", package, *small, "--profile-json", path)
    refused = run("bench", package, *small, "--vs", package, "--profile")

    assert ran.code == 0, ran.err
    values = json.loads(path.read_text(encoding="utf-8"))
    assert len(values["engine"]["requests"]) > 2
    assert values["generated_tokens"] == sum(request["num_tokens"] for request in values["engine"]["requests"])
    assert refused.code == 2
    assert "leave --vs out" in refused.err
