"""What a server is told when it starts: address, keys, limits, models."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.pipelines import AsyncEmbedder, AsyncLLM, ModelKind

if TYPE_CHECKING:
    from onnx_genai.server.tracing import Tracing

__all__ = ["Limits", "ModelSpec", "ServerConfig", "is_loopback"]


MAX_SECONDS = 1e8
"""The longest time that may be waited for: three years, and all that the engine's clock takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what one client may ask for. All are above 0; None is no bound."""

    max_body_bytes: int = 20 * 2**20
    """Body of a request."""
    max_output_tokens: int | None = None
    """``max_tokens`` of a request; None is the context window."""
    max_open_requests: int = 256
    """Requests that compute or wait; one more is answered 429."""
    max_choices: int = 32
    """Answers to one prompt: ``n`` or ``best_of``."""
    max_prompts: int = 256
    """Prompts in one request."""
    max_answers: int = 256
    """Answers of one request: its prompts times ``n`` or ``best_of``."""
    max_inputs: int = 2048
    """Texts to embed, or documents to order, in one request."""
    max_stop: int = 16
    """Stop strings, or stop ids."""
    max_logit_bias: int = 1024
    """Entries of ``logit_bias``."""
    max_tools: int = 128
    """Tools of a request."""
    max_schema_bytes: int = 256 * 2**10
    """Tools and response format of a request, each as JSON text."""
    max_scored_tokens: int = 8192
    """Tokens of a prompt whose log-probabilities are asked for (``echo`` with ``logprobs``)."""
    max_tokenized_bytes: int = 4 * 2**20
    """Text that ``/tokenize`` takes, in bytes of UTF-8."""
    max_detokenized_tokens: int = 2**20
    """Token ids that ``/detokenize`` takes."""
    max_sessions: int = 256
    """Sessions that are kept for each key, and as many responses; the one unused for longest makes room."""
    max_session_bytes: int = 64 * 2**20
    """Memory for the sessions of a key, and as much for its responses."""
    request_timeout: float | None = 600.0
    """Seconds from arrival to the last token."""
    head_timeout: float = 30.0
    """Seconds in which the head of a request must arrive, on a new connection from its opening."""
    body_timeout: float = 30.0
    """Seconds in which the body of a request must arrive."""
    slow_reader_timeout: float = 60.0
    """Seconds that a reader of a stream may leave data untaken."""
    session_ttl: float = 3600.0
    """Seconds after which an unused session is forgotten."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            most = MAX_SECONDS if each.name.endswith(("_timeout", "_ttl")) else 2**53
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
                raise InvalidArgumentError(f"{each.name} is {value!r}; allowed: a number above 0, up to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that a server offers."""

    name: str
    """The id under which clients ask for it; may hold slashes."""
    load: Callable[[], AsyncLLM | AsyncEmbedder]
    """Opens it; called in a thread of its own."""
    aliases: tuple[str, ...] = ()
    """Further names."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that ``load`` loads with it; clients ask for ``name:adapter``."""
    eager: bool = True
    """Load when the server starts, and not at the first request."""
    kind: ModelKind | None = None
    """What ``load`` gives: text is a language model; None: known once it is loaded."""
    size_bytes: int = 0
    """An estimate of the memory that it takes, used until it was loaded once; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How a server listens and whom it serves."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    """Any of them opens every route; none: no key is asked for."""
    allow_no_key: bool = False
    """Listen beyond this machine without keys."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header besides those of the loopback and ``host``; without keys no other is answered."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call from a browser; ``*`` is all."""
    limits: Limits = field(default_factory=Limits)
    heartbeat: float = 15.0
    """Seconds of silence in a stream before a comment is sent; 0 sends none."""
    drain_timeout: float = 30.0
    """Seconds that running requests get when the server is told to stop."""
    model_ttl: float | None = None
    """Seconds after which an unused model is unloaded; None keeps it."""
    max_loaded_models: int | None = None
    """Models in memory at once; the one unused for longest makes room."""
    max_model_bytes: int | None = None
    """Memory that all loaded models may hold, with their KV; the one unused for longest makes room."""
    tracing: Tracing | None = None
    """Where the spans of requests go; None makes none. The server closes it when it ends."""
    page: bool = True
    """Show the chat page at ``/``."""

    def __post_init__(self) -> None:
        if any(len(key) < 1 or not key.isascii() or not key.isprintable() or " " in key for key in self.api_keys):
            raise InvalidArgumentError("an API key is empty or has blanks or characters beyond ASCII; make another")
        if not is_loopback(self.host) and not self.api_keys and not self.allow_no_key:
            raise InvalidArgumentError(
                f"host is {self.host}, which other machines can reach, and there is no API key; set ONNX_GENAI_API_KEY "
                "or --api-key-file, or allow it with --allow-no-key"
            )
        if not 0 <= self.port < 2**16:
            raise InvalidArgumentError(f"port is {self.port}; allowed: 0..65535, 0 takes a free one")
        for name in ("max_loaded_models", "max_model_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} is {value}; allowed: 1 or more, or None for no bound")
        for name in ("heartbeat", "drain_timeout"):
            if not 0 <= getattr(self, name) <= MAX_SECONDS:
                raise InvalidArgumentError(
                    f"{name} is {getattr(self, name)}; allowed: seconds, 0 or more, up to {MAX_SECONDS:g}"
                )
        if self.model_ttl is not None and not 0 < self.model_ttl <= MAX_SECONDS:
            raise InvalidArgumentError(
                f"model_ttl is {self.model_ttl}; allowed: above 0, up to {MAX_SECONDS:g} seconds"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
