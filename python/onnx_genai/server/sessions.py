"""Conversations that the server remembers: a client sends only what is new. One event loop.

A session is its messages. Each turn renders them as a whole, and the KV of the common prefix is found in the model's
prefix cache, so that only new tokens are computed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onnx_genai.server.errors import ApiError
from onnx_genai.server.keeping import OwnedStore, held_bytes

__all__ = ["SESSION_HEADER", "ChatSession", "SessionStore"]

SESSION_HEADER = "x-session-id"


class ChatSession:
    """One conversation."""

    def __init__(self, owner: str, model: str, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        self.id = f"sess_{secrets.token_urlsafe(24)}"
        self.owner = owner
        self.model = model
        self.messages: list[Mapping[str, Any]] = list(messages)
        self.created = int(time.time())
        self.is_busy = False
        self._sizes = [held_bytes(message) for message in messages]

    @property
    def size(self) -> int:
        """Memory of the messages, in bytes."""
        return sum(self._sizes)

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
        del self._sizes[num_messages:]

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

    def append(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Adds the messages of a turn that ended well."""
        self.messages.extend(messages)
        self._sizes.extend(held_bytes(message) for message in messages)

    def _check_idle(self) -> None:
        if self.is_busy:
            raise ApiError(
                409, "A turn of this session is running; wait for its end, or fork the session.", code="session_busy"
            )


class SessionStore:
    """The sessions of a server. Each owner has a number of them and memory for them."""

    def __init__(self, *, limit: int, max_bytes: int, ttl: float) -> None:
        """As :class:`OwnedStore`."""
        self._kept: OwnedStore[ChatSession] = OwnedStore(
            limit=limit,
            max_bytes=max_bytes,
            ttl=ttl,
            size_of=lambda session: session.size,
            is_busy=lambda session: session.is_busy,
        )

    def __len__(self) -> int:
        return len(self._kept)

    def create(self, owner: str, model: str, messages: Sequence[Mapping[str, Any]] = ()) -> ChatSession:
        """A new session; the one of this owner that is unused for longest makes room.

        Raises:
            ApiError: 400 the messages are too large, 429 all sessions of the owner are busy.
        """
        session = ChatSession(owner, model, messages)
        self._check_size(session.size)
        if not self._kept.put(owner, session.id, session):
            raise ApiError(
                429, "All your sessions are busy; try again.", code="overloaded", headers={"Retry-After": "1"}
            )
        return session

    def get(self, session_id: str, owner: str) -> ChatSession:
        """A session of this owner.

        Raises:
            ApiError: 404; also for a session of somebody else.
        """
        session = self._kept.get(owner, session_id)
        if session is None:
            raise ApiError(
                404,
                "There is no such session; make one with POST /v1/sessions.",
                param="session_id",
                code="session_not_found",
            )
        return session

    def whole(self, session: ChatSession, new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """All messages of the next turn.

        Raises:
            ApiError: 400 they are larger than what an owner may have.
        """
        self._check_size(session.size + held_bytes(new))
        return [*session.messages, *new]

    def append(self, session: ChatSession, messages: Sequence[Mapping[str, Any]]) -> None:
        """Adds the messages of a turn that ended well; other sessions of the owner make room."""
        session.append(messages)
        self._kept.make_room(session.owner, session.id)

    def fork(self, session: ChatSession) -> ChatSession:
        """A second session with the same messages."""
        return self.create(session.owner, session.model, session.messages)

    def owned_by(self, owner: str) -> list[ChatSession]:
        """The sessions of an owner, unused for longest first."""
        return self._kept.of(owner)

    def delete(self, session: ChatSession) -> None:
        """Forgets a session; a turn that runs still ends."""
        self._kept.delete(session.owner, session.id)

    def sweep(self) -> None:
        """Forgets sessions whose time is over."""
        self._kept.sweep()

    def _check_size(self, size: int) -> None:
        if size > self._kept.max_bytes:
            raise ApiError(
                400,
                f"The session would take {size} bytes; this server keeps at most {self._kept.max_bytes} for all "
                "sessions of a key. Rewind it, or begin a new one.",
                param="messages",
                code="session_full",
            )
