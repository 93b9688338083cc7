"""OpenAI's client for JavaScript runs its documented flows; skipped where Node or the package is absent.

``npm install`` in ``tests/server/node_client`` fetches the package; ``ONNX_GENAI_NODE_MODULES`` names another folder
that holds it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.embedding.conftest import pooled
from tests.server.client_flows import SAID, flow_server
from tests.server.hesitant import hesitant
from tests.server.running import RunningServer

HERE = Path(__file__).with_name("node_client")
FLOW_SECONDS = 600
REFUSALS = (429, 429, 503)
"""What the flow of retries meets: one client gives up at the first, another comes again after the others."""


def run_flows(
    server: RunningServer, *models: str, texts: Sequence[str] = (), first_choice: str = "auto"
) -> dict[str, Any]:
    """What each flow gave; models are those for chats, for tools, for forms, and for vectors of `texts`."""
    modules = Path(os.environ.get("ONNX_GENAI_NODE_MODULES", HERE / "node_modules"))
    node = shutil.which("node")
    if node is None or not (modules / "openai").is_dir():
        pytest.skip("no node, or no package openai beside tests/server/node_client/flows.mjs (npm install)")
    with hesitant(server, *REFUSALS) as proxy:
        settings = {
            "baseURL": f"{server.url}/v1",
            "hesitantURL": f"{proxy.url}/v1",
            "modules": str(modules),
            **dict(zip(("chatModel", "toolModel", "formModel", "vectorModel"), models, strict=True)),
            "texts": list(texts),
            "firstChoice": first_choice,
        }
        command = [node, str(HERE / "flows.mjs"), json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FLOW_SECONDS)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    assert {name: each["failed"] for name, each in results.items() if "failed" in each} == {}
    assert proxy.statuses == [*REFUSALS, 200]
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with flow_server(tmp_path_factory.mktemp("node")) as server:
        yield run_flows(server, "two", "agent", "person", "vectors", texts=["w5", "w6 w7"])
        server.wait_idle()


def test_chats_streamed_or_not_are_one_text(results: dict[str, Any]) -> None:
    assert results["chat"]["text"] == results["streamedChat"]["text"] == "Hello."
    assert results["accumulatedChat"]["message"]["content"] == "Hello."
    assert results["accumulatedChat"]["message"]["role"] == "assistant"
    totals = [results[name]["usage"]["total_tokens"] for name in ("chat", "streamedChat")]
    assert totals[0] == totals[1] > 0
    assert results["leftStream"]["aborted"]


@pytest.mark.parametrize("flow", ["tools", "streamedTools", "runTools"])
def test_both_tools_are_called_and_answered(results: dict[str, Any], flow: str) -> None:
    assert results[flow] == {"called": [["weather", {"city": "Zürich"}], ["clock", {}]], "text": SAID}


def test_log_probabilities_join_to_the_text(results: dict[str, Any]) -> None:
    entries = results["logprobs"]["entries"]

    assert b"".join(bytes(entry["bytes"]) for entry in entries).startswith(b"Hello.")
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_forms_responses_completions_and_models(results: dict[str, Any]) -> None:
    assert results["form"] == {"object": {"name": "Ada", "age": 36}, "reason": "stop"}
    assert results["responses"] == {
        "text": "Hello.",
        "again": "Again.",
        "whole": "Hello.",
        "first": "response.created",
        "last": "response.completed",
    }
    assert results["completions"]["whole"] == results["completions"]["texts"]
    assert results["models"] == {"ids": ["agent", "person", "two", "vectors"], "one": "two"}


def test_errors_have_their_classes_and_facts(results: dict[str, Any]) -> None:
    errors = results["errors"]

    assert (errors["unknown"]["kind"], errors["unknown"]["code"]) == ("NotFoundError", "model_not_found")
    assert (errors["wrong"]["kind"], errors["wrong"]["param"]) == ("BadRequestError", "temperature")
    assert (errors["long"]["kind"], errors["long"]["code"]) == ("BadRequestError", "context_length_exceeded")
    assert all(each["id"].startswith("req_") for each in errors.values())


def test_vectors_come_in_both_encodings_and_cut(results: dict[str, Any]) -> None:
    found = results["embeddings"]

    expected = np.array([pooled((5,)), pooled((6, 7))])
    np.testing.assert_allclose(found["coded"], expected, atol=1e-5)
    np.testing.assert_allclose(found["plain"], found["coded"], atol=1e-7)
    short = expected[:, :3]
    np.testing.assert_allclose(found["cut"], short / np.linalg.norm(short, axis=1, keepdims=True), atol=1e-5)
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_a_refused_client_gives_up_or_comes_again(results: dict[str, Any]) -> None:
    refused = {"kind": "RateLimitError", "status": 429, "code": "overloaded"}

    assert results["retries"] == {"refused": refused, "text": "Hello."}
