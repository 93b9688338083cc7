"""What a slash command is: :class:`Command`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_genai.cli.repl.loop import Repl

__all__ = ["Choices", "Command", "no_choices"]

Choices = Callable[["Repl"], Iterable[tuple[str, str]]]
"""Words that may follow a command, and what they mean."""


def no_choices(_repl: Repl) -> Iterable[tuple[str, str]]:
    """For commands after which anything may stand."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line of ``/help``, and what it does."""

    name: str
    """With the slash."""
    arguments: str = ""
    """As the usage shows them."""
    summary: str
    run: Callable[[Repl, str], None]
    """Obeys; the text is what follows the name, without blanks around it."""
    category: str = "session"
    aliases: tuple[str, ...] = ()
    choices: Choices = no_choices
    takes_path: bool = False
    """File names are completed behind it, and behind its choices."""

    @property
    def usage(self) -> str:
        return f"{self.name} {self.arguments}".strip()
