"""``/openapi.json`` and a plain page that shows it."""

from __future__ import annotations

import html
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from onnx_genai.server.errors import is_anthropic
from onnx_genai.server.schemas.chat import ChatCompletionRequest
from onnx_genai.server.schemas.completions import CompletionRequest
from onnx_genai.server.schemas.embeddings import EmbeddingRequest, RerankRequest
from onnx_genai.server.schemas.messages import CountTokensRequest, MessagesRequest
from onnx_genai.server.schemas.responses import ResponseRequest
from onnx_genai.server.schemas.text import (
    DetokenizeRequest,
    RewindRequest,
    SessionRequest,
    TemplateRequest,
    TokenizeRequest,
)
from onnx_genai.server.unavailable import UNAVAILABLE
from onnx_genai.server.wire import server_version

__all__ = ["OPERATIONS", "DocumentRoutes", "openapi_document"]

OPERATIONS: tuple[tuple[str, str, str, type[BaseModel] | None], ...] = (
    ("post", "/v1/chat/completions", "Answer a chat, as a whole or as server-sent events.", ChatCompletionRequest),
    ("post", "/v1/completions", "Continue one or many prompts.", CompletionRequest),
    ("post", "/v1/responses", "Answer in the form of a response.", ResponseRequest),
    ("get", "/v1/responses/{response_id}", "A response that was given.", None),
    ("delete", "/v1/responses/{response_id}", "Forget a response.", None),
    ("post", "/v1/messages", "Answer a chat in Anthropic's form.", MessagesRequest),
    ("post", "/v1/messages/count_tokens", "Count the tokens of a chat in Anthropic's form.", CountTokensRequest),
    ("post", "/v1/embeddings", "Vectors of texts.", EmbeddingRequest),
    ("post", "/v1/rerank", "Order documents by how well they fit a query.", RerankRequest),
    ("post", "/v2/rerank", "The same.", RerankRequest),
    ("post", "/rerank", "The same.", RerankRequest),
    ("get", "/v1/models", "List the models.", None),
    ("get", "/v1/models/{model_id}", "One model; the id may hold slashes.", None),
    ("post", "/v1/sessions", "Make a session.", SessionRequest),
    ("get", "/v1/sessions", "List the caller's sessions.", None),
    ("get", "/v1/sessions/{session_id}", "One session with its messages.", None),
    ("delete", "/v1/sessions/{session_id}", "Forget a session.", None),
    ("post", "/v1/sessions/{session_id}/fork", "Make a second session with the same messages.", None),
    ("post", "/v1/sessions/{session_id}/rewind", "Keep the first messages of a session.", RewindRequest),
    ("post", "/tokenize", "Token ids of a text or chat.", TokenizeRequest),
    ("post", "/detokenize", "Text of token ids.", DetokenizeRequest),
    ("post", "/apply-template", "The prompt text that a chat becomes.", TemplateRequest),
    ("get", "/health", "200 when the server can answer, 503 while it loads or ends. Needs no key.", None),
    ("get", "/metrics", "Numbers in Prometheus' text format.", None),
    ("get", "/props", "Facts about server and models.", None),
    ("get", "/slots", "The requests that are open now.", None),
    ("get", "/openapi.json", "This document.", None),
    ("get", "/docs", "This document as a page.", None),
    ("get", "/", "The chat page, for browsers. Needs no key.", None),
    ("get", "/page/{name}", "A file of the chat page. Needs no key.", None),
)
"""Method, path, what it does, schema of the body."""

_MISSING = "Not available, answered with 501: " + ", ".join(f"{path} ({what})" for path, what in UNAVAILABLE.items())


class DocumentRoutes:
    """The routes of the documents."""

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/openapi.json", self.document, methods=["GET"]),
            Route("/docs", self.page, methods=["GET"]),
        ]

    async def document(self, request: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(openapi_document())

    async def page(self, request: Request) -> Response:
        """A page without scripts or other files."""
        return HTMLResponse(
            _page(), headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        )


@cache
def openapi_document() -> dict[str, Any]:
    """The OpenAPI 3.1 document of all routes that do something."""
    bodies = list(dict.fromkeys(model for _, _, _, model in OPERATIONS if model is not None))
    names, definitions = models_json_schema(
        [(model, "validation") for model in bodies], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, model in OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": _responses(method, path),
        }
        if "{" in path:
            name = path.partition("{")[2].partition("}")[0]
            operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        if model is not None:
            schema = names[(model, "validation")]
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if path not in ("/", "/health", "/page/{name}"):
            operation["security"] = [{"bearer": []}, {"header": []}]
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "onnx-genai", "version": server_version(), "description": _MISSING},
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _responses(method: str, path: str) -> dict[str, Any]:
    error = "AnthropicError" if is_anthropic(path) else "Error"
    return {
        "201" if (method, path) in _MAKING else "200": {"description": "Done."},
        "default": {
            "description": "An error.",
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}},
        },
    }


_MAKING = {("post", "/v1/sessions"), ("post", "/v1/sessions/{session_id}/fork")}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}


def _page() -> str:
    rows = []
    schemas = openapi_document()["components"]["schemas"]
    for method, path, summary, model in OPERATIONS:
        fields = ""
        if model is not None:
            names = sorted(schemas[model.__name__].get("properties", {}))
            fields = "<br><small>" + html.escape(", ".join(names)) + "</small>"
        rows.append(
            f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td>"
            f"<td>{html.escape(summary)}{fields}</td></tr>"
        )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>onnx-genai</title>"
        "<style>body{font:16px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
        "td{vertical-align:top;padding:.3em 1em .3em 0}</style>"
        f"<h1>onnx-genai {html.escape(server_version())}</h1>"
        f"<p>The same for programs: <code>/openapi.json</code></p><table>{''.join(rows)}</table>"
        f"<p>{html.escape(_MISSING)}</p>"
    )
