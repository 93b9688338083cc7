"""The chat page at ``/``: files of this package, sent as they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onnx_genai.server.wire import server_version

__all__ = ["PAGE_PATHS", "PageRoutes"]

_FOLDER = Path(__file__).parent / "page"
_START = "index.html"
_NAMES = (
    "api.js",
    "asker.js",
    "base.css",
    "boxes.js",
    "chats.js",
    "composer.js",
    "conversation.js",
    "dom.js",
    "highlight.js",
    "icon.svg",
    "inline.js",
    "main.js",
    "markdown.js",
    "message_views.js",
    "messages.css",
    "models.js",
    "panel.css",
    "prose.css",
    "render.js",
    "scroll.js",
    "settings.js",
    "settings_panel.js",
    "side.css",
    "sidebar.js",
    "store.js",
    "stream.js",
    "style.css",
    "theme.js",
)
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # The browser itself refuses to make elements out of text, so no answer of a model becomes markup.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    # The browser keeps the files and asks each time whether they are still the same.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the page in memory."""

    content: bytes
    content_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> _File:
        content = path.read_bytes()
        return cls(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    def answer(self, request: Request, **headers: str) -> Response:
        """The file, or 304 if the caller has it."""
        own = {**_HEADERS, "ETag": self.etag, **headers}
        if {self.etag, "*"} & _etags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=own)
        return Response(self.content, headers={**own, "Content-Type": self.content_type})


PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _NAMES)})
"""Where the files of the page are. They hold no secrets and need no key; what the page asks the server does."""


class PageRoutes:
    """The routes of the chat page."""

    def __init__(self) -> None:
        self._start = _File.read(_FOLDER / _START)
        self._files = {name: _File.read(_FOLDER / name) for name in _NAMES}

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/", self.start, methods=["GET"]),
            Route("/page/{name}", self.file, methods=["GET"]),
        ]

    async def start(self, request: Request) -> Response:
        """The page for browsers; for programs a few words on where to go."""
        if "text/html" in request.headers.get("accept", "").lower():
            return self._start.answer(request, Vary="Accept")
        pointer = {
            "name": "onnx-genai",
            "version": server_version(),
            "base_url": "/v1",
            "openapi": "/openapi.json",
            "docs": "/docs",
        }
        return JSONResponse(pointer, headers={"Vary": "Accept"})

    async def file(self, request: Request) -> Response:
        """A file that the page is made of."""
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404)
        return self._files[name].answer(request)


def _etags(header: str) -> set[str]:
    return {each.strip().removeprefix("W/") for each in header.split(",")}
