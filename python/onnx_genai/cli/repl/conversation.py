"""What was said so far, and its branches: :class:`Conversation`. Knows neither a model nor a terminal."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_genai.errors import InvalidArgumentError, NotFoundError
from onnx_genai.words import counted

__all__ = ["Conversation", "Message", "Totals"]

Message = dict[str, Any]
"""As chat templates take it: ``role``, ``content`` and what else belongs to the role."""

MAIN = "main"


@dataclass(slots=True)
class Totals:
    """Sums over the finished turns."""

    turns: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def add(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Counts one turn."""
        self.turns += 1
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += generated_tokens


@dataclass(slots=True)
class Conversation:
    """A system message, messages in turns, and other branches of the same conversation.

    A turn begins with a message of the user and goes on to the next one. Between the user's message and the answer a
    turn is open; what is not finished is taken back with :meth:`restore`, so a failed turn leaves no trace.

    Example:
        >>> talk = Conversation()
        >>> talk.ask("Hi")
        >>> talk.answer({"role": "assistant", "content": "Hello!"})
        >>> talk.num_turns
        1
    """

    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    """Without the system message."""
    branch: str = MAIN
    totals: Totals = field(default_factory=Totals)
    _others: dict[str, list[Message]] = field(default_factory=dict)
    """Branches that are not the current one."""

    @property
    def to_send(self) -> list[Message]:
        """All messages, the system message first."""
        head: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *self.messages]

    @property
    def num_turns(self) -> int:
        return len(self._starts())

    @property
    def counts(self) -> dict[str, int]:
        """Number of messages by role."""
        return dict(Counter(str(message["role"]) for message in self.to_send))

    @property
    def branches(self) -> dict[str, int]:
        """Number of turns by branch, in alphabetical order."""
        sizes = {name: len(_starts(messages)) for name, messages in self._others.items()}
        return dict(sorted({**sizes, self.branch: self.num_turns}.items()))

    @property
    def last_question(self) -> str | None:
        """Text of the user's last message."""
        starts = self._starts()
        return str(self.messages[starts[-1]]["content"]) if starts else None

    @property
    def questions(self) -> list[str]:
        """Texts of the user's messages, one for each turn."""
        return [str(self.messages[start]["content"]) for start in self._starts()]

    @property
    def open_calls(self) -> list[Mapping[str, Any]]:
        """Tool calls of the last answer that have no result yet."""
        last = max((place for place, each in enumerate(self.messages) if each["role"] == "assistant"), default=None)
        if last is None or any(message["role"] == "user" for message in self.messages[last:]):
            return []
        answered = {message.get("tool_call_id") for message in self.messages[last:] if message["role"] == "tool"}
        return [call for call in self.messages[last].get("tool_calls") or () if call["id"] not in answered]

    def ask(self, text: str) -> None:
        """Opens a turn."""
        self.messages.append({"role": "user", "content": text})

    def answer(self, message: Message) -> None:
        """Adds the assistant's message, which closes the turn."""
        self.messages.append(message)

    def tool_result(self, text: str) -> None:
        """Answers the first open tool call.

        Raises:
            InvalidArgumentError: There is none.
        """
        calls = self.open_calls
        if not calls:
            raise InvalidArgumentError("no tool call waits for a result; ask the model something that needs a tool")
        call = calls[0]
        result = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
        self.messages.append(result)

    def snapshot(self) -> list[Message]:
        """The messages as they are now, for :meth:`restore`."""
        return list(self.messages)

    def restore(self, messages: Sequence[Message]) -> None:
        """Takes the messages of a snapshot back."""
        self.messages = list(messages)

    def drop_answer(self) -> None:
        """Opens the last turn again: the user's message stays, what came after it goes.

        Raises:
            InvalidArgumentError: There is no turn.
        """
        self._check_turns(1)
        del self.messages[self._starts()[-1] + 1 :]

    def undo(self, turns: int = 1) -> None:
        """Forgets the last turns.

        Raises:
            InvalidArgumentError: There are not that many.
        """
        self._check_turns(turns)
        self.rewind(self.num_turns - turns)

    def rewind(self, turns: int) -> None:
        """Keeps the first turns and forgets the others.

        Raises:
            InvalidArgumentError: There are fewer.
        """
        if not 0 <= turns <= self.num_turns:
            raise InvalidArgumentError(f"there {_is(self.num_turns)}; give how many to keep, 0..{self.num_turns}")
        starts = [*self._starts(), len(self.messages)]
        del self.messages[starts[turns] :]

    def fork(self, name: str) -> None:
        """Goes on in a copy with a new name; the branch that was current stays as it is.

        Raises:
            InvalidArgumentError: The name is taken.
        """
        if name in self.branches:
            raise InvalidArgumentError(
                f"there is a branch {name} already; take another name, or /fork {name} goes to it"
            )
        self._others[self.branch] = copy.deepcopy(self.messages)
        self.branch = name

    def switch(self, name: str) -> None:
        """Goes to another branch.

        Raises:
            NotFoundError: There is none of that name.
        """
        if name == self.branch:
            return
        if name not in self._others:
            raise NotFoundError(f"there is no branch {name}; there are {', '.join(self.branches)}")
        self._others[self.branch] = self.messages
        self.messages = self._others.pop(name)
        self.branch = name

    def clear(self) -> None:
        """Forgets all messages and branches but the system message."""
        self.messages = []
        self._others = {}
        self.branch = MAIN

    def reset(self) -> None:
        """Forgets everything, the system message and the sums included."""
        self.clear()
        self.system = None
        self.totals = Totals()

    def as_dict(self) -> dict[str, Any]:
        """What :meth:`from_dict` takes."""
        return {
            "system": self.system,
            "branch": self.branch,
            "messages": self.messages,
            "branches": dict(sorted(self._others.items())),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Conversation:
        """The conversation that :meth:`as_dict` described; sums begin anew.

        Raises:
            InvalidArgumentError: It is no conversation; the text says where.
        """
        system, branch = value.get("system"), value.get("branch", MAIN)
        if system is not None and not isinstance(system, str):
            raise InvalidArgumentError(f"system is {system!r}; allowed: a text, or null")
        if not isinstance(branch, str) or not branch:
            raise InvalidArgumentError(f"branch is {branch!r}; allowed: a name")
        others = value.get("branches", {})
        if not isinstance(others, Mapping) or branch in others:
            raise InvalidArgumentError("branches must be an object of messages by name, without the current branch")
        return cls(
            system=system,
            branch=branch,
            messages=_checked(value.get("messages", []), "messages"),
            _others={str(name): _checked(each, f"branches.{name}") for name, each in others.items()},
        )

    def _starts(self) -> list[int]:
        return _starts(self.messages)

    def _check_turns(self, turns: int) -> None:
        if not self.num_turns:
            raise InvalidArgumentError("nothing was said yet; type a message first")
        if not 1 <= turns <= self.num_turns:
            raise InvalidArgumentError(f"there {_is(self.num_turns)}; give a number in 1..{self.num_turns}")


def _is(turns: int) -> str:
    return f"{'is' if turns == 1 else 'are'} {counted(turns, 'turn')}"


def _starts(messages: Sequence[Message]) -> list[int]:
    return [place for place, message in enumerate(messages) if message["role"] == "user"]


def _checked(messages: Any, name: str) -> list[Message]:
    if not isinstance(messages, list):
        raise InvalidArgumentError(f"{name} is no list of messages")
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "tool"):
            raise InvalidArgumentError(f"{name}[{number}] has the role {role!r}; allowed: user, assistant, tool")
        if not isinstance(message.get("content"), (str, type(None))):
            raise InvalidArgumentError(f"{name}[{number}] has a content that is no text")
        if message.get("content") is None and not (role == "assistant" and message.get("tool_calls")):
            raise InvalidArgumentError(f"{name}[{number}] has no content")
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not {"name", "arguments"} <= function.keys() or "id" not in call:
                raise InvalidArgumentError(f"{name}[{number}] has a tool call without id, name or arguments")
    return [{"content": None, **message} for message in messages]
