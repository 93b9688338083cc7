"""Spans of requests: what they say, whose children they are, and that there are none unless they are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.server import ModelSpec, Tracing
from tests.server.running import RunningServer, chat_body, raw_request, wait_until

pytest.importorskip("opentelemetry.sdk")

PROMPT = "the secret words of a prompt"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> Any:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@pytest.fixture
def traced(serve: Callable[..., RunningServer], hello_spec: ModelSpec, spans: Any) -> RunningServer:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    return serve(hello_spec, tracing=Tracing(SimpleSpanProcessor(spans))).wait_ready()


def only_span(exporter: Any) -> Any:
    wait_until(lambda: len(exporter.get_finished_spans()) == 1, "the span")
    return exporter.get_finished_spans()[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_gives_one_span_with_its_numbers_and_none_of_its_words(
    traced: RunningServer, spans: Any, stream: bool
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    body = chat_body(PROMPT, stream=stream, max_tokens=3, stream_options={"include_usage": True} if stream else None)
    answer = traced.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text

    span = only_span(spans)
    values = dict(span.attributes)
    assert span.name == "chat org/hello"
    assert span.kind.name == "SERVER"
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert values["gen_ai.operation.name"] == "chat"
    assert values["gen_ai.request.model"] == values["gen_ai.response.model"] == "org/hello"
    assert values["gen_ai.request.id"] == "mine"
    assert values["gen_ai.request.max_tokens"] == values["gen_ai.usage.output_tokens"] == 3
    assert values["gen_ai.response.finish_reasons"] == ("length",)
    assert values["http.route"] == "/v1/chat/completions"
    queue, first, whole = (values[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e"))
    assert 0 <= queue < first < whole
    assert whole == pytest.approx((span.end_time - span.start_time) / 1e9, abs=0.05)
    if not stream:
        assert values["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert "error.type" not in values
    assert span.status.status_code.name == "UNSET"
    assert "secret" not in span.to_json()
    assert "Hello" not in span.to_json()


def test_other_routes_have_their_own_operation_and_a_trace_of_their_own(traced: RunningServer, spans: Any) -> None:
    answer = traced.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
    assert answer.status_code == 200

    span = only_span(spans)
    assert span.name == "text_completion org/hello"
    assert span.parent is None
    assert span.attributes["gen_ai.request.max_tokens"] == 2


def test_a_parent_that_is_not_sampled_is_obeyed(traced: RunningServer, spans: Any) -> None:
    for flag in ("00", "01"):
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flag}"}
        assert traced.http.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code == 200

    assert only_span(spans).context.trace_flags.sampled


@pytest.mark.parametrize("given", ["nonsense", "00-0-0-01", f"ff-{TRACE}-{PARENT}-01", "x" * 5000])
def test_a_malformed_parent_is_ignored(traced: RunningServer, spans: Any, given: str) -> None:
    answer = traced.http.post("/v1/chat/completions", json=chat_body(), headers={"traceparent": given})
    assert answer.status_code == 200

    assert only_span(spans).parent is None


def test_a_request_whose_client_leaves_ends_its_span_as_an_error(
    serve: Callable[..., RunningServer], slow_spec: ModelSpec, spans: Any
) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    server = serve(slow_spec, tracing=Tracing(SimpleSpanProcessor(spans))).wait_ready()
    with raw_request(
        server, "/v1/chat/completions", json.dumps(chat_body(stream=True, max_tokens=500)).encode()
    ) as sent:
        sent.recv(100)
    server.wait_idle()

    span = only_span(spans)
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] in ("abort", "client_gone")


def test_refused_requests_and_other_routes_give_no_span_of_a_model(traced: RunningServer, spans: Any) -> None:
    assert traced.http.post("/v1/chat/completions", json={"messages": []}).status_code == 400
    assert traced.http.get("/v1/models").status_code == 200

    assert spans.get_finished_spans() == ()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Address of a collector, and what was sent to it."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_collector_at_the_latest_when_the_server_ends(
    hello_spec: ModelSpec, collector: tuple[str, list[tuple[str, bytes]]]
) -> None:
    url, got = collector
    with RunningServer([hello_spec], tracing=Tracing.to_collector(url)) as server:
        assert server.wait_ready().chat(PROMPT).status_code == 200

    assert [path for path, _ in got] == ["/v1/traces"]
    assert b"gen_ai.usage.output_tokens" in got[0][1]
    assert b"onnx-genai" in got[0][1]
    assert b"secret" not in got[0][1]


def test_a_collector_that_is_not_there_does_not_hold_the_server_up(
    hello_spec: ModelSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer([hello_spec], tracing=Tracing.to_collector("http://127.0.0.1:9")) as server:
        assert server.wait_ready().chat().status_code == 200


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://x:4317", "", "http://"])
def test_an_endpoint_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="otlp_endpoint is"):
        Tracing.to_collector(url)


def run(code: str) -> Mapping[str, Any]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    result: Mapping[str, Any] = json.loads(done.stdout)
    return result


def test_without_the_flag_nothing_of_it_is_imported() -> None:
    code = "import json, sys, onnx_genai.server, onnx_genai.cli.serve\nprint(json.dumps([*sys.modules]))"

    assert not [name for name in run(code) if name.startswith("opentelemetry")]


def test_what_is_missing_is_told() -> None:
    code = (
        "import json, sys\nsys.modules['opentelemetry.sdk.trace.export'] = None\n"
        "sys.modules['opentelemetry.exporter'] = None\nfrom onnx_genai.server import Tracing\n"
        "try: Tracing.to_collector('http://localhost:4318')\nexcept Exception as error:\n"
        "    print(json.dumps({'kind': type(error).__name__, 'text': str(error)}))"
    )

    told = run(code)
    assert told["kind"] == "UnsupportedError"
    assert "pip install 'onnx-genai[otel]'" in told["text"]
