"""``/v1/sessions``: conversations that the server remembers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onnx_genai.server.large_json import json_answer
from onnx_genai.server.schemas.text import RewindRequest, SessionRequest
from onnx_genai.server.sessions import ChatSession
from onnx_genai.server.state import ServerState

__all__ = ["SessionRoutes"]


class SessionRoutes:
    """The session routes of a server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """What the application mounts."""
        one = "/v1/sessions/{session_id}"
        return [
            Route("/v1/sessions", self.create, methods=["POST"]),
            Route("/v1/sessions", self.list, methods=["GET"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/fork", self.fork, methods=["POST"]),
            Route(f"{one}/rewind", self.rewind, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        """Makes a session, with the messages that it begins with."""
        body = await self._state.read(request, SessionRequest)
        entry = self._state.text_entry(body.model)
        messages = [message.for_template(index) for index, message in enumerate(body.messages or ())]
        name = self._state.models.served_name(body.model or entry.spec.name)
        session = self._state.sessions.create(request.state.owner, name, messages)
        return JSONResponse(session.as_object(), 201)

    async def list(self, request: Request) -> Response:
        """The sessions of the caller."""
        sessions = self._state.sessions.owned_by(request.state.owner)
        return JSONResponse({"object": "list", "data": [session.as_object() for session in sessions]})

    async def get(self, request: Request) -> Response:
        """One session with its messages."""
        session = self._session(request)
        return await json_answer({**session.as_object(), "messages": tuple(session.messages)})

    async def delete(self, request: Request) -> Response:
        """Forgets a session."""
        session = self._session(request)
        self._state.sessions.delete(session)
        return JSONResponse({"id": session.id, "object": "session.deleted", "deleted": True})

    async def fork(self, request: Request) -> Response:
        """Makes a second session with the same messages."""
        return JSONResponse(self._state.sessions.fork(self._session(request)).as_object(), 201)

    async def rewind(self, request: Request) -> Response:
        """Keeps the first messages of a session."""
        body = await self._state.read(request, RewindRequest)
        session = self._session(request)
        session.rewind(body.num_messages)
        return JSONResponse(session.as_object())

    def _session(self, request: Request) -> ChatSession:
        return self._state.sessions.get(request.path_params["session_id"], request.state.owner)
