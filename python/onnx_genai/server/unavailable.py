"""Routes of OpenAI's interface for which there is no pipeline yet: they say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onnx_genai.server.errors import ApiError

__all__ = ["UNAVAILABLE", "unavailable_routes"]

UNAVAILABLE = {
    "/v1/audio/transcriptions": "speech recognition",
    "/v1/audio/translations": "speech translation",
    "/v1/audio/speech": "speech output",
    "/v1/images/generations": "image generation",
    "/v1/images/edits": "image editing",
    "/v1/images/variations": "image variation",
    "/v1/moderations": "moderation",
}
"""Path -> what it would do."""


def unavailable_routes() -> list[Route]:
    """One route for each path; all answer 501."""
    return [Route(path, _refusal(what), methods=["POST"]) for path, what in UNAVAILABLE.items()]


def _refusal(what: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise ApiError(
            501,
            f"This server has no pipeline for {what}.",
            code="not_implemented",
            headers={"x-should-retry": "false"},
        )

    return refuse
