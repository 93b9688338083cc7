"""``onnx-genai serve``: the HTTP server."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.limits import checked_limit
from onnx_genai.cli.models import MODEL, fetched_model
from onnx_genai.cli.options import ModelOptions, model_options, take
from onnx_genai.cli.profile import ProfileOptions, profile_options
from onnx_genai.cli.profile_serve import ServedProfiles
from onnx_genai.errors import InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.pipelines import AsyncEmbedder, AsyncLLM, ModelKind
    from onnx_genai.server import Limits, ModelSpec, ServerConfig, Tracing

__all__ = ["serve"]

API_KEY = "ONNX_GENAI_API_KEY"
LOG_LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.argument("models", type=MODEL, metavar="MODEL...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help=f"File of API keys, one a line. One key may also be in {API_KEY}.",
)
@click.option("--allow-no-key", is_flag=True, help="Listen beyond this machine without an API key.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="A further name in the Host header.")
@click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="A web page that may call, or *; default: none.")
@click.option("--alias", multiple=True, metavar="ALIAS=NAME", help="A further name of a model.")
@click.option(
    "--adapter",
    multiple=True,
    metavar="NAME=FILE",
    help="A LoRA adapter; clients ask for MODEL:NAME. Of one of several models: MODEL:NAME=FILE.",
)
@click.option("--lazy", is_flag=True, help="Load models at their first request, not now.")
@click.option("--model-ttl", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Unload unused models.")
@click.option("--max-loaded-models", type=click.IntRange(1), metavar="N", help="Models in memory at once.")
@click.option(
    "--max-model-bytes", callback=checked_limit, metavar="SIZE", help="Memory of all models: 8GiB, 0.5, bytes."
)
@click.option("--max-open-requests", type=click.IntRange(1), default=256, show_default=True, help="Then 429.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Bound on max_tokens; default: the context window.")
@click.option("--max-body-bytes", type=click.IntRange(1), default=20 * 2**20, show_default=True, help="Then 413.")
@click.option("--max-sessions", type=click.IntRange(1), default=256, show_default=True, help="Sessions for each key.")
@click.option(
    "--max-session-bytes", type=click.IntRange(1), default=64 * 2**20, show_default=True, help="Memory for them."
)
@click.option("--session-ttl", type=float, default=3600.0, show_default=True, help="Seconds; then one is forgotten.")
@click.option("--request-timeout", type=float, default=600.0, show_default=True, help="Seconds for a request.")
@click.option("--drain-timeout", type=float, default=30.0, show_default=True, help="Seconds to end what runs.")
@click.option(
    "--heartbeat", type=float, default=15.0, show_default=True, help="Seconds of silence in a stream; 0: off."
)
@click.option(
    "--max-num-seqs", type=click.IntRange(1), default=64, show_default=True, help="Sequences that run at once."
)
@click.option("--no-page", is_flag=True, help="Show no chat page at /.")
@click.option("--otlp-endpoint", metavar="URL", help="Send a span of each request to this OpenTelemetry collector.")
@click.option("--otel", is_flag=True, help="The same, to where the environment variables of OpenTelemetry say.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", show_default=True)
@profile_options
@model_options
def serve(models: tuple[str, ...], **values: Any) -> None:
    """Serve MODELs over HTTP, with OpenAI's interface.

    A MODEL may be given a name for clients: NAME=MODEL. The first one answers requests that name none.
    """
    from onnx_genai.server import serve as run  # takes time to import

    config = _config(values)
    specs = _specs(models, values, take(ModelOptions, values))
    _prepare_log(values["log_level"], as_json=values["log_format"] == "json")
    keys = f"{len(config.api_keys)} API keys" if config.api_keys else "no API key"
    console.note(f"starting {', '.join(spec.name for spec in specs)} on http://{config.host}:{config.port}/v1, {keys}")
    profiles = ServedProfiles(ProfileOptions.take(values))
    try:
        run([profiles.recorded(spec) for spec in specs], config)
    finally:
        profiles.write()


def _config(values: dict[str, Any]) -> ServerConfig:
    from onnx_genai.server import Limits, ServerConfig

    limits: Limits = Limits(
        max_body_bytes=values["max_body_bytes"],
        max_output_tokens=values["max_output_tokens"],
        max_open_requests=values["max_open_requests"],
        max_sessions=values["max_sessions"],
        max_session_bytes=values["max_session_bytes"],
        session_ttl=values["session_ttl"],
        request_timeout=values["request_timeout"],
    )
    return ServerConfig(
        host=values["host"],
        port=values["port"],
        api_keys=_api_keys(values["api_key_file"]),
        allow_no_key=values["allow_no_key"],
        allowed_hosts=values["allowed_host"],
        cors_origins=values["cors_origin"],
        limits=limits,
        heartbeat=values["heartbeat"],
        drain_timeout=values["drain_timeout"],
        model_ttl=values["model_ttl"],
        max_loaded_models=values["max_loaded_models"],
        max_model_bytes=_size(values["max_model_bytes"]),
        tracing=_tracing(values),
        page=not values["no_page"],
    )


def _size(limit: str | None) -> int | None:
    """Bytes of a memory limit; None and ``auto`` are no bound."""
    if limit is None:
        return None
    from onnx_genai.pipelines import parse_memory_limit, system_facts

    parsed = parse_memory_limit(limit, name="--max-model-bytes")
    available = system_facts().available_bytes
    if parsed.fraction and not available:
        raise click.UsageError(f"--max-model-bytes is {limit}, and this system does not tell its memory; give a size")
    if parsed.size_bytes is None and parsed.fraction is None:
        return None
    return parsed.resolve(capacity_bytes=available, auto_bytes=0)


def _tracing(values: dict[str, Any]) -> Tracing | None:
    endpoint: str | None = values["otlp_endpoint"]
    if endpoint is None and not values["otel"]:
        return None
    from onnx_genai.server import Tracing

    return Tracing.to_collector(endpoint)


def _api_keys(file: Path | None) -> tuple[str, ...]:
    """Keys from file and environment; what is there but empty is a mistake, and not "no key"."""
    keys: list[str] = []
    if file is not None:
        lines = [line.strip() for line in console.read_file(file).splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise InvalidArgumentError(f"{file} has no API key; write one a line")
    given = os.environ.get(API_KEY)
    if given is not None:
        if not given.strip():
            raise InvalidArgumentError(f"{API_KEY} is set but empty; give it a key or unset it")
        keys.append(given.strip())
    return tuple(keys)


def _specs(models: tuple[str, ...], values: dict[str, Any], loading: ModelOptions) -> list[ModelSpec]:
    from onnx_genai.pipelines import model_kind, weights_bytes
    from onnx_genai.server import ModelSpec

    aliases: dict[str, list[str]] = {}
    for each in values["alias"]:
        alias, equals, name = each.partition("=")
        if not (alias and equals and name):
            raise click.UsageError(f"--alias is {each!r}; write ALIAS=NAME")
        aliases.setdefault(name, []).append(alias)
    adapters = _adapters(values["adapter"])
    specs = []
    for each in models:
        name, path = _named(each, loading)
        own = tuple(aliases.pop(name, ()))
        kind = model_kind(path, variant=loading.variant)
        files = adapters.pop(name, {})
        if len(models) == 1:
            files |= adapters.pop("", {})
        if files and kind != "text":
            raise click.UsageError(f"--adapter is for language models, and {name} is none; leave it out")
        load = _loader(path, kind, loading, files, max_num_seqs=values["max_num_seqs"])
        eager = not values["lazy"]
        size = 0 if values["max_model_bytes"] is None else weights_bytes(path, variant=loading.variant)
        specs.append(
            ModelSpec(name=name, load=load, aliases=own, adapters=tuple(files), eager=eager, kind=kind, size_bytes=size)
        )
    if aliases:
        raise click.UsageError(f"--alias names {', '.join(aliases)}; the models are {', '.join(s.name for s in specs)}")
    if adapters:
        names = ", ".join(spec.name for spec in specs)
        if "" in adapters:
            raise click.UsageError(f"--adapter names no model, and there are {names}; write MODEL:NAME=FILE")
        raise click.UsageError(f"--adapter is for {', '.join(adapters)}; the models are {names}")
    return specs


def _adapters(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Files by the name of the adapter, by that of the model; which is empty where it is not stated."""
    found: dict[str, dict[str, str]] = {}
    for each in given:
        whole, equals, file = each.partition("=")
        model, _, name = whole.rpartition(":")
        if not (name and equals and file):
            raise click.UsageError(f"--adapter is {each!r}; write NAME=FILE or MODEL:NAME=FILE")
        if found.setdefault(model, {}).setdefault(name, file) != file:
            raise click.UsageError(f"--adapter gives {whole!r} twice; give each a name of its own")
    return found


def _named(given: str, loading: ModelOptions) -> tuple[str, Path]:
    """The name for clients and the place of a MODEL argument."""
    name, equals, model = given.partition("=")
    if not equals or Path(given).exists():
        name, model = "", given
    path = fetched_model(model, variant=loading.variant, offline=loading.offline)
    if not name:
        # The name of a folder, and never its whole path, which is nobody's business.
        place = Path(model)
        name = (place.resolve().name if place.is_dir() else place.resolve().parent.name) if place.exists() else model
    return name, path


def _loader(
    path: Path, kind: ModelKind, loading: ModelOptions, adapters: Mapping[str, str], *, max_num_seqs: int
) -> Callable[[], AsyncLLM | AsyncEmbedder]:
    def load() -> AsyncLLM | AsyncEmbedder:
        from onnx_genai.pipelines import AsyncEmbedder, AsyncLLM

        if kind != "text":
            return AsyncEmbedder(path, **loading.encoder_arguments())
        model = AsyncLLM(path, **loading.arguments(), max_num_seqs=max_num_seqs)
        try:
            for name, file in adapters.items():
                model.engine.adapters.load(file, name)
        except BaseException:
            model.engine.close()
            raise
        return model

    return load


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        text = record.getMessage()
        # Lines of the access log are objects already.
        line.update(json.loads(text) if record.name.endswith(".access") else {"message": text})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _prepare_log(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("onnx_genai")
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False
    foreign = logging.getLogger("uvicorn")
    foreign.handlers[:] = [handler]
    foreign.setLevel(logging.WARNING)
    foreign.propagate = False
    # It warns of each write to a connection that a client has reset, which any client may do as often as it likes.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
