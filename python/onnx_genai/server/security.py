"""Who may call: API keys, the Host header. ASGI middleware."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from onnx_genai.server.config import ServerConfig, is_loopback
from onnx_genai.server.errors import ApiError, error_response
from onnx_genai.server.page_routes import PAGE_PATHS

__all__ = ["PUBLIC_PATHS", "HostCheck", "KeyCheck", "KeyRing"]

PUBLIC_PATHS = frozenset({"/health"}) | PAGE_PATHS
"""Paths that need no key."""


class KeyRing:
    """The keys of a server. They are compared as hashes, in a time that tells nothing about them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, key: str | None) -> str | None:
        """A name for the holder of a key, None if it is wrong. Without keys everybody is the same."""
        if not self._digests:
            return "anyone"
        digest = _digest(key or "")
        # All are compared, so that the time does not tell which one fits.
        fits = [hmac.compare_digest(digest, own) for own in self._digests]
        return digest.hex()[:16] if key and any(fits) else None


class KeyCheck:
    """Lets in who shows a key: ``Authorization: Bearer KEY`` or ``x-api-key: KEY``."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        owner = self._keys.owner(_given_key(Headers(scope=scope)))
        if owner is None:
            error = ApiError(
                401,
                "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error, scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["owner"] = owner
        await self._app(scope, receive, send)


class HostCheck:
    """Refuses names that are not ours: a web page whose name was pointed at this machine (DNS rebinding)."""

    def __init__(self, app: ASGIApp, *, config: ServerConfig) -> None:
        self._app = app
        self._names = {"localhost", "127.0.0.1", "::1", config.host.strip("[]").lower()}
        self._names.update(name.strip("[]").lower() for name in config.allowed_hosts)
        # Who listens to other machines is known there by names that nobody told us; keys or the operator's word guard.
        self._any = not config.allowed_hosts and not is_loopback(config.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._any:
            host = _host_name(Headers(scope=scope).get("host", ""))
            if host not in self._names:
                error = ApiError(
                    403,
                    "The Host header names another machine; call this server by an address that it knows, or start it "
                    "with --allowed-host.",
                    code="host_not_allowed",
                )
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _given_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key")


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
