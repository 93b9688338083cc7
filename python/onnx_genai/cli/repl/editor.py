"""Where lines come from: :class:`Editor` on a terminal, :class:`LineReader` elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onnx_genai.cli import console
from onnx_genai.cli.repl.interrupts import Interrupts
from onnx_genai.errors import InvalidArgumentError

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["PROMPT", "Editor", "Input", "LineReader", "Quoted", "history_path"]

PROMPT = ">>> "
MORE = "... "
QUOTES = '"""'
MAX_HISTORY = 1000

Complete = Callable[[str], Iterable[tuple[str, str, int]]]
"""For the text before the cursor: texts to insert, what they mean, and how many characters they replace."""


class Input(Protocol):
    """Gives what the user says, one message or command at a time."""

    takes_literals: bool
    """``//text`` means the text ``/text``."""

    def read(self, default: str = "") -> str:
        """The next message; ``default`` is there to be changed.

        Raises:
            InvalidArgumentError: A line cannot be used; the next one may.
            EOFError: There is no more.
            KeyboardInterrupt: Ctrl-C was pressed.
        """


def history_path() -> Path:
    """Where history is kept: ``ONNX_GENAI_REPL_HISTORY``, or the platform's folder for the state of programs."""
    chosen = os.environ.get("ONNX_GENAI_REPL_HISTORY")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "onnx-genai" / "history"


class Quoted(str):
    """What stood between triple quotes: a message, whatever it begins with."""

    __slots__ = ()


def unquoted(text: str) -> str:
    """The text inside triple quotes, as :class:`Quoted`, or the text."""
    stripped = text.strip()
    if stripped.startswith(QUOTES) and stripped.endswith(QUOTES) and len(stripped) >= 2 * len(QUOTES):
        return Quoted(stripped[len(QUOTES) : -len(QUOTES)].strip("\n"))
    return text


def is_open(text: str) -> bool:
    """Triple quotes were opened and not closed."""
    stripped = text.strip()
    return stripped.startswith(QUOTES) and not (stripped.endswith(QUOTES) and len(stripped) >= 2 * len(QUOTES))


class LineReader:
    """Reads lines of stdin after a prompt on stdout; for pipes."""

    takes_literals = False

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def read(self, default: str = "") -> str:
        """The next line, or what stands between triple quotes."""
        console.write(PROMPT)
        text = self._line()
        while is_open(text):
            try:
                text += "\n" + self._line()
            except EOFError:
                text += QUOTES
        return unquoted(text)

    def _line(self) -> str:
        with self._interrupts.raising():
            line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        try:
            return line.decode("utf-8").lstrip("\ufeff").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"a line of stdin is not UTF-8 (byte {error.start}); convert it, for example with: iconv -t UTF-8"
            ) from error


class _LeftError(Exception):
    """The prompt was left because of a signal."""


class Editor:
    """A line editor: history, completion, lines of more than one row, paste that sends nothing by itself."""

    takes_literals = True

    def __init__(
        self,
        *,
        complete: Complete,
        toolbar: Callable[[], str],
        history: Path | None,
        colours: bool,
        interrupted: Callable[[], bool],
    ) -> None:
        """Args:
        complete: What may stand at the cursor.
        toolbar: The line beneath.
        history: File to keep lines in; None keeps none.
        colours: Whether to use any.
        interrupted: Whether Ctrl-C was pressed since this was asked: while the editor starts it is a signal yet.
        """
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import get_app
        from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.styles import Style

        from onnx_genai.cli.repl.history import PrivateHistory, forgetful_history

        is_command = Condition(lambda: get_app().current_buffer.text.startswith("/"))
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            history=forgetful_history() if history is None else PrivateHistory(history, limit=MAX_HISTORY),
            completer=_completer(complete),
            complete_while_typing=is_command,
            reserve_space_for_menu=6,
            auto_suggest=AutoSuggestFromHistory(),
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            key_bindings=_keys(complete),
            prompt_continuation=lambda _width, _row, _soft: FormattedText([("class:prompt", MORE)]),
            bottom_toolbar=lambda: FormattedText([("class:hint", toolbar())]),
            placeholder=FormattedText([("class:hint", "Ask anything; /help lists the commands")]),
            color_depth=None if colours else ColorDepth.DEPTH_1_BIT,
            include_default_pygments_style=False,
            style=Style.from_dict(
                {
                    "prompt": "bold",
                    "hint": "ansibrightblack",
                    "auto-suggestion": "ansibrightblack",
                    "bottom-toolbar": "noreverse",
                    "completion-menu": "bg:default",
                    "completion-menu.completion": "fg:ansicyan bg:default",
                    "completion-menu.completion.current": "reverse",
                    "completion-menu.meta.completion": "fg:ansibrightblack bg:default",
                    "completion-menu.meta.completion.current": "bg:default bold",
                    "scrollbar.background": "bg:default",
                    "scrollbar.button": "bg:ansibrightblack",
                }
            ),
        )

        app = self._session.app
        self._is_reading = False
        self._exit: int | None = None

        def look(_: object = None) -> None:
            if app.is_done or not app.is_running:
                return
            if self._exit is not None:
                app.exit(exception=_LeftError)
            elif interrupted():
                app.exit(exception=KeyboardInterrupt)

        self._look = look
        app.after_render += look

    def read(self, default: str = "") -> str:
        """The next message."""
        from prompt_toolkit.formatted_text import FormattedText

        self._is_reading = True
        text = ""
        try:
            text = self._session.prompt(FormattedText([("class:prompt", PROMPT)]), default=default)
        except _LeftError:
            pass  # _exit says how
        finally:
            self._is_reading = False
        if self._exit is not None:
            raise SystemExit(self._exit)
        return unquoted(text)

    def leave(self, code: int) -> bool:
        """Ends the process with this exit code out of :meth:`read`; False if nothing is read. For signal handlers."""
        if not self._is_reading:
            return False
        self._exit = code
        loop = self._session.app.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._look)
        return True


def _keys(complete: Complete) -> KeyBindings:
    """Enter sends, unless triple quotes are open; Alt+Enter is a line end; Tab completes at once."""
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def choose(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("tab")
    def complete_more(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.complete_index is not None:
            buffer.complete_next()
            return
        found = list(complete(buffer.document.text_before_cursor))
        common = _common([text for text, _, _ in found])
        if found and len(common) > found[0][2]:
            buffer.delete_before_cursor(found[0][2])
            buffer.insert_text(common)
        elif buffer.complete_state is not None:
            buffer.complete_next()
        else:
            buffer.start_completion()

    return keys


def _common(texts: list[str]) -> str:
    """What all texts begin with."""
    shortest, longest = min(texts, default=""), max(texts, default="")
    size = next((place for place, pair in enumerate(zip(shortest, longest, strict=False)) if pair[0] != pair[1]), None)
    return shortest if size is None else shortest[:size]


def _completer(complete: Complete) -> Completer:
    from prompt_toolkit.completion import Completer as AnyCompleter
    from prompt_toolkit.completion import Completion

    class Commands(AnyCompleter):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            for text, meaning, replaced in complete(document.text_before_cursor):
                yield Completion(text, start_position=-replaced, display_meta=meaning)

    return Commands()
