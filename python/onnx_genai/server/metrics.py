"""Prometheus metrics, in the names that dashboards for other servers use after their prefix."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onnx_genai.server.live import LiveRequest, LiveRequests
from onnx_genai.server.registry import ModelRegistry
from onnx_genai.types import Usage

__all__ = ["Meter", "ServerMetrics"]

PREFIX = "onnx_genai:"
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_STEP_SIZE = re.compile(r"num_steps_up_to_(\d+)_tokens")

# Metric, help, key of the engine's numbers.
_GAUGES = (
    ("num_requests_running", "Sequences that run now.", "num_running"),
    ("num_requests_waiting", "Sequences that wait now.", "num_waiting"),
    ("kv_cache_capacity_tokens", "Positions that the hot tier of KV can hold.", "kv_capacity_tokens"),
)
_COUNTERS = (
    ("num_preemptions", "Sequences that had to make room.", "num_preemptions"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queried_tokens"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
    ("engine_steps", "Steps of the engine.", "num_steps"),
    ("engine_step_seconds", "Time in steps of the engine.", "step_seconds"),
    ("encoder_texts", "Texts that an encoder read.", "encoder_num_texts"),
    ("encoder_tokens", "Tokens of those texts.", "encoder_num_tokens"),
    ("encoder_padding_tokens", "Tokens that filled up shorter texts of a run.", "encoder_num_padding"),
    ("encoder_runs", "Runs of an encoder.", "encoder_num_runs"),
    ("encoder_run_seconds", "Time in those runs.", "encoder_run_seconds"),
)


class ServerMetrics:
    """All metrics of a server. Labels are names of models and routes, never text of a client."""

    def __init__(self, models: ModelRegistry, live: LiveRequests) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(models, live))
        label = ["model_name"]
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that ended.", label)
        self.cached_tokens = self._counter("prompt_tokens_cached", "Of those, tokens whose KV was reused.", label)
        self.generation_tokens = self._counter("generation_tokens", "Tokens made for requests that ended.", label)
        self.finished = self._counter("request_success", "Answers that ended.", [*label, "finished_reason"])
        self.first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _LONG)
        self.gap = self._histogram("inter_token_latency_seconds", "Time between tokens of a stream.", _SHORT)
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to the end of the answer.", _LONG)
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time of a request's tokens after the first.", _SHORT
        )
        self.queue = self._histogram("request_queue_time_seconds", "Time until the first step of a request.", _LONG)
        self.prefill = self._histogram("request_prefill_time_seconds", "First step to first token.", _LONG)
        self.decode = self._histogram("request_decode_time_seconds", "First token to the end.", _LONG)
        self.prompt_sizes = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.answer_sizes = self._histogram("request_generation_tokens", "Tokens made for a request.", _TOKENS)
        self.http = self._counter("http_requests", "Requests by route and status.", ["route", "status"])

    def meter(self, live: LiveRequest, model: str) -> Meter:
        """Measures one request."""
        live.note_model(model)
        return Meter(self, live, model)

    @contextmanager
    def unfinished(self, live: LiveRequest, model: str) -> Iterator[None]:
        """Counts a request that ends without an answer: the client or the server gave it up, or it failed."""
        try:
            yield
        except Exception as error:
            live.note_failure(error)
            raise
        finally:
            if live.outcome in ("abort", "error"):
                self.finished.labels(model, live.outcome).inc()

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, text, ["model_name"], buckets=buckets, registry=self._registry)


class Meter:
    """The clock of one request."""

    def __init__(self, metrics: ServerMetrics, live: LiveRequest, model: str) -> None:
        self._metrics = metrics
        self._live = live
        self._model = model
        self._first = metrics.first_token.labels(model)
        self._gap = metrics.gap.labels(model)

    def tokens(self, count: int) -> None:
        """``count`` tokens came now; only streams call this."""
        if not count:
            return
        live, now = self._live, time.perf_counter()
        live.completion_tokens += count
        if live.last_token is None:
            live.first_token = now
            self._first.observe(now - live.arrived)
        else:
            self._gap.observe((now - live.last_token) / count)
        live.last_token = now

    def done(self, reasons: Iterable[str], usage: Usage) -> None:
        """The request has ended with these finish reasons."""
        ended = tuple(reasons)
        self._live.note_end(ended, usage.times)
        for reason in ended:
            self._metrics.finished.labels(self._model, reason).inc()
        self._metrics.prompt_tokens.labels(self._model).inc(usage.prompt_tokens)
        self._metrics.cached_tokens.labels(self._model).inc(usage.cached_tokens)
        self._metrics.generation_tokens.labels(self._model).inc(usage.completion_tokens)
        self._metrics.prompt_sizes.labels(self._model).observe(usage.prompt_tokens)
        self._metrics.answer_sizes.labels(self._model).observe(usage.completion_tokens)
        latency = time.perf_counter() - self._live.arrived
        self._metrics.latency.labels(self._model).observe(latency)
        self._observe_parts(latency, usage)
        self._live.note_usage(usage.prompt_tokens, usage.completion_tokens)

    def _observe_parts(self, latency: float, usage: Usage) -> None:
        times = usage.times
        if times is None:
            return
        self._metrics.queue.labels(self._model).observe(times.queued)
        if usage.completion_tokens:
            decode = max(latency - times.queued - times.prefill, 0.0)
            self._metrics.prefill.labels(self._model).observe(times.prefill)
            self._metrics.decode.labels(self._model).observe(decode)
            if usage.completion_tokens > 1:
                self._metrics.per_token.labels(self._model).observe(decode / (usage.completion_tokens - 1))


class _EngineCollector(Collector):
    """Asks the engines when the page is read."""

    def __init__(self, models: ModelRegistry, live: LiveRequests) -> None:
        self._models = models
        self._live = live

    def collect(self) -> Iterator[Metric]:
        loaded = [(name, entry.model) for name, entry in self._models.entries.items() if entry.model is not None]
        numbers = {name: model.metrics() for name, model in loaded if not model.is_closed}
        for name, text, key in _GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
            for model, values in numbers.items():
                if key in values:
                    gauge.add_metric([model], values[key])
            yield gauge
        usage = GaugeMetricFamily(
            PREFIX + "kv_cache_usage_perc", "Share of KV blocks in use, 0..1.", labels=["model_name"]
        )
        for model, values in numbers.items():
            if "kv_hot_blocks" in values:
                usage.add_metric([model], values["kv_hot_used_blocks"] / max(values["kv_hot_blocks"], 1))
        yield usage
        for name, text, key in _COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
            for model, values in numbers.items():
                if key in values:
                    counter.add_metric([model], values[key])
            yield counter
        yield _step_sizes(numbers)
        state = GaugeMetricFamily(PREFIX + "model_loaded", "1 if the model is in memory.", labels=["model_name"])
        for name, entry in self._models.entries.items():
            state.add_metric([name], float(entry.model is not None))
        yield state
        facts = GaugeMetricFamily(
            PREFIX + "model_info", "1; the labels say how the model runs.", labels=["model_name", "decoder", "backend"]
        )
        for name, served in loaded:
            info = {} if served.is_closed else served.info()
            if "decoder" in info:  # an encoder has none
                facts.add_metric([name, str(info["decoder"]), str(info["backend"])], 1.0)
        yield facts
        open_requests = GaugeMetricFamily(PREFIX + "open_requests", "Requests that are computed or wait.")
        open_requests.add_metric([], len(self._live.open))
        yield open_requests


def _step_sizes(numbers: Mapping[str, Mapping[str, float]]) -> HistogramMetricFamily:
    """How many tokens the steps of each engine ran."""
    family = HistogramMetricFamily(PREFIX + "iteration_tokens_total", "Tokens of a step.", labels=["model_name"])
    for model, values in numbers.items():
        bounds = sorted(int(found[1]) for key in values if (found := _STEP_SIZE.fullmatch(key)))
        buckets = [(f"{bound}.0", values[f"num_steps_up_to_{bound}_tokens"]) for bound in bounds]
        buckets.append(("+Inf", max(values.get("num_steps", 0.0), *(count for _, count in buckets), 0.0)))
        family.add_metric([model], buckets=buckets, sum_value=values.get("num_step_tokens", 0.0))
    return family
