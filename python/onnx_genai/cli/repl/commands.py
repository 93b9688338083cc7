"""The table of slash commands: :data:`COMMANDS`, :func:`find`, :func:`complete`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_genai.cli.repl.command import Command
from onnx_genai.cli.repl.diagnostic_commands import DIAGNOSTIC_COMMANDS
from onnx_genai.cli.repl.input_commands import INPUT_COMMANDS
from onnx_genai.cli.repl.model_commands import MODEL_COMMANDS
from onnx_genai.cli.repl.session_commands import SESSION_COMMANDS
from onnx_genai.errors import InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.cli.repl.loop import Repl

__all__ = ["COMMANDS", "complete", "find"]

CATEGORIES = ("help", "session", "model", "diagnostics", "input")
MAX_PATHS = 200
WIDE = 34
"""A usage that is longer does not widen the column, and stands alone."""


def _help(repl: Repl, argument: str) -> None:
    # A pipe gets the whole help whatever is asked.
    if argument and repl.screen.is_live:
        command = find(argument if argument.startswith("/") else f"/{argument}")
        if command is None:
            raise InvalidArgumentError(f"there is no command {argument}; /help lists them")
        also = f" (also {', '.join(command.aliases)})" if command.aliases else ""
        repl.screen.table(f"{command.usage}{also}", [("category", command.category), ("does", command.summary)])
        return
    width = max(len(command.usage) for command in COMMANDS if len(command.usage) <= WIDE)
    for category in CATEGORIES:
        rows = [(command.usage, command.summary) for command in COMMANDS if command.category == category]
        repl.screen.table(category, rows, width=width)
    if repl.screen.is_live:
        repl.screen.table(
            "keys",
            [
                ("Enter, Alt+Enter", "send; new line"),
                ('"""', "begins and ends a text of several lines"),
                ("Tab, Up, Ctrl-R", "complete; earlier lines; search in them"),
                ("Ctrl-X Ctrl-E", "write in $EDITOR"),
                ("Ctrl-C, Ctrl-D", "stop the answer, twice leave; leave"),
                ("//text", "send /text as a message"),
            ],
            width=width,
        )


def _exit(repl: Repl, _argument: str) -> None:
    repl.leave()


COMMANDS: tuple[Command, ...] = (
    Command(
        name="/help",
        aliases=("/?",),
        arguments="[COMMAND]",
        summary="this list, or one command",
        category="help",
        run=_help,
        choices=lambda _: ((command.name[1:], command.summary) for command in COMMANDS),
    ),
    Command(name="/exit", aliases=("/quit", "/bye"), summary="leave; Ctrl-D does it, too", category="help", run=_exit),
    *SESSION_COMMANDS,
    *MODEL_COMMANDS,
    *DIAGNOSTIC_COMMANDS,
    *INPUT_COMMANDS,
)
"""In the order of ``/help`` within each category."""


def find(word: str) -> Command | None:
    """The command of a name or alias, with its slash."""
    word = word.lower()
    return next((command for command in COMMANDS if word == command.name or word in command.aliases), None)


def complete(repl: Repl, text: str) -> Iterator[tuple[str, str, int]]:
    """What may be typed at the end of a line: the text to insert, what it means, how many characters it replaces."""
    if not text.startswith("/") or "\n" in text:
        return
    name, blank, rest = text.partition(" ")
    if not blank:
        fitting = (each for each in COMMANDS if each.name.startswith(name.lower()))
        yield from ((each.name, each.summary, len(name)) for each in fitting)
        return
    command = find(name)
    if command is None:
        return
    word = rest.rpartition(" ")[2]
    first = " " not in rest.lstrip()
    for choice, meaning in command.choices(repl) if first else ():
        if choice.startswith(word):
            yield choice, meaning, len(word)
    if command.takes_path:
        # A path may hold blanks where it is all that follows.
        begun = rest.lstrip() if first or not any(rest.startswith(c) for c, _ in command.choices(repl)) else word
        yield from ((path, "", len(begun)) for path in _paths(begun))


def _paths(begun: str) -> Iterable[str]:
    """Paths that go on from what is typed; folders end in a slash."""
    folder, slash, prefix = begun.rpartition("/")
    here = Path(f"{folder}{slash}" or ".").expanduser()
    try:
        entries = sorted(here.iterdir())
    except OSError:
        return []
    shown = [entry for entry in entries if entry.name.startswith(prefix) and (prefix or entry.name[0] != ".")]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in shown[:MAX_PATHS]]
