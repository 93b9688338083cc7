"""The page of metrics: what the documents say of it, and the parts of a request's time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import RunningServer, chat_body, raw_request, wait_until

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "onnx_genai:"


def families(server: RunningServer) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}


def documented() -> dict[str, str]:
    """Name, without the prefix, and kind of every metric of the table."""
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    section = page.split("\n## Metrics\n")[1].split("\n## ")[0]
    kinds: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("| `"):
            kinds.update(dict.fromkeys(re.findall(r"`(\w+)`", cells[1]), cells[2]))
    return kinds


def served(server: RunningServer) -> dict[str, str]:
    """The same of the page; counters end with ``_total`` there."""
    return {
        name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else ""): family.type
        for name, family in families(server).items()
        if not name.endswith("_created")
    }


def test_the_table_of_the_documents_names_exactly_what_is_served(hello: RunningServer) -> None:
    hello.chat_chunks()
    hello.wait_idle()

    assert all(name.startswith(PREFIX) for name in families(hello))
    assert documented() == served(hello)


def test_the_dashboard_asks_only_for_samples_that_are_served(hello: RunningServer) -> None:
    hello.chat_chunks()
    hello.wait_idle()
    samples = {sample.name for family in families(hello).values() for sample in family.samples}

    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [each["query"] for each in dashboard["templating"]["list"]]
    asked = {name for expression in expressions for name in re.findall(rf"{PREFIX}\w+", expression)}

    assert asked
    assert asked <= samples


def test_the_dashboard_shows_every_histogram(hello: RunningServer) -> None:
    text = (ROOT / "docs" / "grafana.json").read_text(encoding="utf-8")

    histograms = [name for name, kind in served(hello).items() if kind == "histogram"]
    assert [name for name in histograms if f"{PREFIX}{name}_bucket" not in text] == []


def values(server: RunningServer, model: str) -> dict[str, float]:
    """Sums and counts of a model's histograms, and all other samples of it without further labels."""
    labels: Mapping[str, str] = {"model_name": model}
    return {
        sample.name.removeprefix(PREFIX): sample.value
        for family in families(server).values()
        for sample in family.samples
        if sample.labels == labels
    }


def grown(server: RunningServer, model: str, before: Mapping[str, float]) -> dict[str, float]:
    server.wait_idle()
    return {name: value - before.get(name, 0.0) for name, value in values(server, model).items()}


def test_a_whole_answer_and_a_stream_are_measured_in_parts_that_make_up_the_whole(hello: RunningServer) -> None:
    before = values(hello, "org/hello")
    usage: dict[str, Any] = hello.chat().json()["usage"]
    hello.chat_chunks()
    after = grown(hello, "org/hello", before)

    names = ("queue", "prefill", "decode")
    assert [after[f"request_{name}_time_seconds_count"] for name in names] == [2, 2, 2]
    parts = sum(after[f"request_{name}_time_seconds_sum"] for name in names)
    assert 0 < parts <= after["e2e_request_latency_seconds_sum"] * 1.001
    tokens = usage["completion_tokens"]
    assert after["request_prompt_tokens_sum"] == 2 * usage["prompt_tokens"]
    assert after["request_generation_tokens_sum"] == 2 * tokens
    assert after["request_generation_tokens_count"] == 2
    each = after["request_time_per_output_token_seconds_sum"]
    assert abs(each * (tokens - 1) - after["request_decode_time_seconds_sum"]) < 1e-6


def test_steps_are_counted_by_the_tokens_that_they_run(hello: RunningServer) -> None:
    before = values(hello, "org/hello")
    usage = hello.chat(cache_salt="metrics").json()["usage"]
    after = grown(hello, "org/hello", before)

    # The prompt in one step, whose row gives the first token; the last token is never run.
    assert after["iteration_tokens_total_count"] == after["engine_steps_total"] == usage["completion_tokens"]
    assert after["iteration_tokens_total_sum"] == usage["prompt_tokens"] + usage["completion_tokens"] - 1


def test_a_request_that_had_to_wait_says_so(slow: RunningServer) -> None:
    slow.wait_idle()
    before = values(slow, "slow")
    sent = json.dumps(chat_body(max_tokens=12)).encode()
    with raw_request(slow, "/v1/chat/completions", sent) as first:
        wait_until(lambda: slow.metric("num_running") == 1, "the request")
        assert slow.chat(max_tokens=2).status_code == 200
        first.recv(1)
    after = grown(slow, "slow", before)

    assert after["request_queue_time_seconds_count"] == 2
    # A step takes 20 ms and more, and the second request came in the middle of one.
    assert after["request_decode_time_seconds_sum"] > 10 * 0.02
