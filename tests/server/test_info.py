"""Tokens, templates, metrics, documents, the access log."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from onnx_genai.server.app import create_app
from onnx_genai.server.openapi import OPERATIONS
from onnx_genai.server.unavailable import UNAVAILABLE
from tests.server.running import RunningServer, chat_body, raw_request, wait_until

ROOT = Path(__file__).resolve().parents[2]


def post(server: RunningServer, path: str, **fields: Any) -> dict[str, Any]:
    response = server.http.post(path, json=fields)
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def test_a_text_becomes_tokens_and_text_again(hello: RunningServer) -> None:
    text = "Grüße, the 😀"

    tokens = post(hello, "/tokenize", prompt=text, with_pieces=True)

    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["pieces"])
    assert tokens["tokens"] == post(hello, "/tokenize", content=text)["tokens"]
    assert post(hello, "/detokenize", tokens=tokens["tokens"])["prompt"] == text


def test_a_chat_becomes_the_prompt_that_is_computed(hello: RunningServer) -> None:
    messages = chat_body("Hi")["messages"]

    prompt = post(hello, "/apply-template", messages=messages)["prompt"]

    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    tokens = post(hello, "/tokenize", messages=messages)["tokens"]
    assert len(tokens) == hello.chat("Hi").json()["usage"]["prompt_tokens"]
    open_end = post(hello, "/apply-template", messages=messages, add_generation_prompt=False)["prompt"]
    assert open_end == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "content": "b"}, {"prompt": 5}])
def test_tokenize_takes_exactly_one_text(hello: RunningServer, fields: dict[str, Any]) -> None:
    assert hello.http.post("/tokenize", json=fields).status_code == 400


@pytest.mark.parametrize("tokens", [[100_000], [-1], ["a"], None, [2**70]])
def test_detokenize_refuses_what_is_no_token(hello: RunningServer, tokens: object) -> None:
    assert hello.http.post("/detokenize", json={"tokens": tokens}).status_code == 400


def numbers(server: RunningServer) -> dict[str, float]:
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_count_requests_tokens_and_times(hello: RunningServer) -> None:
    before = numbers(hello)
    usage = hello.chat().json()["usage"]
    hello.chat_chunks(n=2)
    hello.wait_idle()
    after = numbers(hello)

    def grown(name: str, **labels: str) -> float:
        key = f"onnx_genai:{name}" + json.dumps({"model_name": "org/hello", **labels}, sort_keys=True)
        return after[key] - before.get(key, 0)

    assert grown("request_success_total", finished_reason="stop") == 3
    assert grown("prompt_tokens_total") == 2 * usage["prompt_tokens"]
    assert grown("generation_tokens_total") == 3 * usage["completion_tokens"]
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("e2e_request_latency_seconds_count") == 2
    assert after['onnx_genai:num_requests_running{"model_name": "org/hello"}'] == 0
    assert 0 <= after['onnx_genai:kv_cache_usage_perc{"model_name": "org/hello"}'] <= 1
    assert after["onnx_genai:open_requests{}"] == 0


def test_metrics_name_decoder_and_backend(hello: RunningServer) -> None:
    decoder = hello.http.get("/props").json()["models"][0]["engine"]["decoder"]
    labels = {"backend": "ort", "decoder": decoder, "model_name": "org/hello"}

    assert numbers(hello)["onnx_genai:model_info" + json.dumps(labels, sort_keys=True)] == 1


def test_metrics_count_answers_that_were_given_up_or_failed(slow: RunningServer) -> None:
    def count(reason: str) -> float:
        labels = json.dumps({"finished_reason": reason, "model_name": "slow"}, sort_keys=True)
        return numbers(slow).get("onnx_genai:request_success_total" + labels, 0)

    slow.wait_idle()
    aborts, errors = count("abort"), count("error")
    for stream in (True, False):
        sent = json.dumps(chat_body(stream=stream, max_tokens=1000)).encode()
        with raw_request(slow, "/v1/chat/completions", sent):
            wait_until(lambda: slow.metric("num_running") == 1, "the request")
        slow.wait_idle()
        assert slow.chat(stream=stream, max_tokens=1000, timeout=0.2).status_code in (200, 408)
        slow.wait_idle()
    assert slow.chat(temperature=-1).status_code == 400
    assert slow.chat("x" * 5000).status_code == 400
    assert slow.chat("x" * 5000, stream=True).status_code == 400

    assert (count("abort") - aborts, count("error") - errors) == (2, 2)


def test_no_label_holds_text_of_a_client(hello: RunningServer) -> None:
    hello.chat(model="made-up-by-a-client")
    hello.http.get("/made/up/by/a/client")

    assert "client" not in hello.http.get("/metrics").text


def test_properties_tell_limits_and_models_but_no_place(hello: RunningServer) -> None:
    response = hello.http.get("/props")

    (model,) = response.json()["models"]
    assert model["max_model_len"] == 4096
    assert model["chat"] is True
    assert model["engine"]["decoder"]
    assert "/" not in re.sub(r'"org/hello"', "", response.text)


def test_slots_show_what_runs_and_nothing_of_what_it_says(slow: RunningServer) -> None:
    sent = json.dumps(chat_body("my secret", stream=True, max_tokens=1000)).encode()
    with raw_request(slow, "/v1/chat/completions", sent, {"X-Request-Id": "my-id"}):
        wait_until(lambda: bool(slow.http.get("/slots").json()), "the request")
        wait_until(lambda: slow.http.get("/slots").json()[0]["completion_tokens"] > 2, "some tokens")
        response = slow.http.get("/slots")

    (slot,) = response.json()
    assert (slot["id"], slot["route"], slot["model"], slot["stream"]) == ("my-id", "chat", "slow", True)
    assert slot["state"] == "decode"
    assert "secret" not in response.text
    slow.wait_idle()
    assert slow.http.get("/slots").json() == []


def test_the_document_lists_every_route(hello: RunningServer) -> None:
    document = hello.http.get("/openapi.json").json()

    documented = {(method.upper(), path) for path, each in document["paths"].items() for method in each}
    routes = {
        (method, each.path.replace(":path", ""))
        for each in create_app(hello.server.state).routes
        if isinstance(each, Route)
        for method in (each.methods or set()) - {"HEAD"}
    }
    assert documented == {(method, path) for method, path in routes if path not in UNAVAILABLE}
    assert all(path in document["info"]["description"] for path in UNAVAILABLE)
    assert len(documented) == len(OPERATIONS)
    assert document["openapi"].startswith("3.1")


def test_the_table_of_the_documents_names_every_route() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    rows = [line for line in page.split("\n## Routes\n")[1].split("\n## ")[0].splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", row)[1].replace("…", "/v1/sessions/{id}") for row in rows]

    named = {path for cell in cells for path in re.findall(r"/[\w./{}-]*", cell)}
    served = {re.sub(r"\{\w+_id\}", "{id}", path) for _, path, _, _ in OPERATIONS}
    assert named == served | set(UNAVAILABLE)


def test_every_reference_of_the_document_leads_somewhere(hello: RunningServer) -> None:
    text = hello.http.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]

    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= schemas.keys()
    assert "max_completion_tokens" in schemas["ChatCompletionRequest"]["properties"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/sessions", {}, 201),
        ("/v1/sessions/{session_id}/fork", {}, 201),
        ("/v1/sessions", {"messages": 1}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, 200),
        ("/v1/chat/completions", {"messages": 1}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, 200),
        ("/v1/messages", {"messages": 1}, 400),
        ("/v1/messages/count_tokens", {"messages": 1}, 400),
    ],
)
def test_the_document_says_how_each_route_answers(
    hello: RunningServer, path: str, body: dict[str, Any], status: int
) -> None:
    made = hello.http.post("/v1/sessions", json={}).json()["id"]

    response = hello.http.post(path.replace("{session_id}", made), json=body)

    assert response.status_code == status
    document = hello.http.get("/openapi.json").json()
    told = document["paths"][path]["post"]["responses"]
    assert set(told) == {"201" if "sessions" in path else "200", "default"}
    if status >= 400:
        reference = told["default"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        jsonschema.Draft202012Validator(schema).validate(response.json())


def test_the_page_needs_nothing_from_elsewhere(hello: RunningServer) -> None:
    response = hello.http.get("/docs")

    assert response.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in response.text
    assert not re.search(r"<script|https?://|<link|<img", response.text)


@pytest.mark.parametrize("given", ["abc-123", "a" * 128])
def test_a_request_id_is_given_back(hello: RunningServer, given: str) -> None:
    assert hello.http.get("/health", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 200, "<script>"])
def test_a_strange_request_id_is_replaced(hello: RunningServer, given: str) -> None:
    made = hello.http.get("/health", headers={"x-request-id": given}).headers["x-request-id"]

    assert re.fullmatch(r"req_[0-9a-f]{24}", made)


def test_the_log_has_one_line_a_request_and_nothing_of_its_text(
    hello: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="onnx_genai"):
        hello.chat("my secret", strange_field="my secret")
        hello.http.get("/v1/models/%1b[31mforged?key=secret", headers={"authorization": "Bearer secret"})
        wait_until(lambda: len(_access_lines(caplog)) == 2, "the lines")

    chat, forged = _access_lines(caplog)
    assert chat["status"] == 200
    assert chat["model"] == "org/hello"
    assert chat["completion_tokens"] == 17
    assert chat["request_id"].startswith("req_")
    assert forged["error"] == "model_not_found"
    assert "secret" not in caplog.text
    assert "\x1b" not in caplog.text
    assert "strange_field" in caplog.text


def _access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Those of the test's requests: the line of the probe that waited for the server may come as late as these."""
    records = (each for each in caplog.records if each.name == "onnx_genai.server.access")
    lines = [json.loads(each.getMessage()) for each in records]
    return [line for line in lines if line["path"] != "/health"]


def test_the_page_of_metrics_does_not_wait_for_the_engine(slow: RunningServer) -> None:
    sent = json.dumps(chat_body("x" * 200, max_tokens=200)).encode()
    with raw_request(slow, "/v1/chat/completions", sent):
        wait_until(lambda: slow.metric("num_running") == 1, "the request")

        assert numbers(slow)['onnx_genai:num_requests_running{"model_name": "slow"}'] == 1
    slow.wait_idle()
