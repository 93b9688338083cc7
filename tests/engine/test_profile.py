"""What a profile says, against what was asked for, and its timeline against the format."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onnx_genai import LLM, AsyncLLM, SamplingParams
from onnx_genai.engine import profile
from onnx_genai.engine.trace import RequestTrack
from onnx_genai.errors import AbortedError, InvalidArgumentError
from tests.chrome_trace import check_trace, outermost, read_trace, thread

pytestmark = pytest.mark.boundary

HOT_16_BLOCKS = "64KiB"  # 2 layers x 2 heads x (8 + 8) float32 = 256 bytes a token, 4 KiB a block
GREEDY = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module", params=["paged", "slot", "copy"])
def each_decoder(request: pytest.FixtureRequest, checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa"), threads=1, decoder=request.param) as model:
        yield model


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa"), threads=1) as model:
        yield model


def test_profile_counts_what_was_asked_for(each_decoder: LLM) -> None:
    each_decoder.generate([9, 9], GREEDY)

    with each_decoder.profile() as run:
        results = each_decoder.generate([[1, 2, 3], [4, 5, 6, 7]], GREEDY)

    profile = run.result
    assert profile.generated_tokens == sum(len(result.token_ids) for result in results) == 24
    assert profile.prompt_tokens == 7
    assert sorted(request.prompt_tokens for request in profile.requests) == [3, 4]
    assert [request.num_tokens for request in profile.requests] == [12, 12]
    assert {request.finish_reason for request in profile.requests} == {"length"}
    assert profile.num_steps >= 12
    assert profile.num_lost_events == 0
    assert profile.time_to_first_token is not None
    assert profile.time_to_first_token.count == 2
    assert profile.inter_token_latency is not None
    assert profile.inter_token_latency.count == 22


def test_times_of_a_request_lie_in_the_recording(llm: LLM) -> None:
    start = time.perf_counter()

    with llm.profile() as run:
        llm.generate([1, 2, 3], GREEDY)

    whole = time.perf_counter() - start
    (request,) = run.result.requests
    assert request.queued_seconds is not None
    assert request.time_to_first_token is not None
    assert request.seconds is not None
    assert 0 <= request.queued_seconds <= request.time_to_first_token <= request.seconds <= whole
    assert run.result.seconds <= whole


def test_stages_are_the_whole_time_of_the_thread(llm: LLM) -> None:
    with llm.profile() as run:
        llm.generate([1, 2, 3], SamplingParams(max_new_tokens=200, temperature=0, ignore_eos=True))
        time.sleep(0.3)

    profile = run.result
    stages = {stage.name: stage.seconds for stage in profile.stages}
    assert sum(stages.values()) == pytest.approx(profile.seconds, rel=0.05)
    assert stages["wait"] >= 0.29
    assert {"run", "inputs", "schedule", "sample", "emit", "update", "publish"} <= set(stages)


def test_trace_is_valid_and_spans_of_the_engine_thread_fill_it(each_decoder: LLM, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    sampling = SamplingParams(max_new_tokens=60, temperature=0, ignore_eos=True)

    with each_decoder.profile(path) as run:
        each_decoder.generate([[1, 2, 3], [4, 5], [6]], sampling)
        time.sleep(0.2)
        each_decoder.generate([7, 8], sampling)

    events = read_trace(path)
    check_trace(events)
    spans = outermost(thread(events, "engine"))
    wall = 1e6 * run.result.seconds
    assert sum(span["dur"] for span in spans) == pytest.approx(wall, rel=0.05)
    assert {span["name"] for span in spans} == {"wait", "inbox", "step", "publish"}
    ends = [span["ts"] + span["dur"] for span in spans]
    assert [span["ts"] for span in spans[1:]] == pytest.approx(ends[:-1], abs=0.01)  # microseconds
    assert sum(event["ph"] == "s" for event in events) == 4


def test_states_of_a_request_follow_each_other(llm: LLM, tmp_path: Path) -> None:
    with llm.profile(tmp_path / "trace.json"):
        llm.generate([1, 2, 3], GREEDY)

    events = [e for e in read_trace(tmp_path / "trace.json") if e.get("cat") == "request" and e["name"] != "chunk"]
    names = [(event["ph"], event["name"]) for event in events if event["ph"] in "be"]
    request = names[0][1]
    assert names == [
        ("b", request),
        ("b", "queued"),
        ("e", "queued"),
        ("b", "prefill"),
        ("e", "prefill"),
        ("b", "decode"),
        ("e", "decode"),
        ("e", request),
    ]
    assert events[0]["args"] == {"prompt_tokens": 3, "cached_tokens": 0, "tokens": 12, "finish": "length"}
    assert sum(event["args"]["tokens"] for event in events if event["ph"] == "n") == 12


def test_operators_are_those_of_the_graph_within_their_runs(llm: LLM, tmp_path: Path) -> None:
    with llm.profile(tmp_path / "trace.json", verbosity="ops") as run:
        llm.generate([1, 2, 3], GREEDY)

    profile = run.result
    assert 2 <= profile.num_profiled_runs <= profile.num_runs == profile.num_steps
    assert "PagedAttention" in {operator.name for operator in profile.operators}
    assert sum(operator.share for operator in profile.operators) == pytest.approx(1)
    assert sum(node.calls for node in profile.nodes) == sum(operator.calls for operator in profile.operators)
    events = read_trace(tmp_path / "trace.json")
    check_trace(events)
    runs = [span for span in thread(events, "engine") if span["name"] == "run"]
    ops = [event for event in events if event.get("cat") == "op"]
    assert ops
    for op in ops:
        assert any(r["ts"] <= op["ts"] and op["ts"] + op["dur"] <= r["ts"] + r["dur"] + 1 for r in runs), op


def test_decisions_record_neither_operators_nor_tokens(llm: LLM, tmp_path: Path) -> None:
    with llm.profile(tmp_path / "trace.json", verbosity="decisions") as run:
        llm.generate([1, 2, 3], GREEDY)

    assert run.result.operators == ()
    assert run.result.inter_token_latency is None
    events = read_trace(tmp_path / "trace.json")
    check_trace(events)
    assert not any(event.get("cat") == "op" or event["name"] == "chunk" for event in events)
    assert sum(event["ph"] == "n" for event in events) == 1


def test_recording_that_begins_and_ends_in_an_answer_is_valid(
    checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    # So long that it cannot end by itself before the recording does, even on a busy machine.
    endless = SamplingParams(max_new_tokens=100_000, temperature=0, ignore_eos=True)
    with LLM(checksum_package("gqa", context_length=200_000), threads=1) as model:
        stream = model.stream([1, 2, 3], endless)
        next(stream)

        model.start_profile(tmp_path / "trace.json")
        for _ in range(5):
            next(stream)
        profile = model.stop_profile()
        assert next(stream).finish_reason is None

    events = read_trace(tmp_path / "trace.json")
    check_trace(events)
    begun = [event["name"] for event in events if event["ph"] == "b" and event["name"] != "chunk"]
    assert begun[1:] == ["decode"]
    (request,) = profile.requests
    assert request.finish_reason is None
    assert request.time_to_first_token is None


def test_figures_after_a_mark_leave_out_what_was_before(llm: LLM) -> None:
    recording = llm.engine.start_profile("full")
    llm.generate([1, 2, 3, 4, 5], GREEDY)

    recording.mark()
    llm.generate([6, 7], GREEDY)
    profile = recording.stop()

    assert profile.prompt_tokens == 2
    assert [request.prompt_tokens for request in profile.requests] == [2]
    assert sum(event["ph"] == "s" for event in profile.trace_events()) == 2


def test_second_recording_is_refused_and_a_later_one_begins_anew(llm: LLM) -> None:
    llm.start_profile()
    with pytest.raises(InvalidArgumentError, match="recorded already; stop that one first"):
        llm.start_profile()
    llm.generate([1, 2, 3], GREEDY)
    first = llm.stop_profile()

    with llm.profile() as run:
        pass

    assert llm.stop_profile() is first
    assert run.result.num_steps == 0
    assert run.result.requests == ()


@pytest.mark.parametrize(
    ("path", "verbosity", "text"),
    [
        (None, "loud", "verbosity is 'loud'; allowed: decisions, ops, full"),
        ("no/such/folder/trace.json", "full", "name a file in a folder that exists"),
        (".", "full", "name a file in a folder that exists"),
    ],
)
def test_wrong_arguments_name_what_is_allowed(llm: LLM, path: str | None, verbosity: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        llm.start_profile(path, verbosity)  # type: ignore[arg-type]


def test_profile_that_was_never_started_cannot_be_stopped(checksum_package: Callable[..., Path]) -> None:
    with (
        LLM(checksum_package("gqa"), threads=1) as model,
        pytest.raises(InvalidArgumentError, match="call start_profile"),
    ):
        model.stop_profile()


def test_model_closed_meanwhile_leaves_what_was_recorded(checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    model = LLM(checksum_package("gqa"), threads=1)
    model.start_profile(tmp_path / "trace.json")
    model.generate([1, 2, 3], GREEDY)

    model.close()
    profile = model.stop_profile()

    assert profile.generated_tokens == 12
    check_trace(read_trace(tmp_path / "trace.json"))
    with pytest.raises(AbortedError):
        model.start_profile()


def test_profile_from_a_logits_processor_is_refused(llm: LLM) -> None:
    errors: list[Exception] = []

    class Curious:
        def process(self, token_ids: object, logits: object) -> None:
            try:
                llm.start_profile()
            except InvalidArgumentError as error:
                errors.append(error)

    llm.generate([1, 2], SamplingParams(max_new_tokens=1, temperature=0, logits_processors=[Curious()]))

    assert len(errors) == 1
    assert "logits processor" in str(errors[0])


def test_snapshots_while_threads_generate_are_valid_and_grow(llm: LLM) -> None:
    recording = llm.engine.start_profile("full")
    threads = [
        threading.Thread(target=llm.generate, args=([1 + i, 2], SamplingParams(max_new_tokens=150, ignore_eos=True)))
        for i in range(4)
    ]
    for each in threads:
        each.start()

    profiles = [recording.snapshot() for _ in range(5)]
    for each in threads:
        each.join()
    profiles.append(recording.stop())

    counts = [len(profile.trace_events()) for profile in profiles]
    assert counts == sorted(counts)
    check_trace(json.loads(json.dumps(profiles[0].trace_events())))
    check_trace(json.loads(json.dumps(profiles[-1].trace_events())))
    assert sum(request.num_tokens for request in profiles[-1].requests) == 600


def test_kv_and_memory_are_measured(llm: LLM) -> None:
    llm.engine.clear_prefix_cache()

    with llm.profile() as run:
        llm.generate(list(range(1, 40)), GREEDY)

    profile = run.result
    block_size = int(str(llm.info()["block_size"]))
    assert profile.kv.allocated == -(-(39 + 11) // block_size)
    assert profile.kv.freed == profile.kv.allocated
    assert profile.memory.peak_resident_bytes is not None
    assert profile.memory.resident_bytes is not None
    assert profile.memory.peak_resident_bytes >= profile.memory.resident_bytes // 2
    assert profile.memory.kv_bytes is not None
    assert profile.memory.kv_budget_bytes is not None
    assert profile.memory.kv_bytes <= profile.memory.kv_budget_bytes


def test_moves_between_tiers_are_counted_and_drawn(checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    package = checksum_package("gqa", context_length=256)
    limits = {"vram_limit": HOT_16_BLOCKS, "host_ram_limit": "128KiB", "disk_limit": "2MiB"}
    with LLM(package, threads=1, disk_folder=tmp_path / "kv", **limits) as model:
        before = model.metrics()
        with model.profile(tmp_path / "trace.json", verbosity="decisions") as run:
            for turn in range(2):
                for number in range(24):
                    prompt = [1 + (7 * number + 3 * place) % 90 for place in range(60)]
                    model.generate([*prompt, 1 + turn], GREEDY)
        after = model.metrics()

    kv = run.result.kv
    assert kv.swapped_out == after["kv_swapped_out_blocks"] - before["kv_swapped_out_blocks"] > 0
    assert kv.cold_writes + kv.evicted > 0
    assert kv.allocated - kv.freed == after["kv_hot_used_blocks"] == 0
    events = read_trace(tmp_path / "trace.json")
    check_trace(events)
    drawn = [event["args"]["value"] for event in events if event["ph"] == "C" and event["name"] == "swapped_out"]
    assert drawn == sorted(drawn)
    assert drawn[-1] - drawn[0] == kv.swapped_out
    spans = [event for event in thread(events, "engine") if event["name"] == "kv"]
    assert sum(span["args"]["operations"] for span in spans) >= kv.swapped_out + kv.swapped_in + kv.copied


def test_as_dict_is_json_without_what_was_not_measured(llm: LLM) -> None:
    with llm.profile(verbosity="decisions") as run:
        llm.generate([1, 2, 3], GREEDY)

    values = json.loads(json.dumps(run.result.as_dict()))
    assert values["generated_tokens"] == 12
    assert "operators" not in values
    assert "inter_token_latency" not in values
    assert None not in values.values()


def test_async_profile_is_the_same(checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    async def go() -> None:
        async with AsyncLLM(checksum_package("gqa"), threads=1) as model:
            async with model.profile(tmp_path / "one.json") as run:
                await model.generate([1, 2, 3], GREEDY)
            assert run.result.generated_tokens == 12
            await model.start_profile(tmp_path / "two.json", "decisions")
            await model.generate([1, 2, 3], GREEDY)
            assert (await model.stop_profile()).generated_tokens == 12

    asyncio.run(go())

    check_trace(read_trace(tmp_path / "one.json"))
    check_trace(read_trace(tmp_path / "two.json"))


@pytest.mark.parametrize(
    ("finished", "num_tokens", "rate"), [(3_000_000_010, 4, 1.0), (10, 4, None), (3_000_000_010, 1, None)]
)
def test_rate_of_a_request_is_none_where_no_time_passed(finished: int, num_tokens: int, rate: float | None) -> None:
    track = RequestTrack(id=1, tokens=[(10, 1)], finished=finished, num_tokens=num_tokens)

    assert profile._request(track, has_tokens=False).decode_tokens_per_second == rate
