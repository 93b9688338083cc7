"""Spans of requests for OpenTelemetry: :class:`Tracing`. Nothing of OpenTelemetry is imported unless one is made.

A span has the names of the semantic conventions for generative models, and of vLLM for what those have not: models,
token counts, reasons and times, and never a prompt, an answer or a key.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.requests import Request

from onnx_genai.errors import InvalidArgumentError, UnsupportedError
from onnx_genai.server.live import LiveRequest
from onnx_genai.server.wire import server_version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

__all__ = ["Tracing"]

_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings", "rerank": "rerank"}
_CLOSE_SECONDS = 5.0
_PATH = "/v1/traces"
_MISSING = (
    "tracing needs OpenTelemetry, which is not installed; install it with pip install 'onnx-genai[otel]', or leave "
    "--otel and --otlp-endpoint out"
)


class Tracing:
    """Where the spans of one server go. Thread-safe.

    Args:
        processor: What takes the spans, of ``opentelemetry.sdk.trace``. It is shut down by :meth:`close`.

    Raises:
        UnsupportedError: OpenTelemetry is not installed.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        try:
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise UnsupportedError(_MISSING) from error
        ours = Resource({"service.name": "onnx-genai", "service.version": server_version()})
        # What the operator says in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES wins. Not the global provider: that
        # belongs to the program.
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("onnx_genai.server", server_version())
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls, endpoint: str | None = None) -> Tracing:
        """Sends spans in batches by OTLP over HTTP.

        Args:
            endpoint: ``http://HOST:4318`` or with a path; None takes OpenTelemetry's own environment variables
                (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS``, ...).

        Raises:
            InvalidArgumentError: The endpoint is no address.
            UnsupportedError: OpenTelemetry or its exporter is not installed.
        """
        if endpoint is not None:
            endpoint = _traces_url(endpoint)
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        if protocol not in (None, "", "http/protobuf"):
            raise UnsupportedError(f"OTLP protocol is {protocol!r}; this server sends http/protobuf only")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise UnsupportedError(_MISSING) from error
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    @contextmanager
    def span(self, request: Request, live: LiveRequest, model: str) -> Iterator[None]:
        """The span of one request, from its arrival to the end of the block."""
        from opentelemetry.trace import SpanKind

        operation = _OPERATIONS.get(live.route, "chat")
        # One traceparent: with several, which of them is meant is not known.
        carrier = {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=time.time_ns() - round(1e9 * (time.perf_counter() - live.arrived)),
        )
        try:
            yield
        finally:
            if span.is_recording():
                _describe(span, request, live, operation, model)
            span.end()

    def close(self) -> None:
        """Sends what is left, for some seconds at most: a collector that does not answer holds no server up."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


def _describe(span: Span, request: Request, live: LiveRequest, operation: str, model: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    values: dict[str, str | int | float | list[str] | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "onnx_genai",
        "gen_ai.request.id": live.id,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": request.scope["state"].get("max_tokens"),
        "gen_ai.latency.e2e": time.perf_counter() - live.arrived,
        "http.route": getattr(request.scope.get("route"), "path", None),
    }
    if live.outcome == "done":
        values["gen_ai.usage.input_tokens"] = live.prompt_tokens
        values["gen_ai.usage.output_tokens"] = live.completion_tokens
        values["gen_ai.response.finish_reasons"] = list(live.finish_reasons)
    elif live.is_stream:
        values["gen_ai.usage.output_tokens"] = live.completion_tokens
    first = None if live.first_token is None else live.first_token - live.arrived
    if live.times is not None:
        values["gen_ai.latency.time_in_queue"] = live.times.queued
        values["gen_ai.latency.time_in_model_prefill"] = live.times.prefill
        first = live.times.queued + live.times.prefill if first is None else first
    values["gen_ai.latency.time_to_first_token"] = first
    if live.outcome != "done":
        values["error.type"] = request.scope["state"]["log"].get("error") or live.outcome
        span.set_status(Status(StatusCode.ERROR))
    span.set_attributes({name: value for name, value in values.items() if value is not None})


def _traces_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgumentError(f"otlp_endpoint is {endpoint!r}; write http://HOST:4318 or https://HOST")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{_PATH}"
