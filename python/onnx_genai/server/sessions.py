"""Conversations that the server remembers: a client sends only what is new. One event loop.

A session is its messages. Each turn renders them as a whole, and the KV of the common prefix is found in the model's
prefix cache, so that only new tokens are computed.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onnx_genai.server.errors import ApiError

__all__ = ["SESSION_HEADER", "ChatSession", "SessionStore"]

SESSION_HEADER = "x-session-id"
MAX_MESSAGES = 10_000


class ChatSession:
    """One conversation."""

    def __init__(self, owner: str, model: str, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        self.id = f"sess_{secrets.token_urlsafe(24)}"
        self.owner = owner
        self.model = model
        self.messages: list[Mapping[str, Any]] = list(messages)
        self.created = int(time.time())
        self.last_used = time.monotonic()
        self.is_busy = False

    def as_object(self) -> dict[str, Any]:
        """The session on the wire."""
        return {
            "id": self.id,
            "object": "session",
            "created": self.created,
            "model": self.model,
            "num_messages": len(self.messages),
            "busy": self.is_busy,
        }

    def rewind(self, num_messages: int) -> None:
        """Keeps the first messages and forgets the others.

        Raises:
            ApiError: More than there are, or a turn is running.
        """
        self._check_idle()
        if not 0 <= num_messages <= len(self.messages):
            raise ApiError(
                400,
                f"num_messages is {num_messages}; allowed: 0..{len(self.messages)}, the messages to keep",
                param="num_messages",
                code="invalid_value",
            )
        del self.messages[num_messages:]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Holds the session for one turn.

        Raises:
            ApiError: 409 another one is running.
        """
        self._check_idle()
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False
            self.last_used = time.monotonic()

    def append(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Adds the messages of a turn that ended well."""
        self.messages.extend(messages)

    def whole(self, new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """All messages of the next turn."""
        if len(self.messages) + len(new) > MAX_MESSAGES:
            raise ApiError(400, f"A session holds at most {MAX_MESSAGES} messages.", code="session_full")
        return [*self.messages, *new]

    def _check_idle(self) -> None:
        if self.is_busy:
            raise ApiError(
                409, "A turn of this session is running; wait for its end, or fork the session.", code="session_busy"
            )


class SessionStore:
    """The sessions of a server; whose time is over, or who are too many, are forgotten."""

    def __init__(self, *, limit: int, ttl: float) -> None:
        self._limit = limit
        self._ttl = ttl
        self._sessions: OrderedDict[str, ChatSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, owner: str, model: str, messages: Sequence[Mapping[str, Any]] = ()) -> ChatSession:
        """A new session; the one unused for longest makes room.

        Raises:
            ApiError: 429 all are busy.
        """
        self.sweep()
        while len(self._sessions) >= self._limit:
            idle = next((each for each in self._sessions.values() if not each.is_busy), None)
            if idle is None:
                raise ApiError(
                    429, "All sessions are busy; try again.", code="overloaded", headers={"Retry-After": "1"}
                )
            del self._sessions[idle.id]
        session = ChatSession(owner, model, messages)
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str, owner: str) -> ChatSession:
        """A session of this owner.

        Raises:
            ApiError: 404; also for a session of somebody else.
        """
        self.sweep()
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise ApiError(
                404,
                "There is no such session; make one with POST /v1/sessions.",
                param="session_id",
                code="session_not_found",
            )
        self._sessions.move_to_end(session_id)
        session.last_used = time.monotonic()
        return session

    def fork(self, session: ChatSession) -> ChatSession:
        """A second session with the same messages."""
        return self.create(session.owner, session.model, session.messages)

    def owned_by(self, owner: str) -> list[ChatSession]:
        """The sessions of an owner, unused for longest first."""
        self.sweep()
        return [each for each in self._sessions.values() if each.owner == owner]

    def delete(self, session: ChatSession) -> None:
        """Forgets a session; a turn that runs still ends."""
        self._sessions.pop(session.id, None)

    def sweep(self) -> None:
        """Forgets sessions whose time is over."""
        now = time.monotonic()
        for session in list(self._sessions.values()):
            if not session.is_busy and now - session.last_used > self._ttl:
                del self._sessions[session.id]
