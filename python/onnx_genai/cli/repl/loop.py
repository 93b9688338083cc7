"""The session: reads, obeys commands, takes turns with the model: :class:`Repl`."""

from __future__ import annotations

import difflib
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnx_genai.cli import console
from onnx_genai.cli.profile import Profiler
from onnx_genai.cli.prompts import UNKNOWN_LIMIT_TOKENS
from onnx_genai.cli.repl.conversation import Conversation, Message
from onnx_genai.cli.repl.editor import Input, Quoted
from onnx_genai.cli.repl.host import ModelHost
from onnx_genai.cli.repl.interrupts import Interrupts
from onnx_genai.cli.repl.reply import Reply, Request
from onnx_genai.cli.repl.screen import ReplyView, Screen, status_line, waiting_line
from onnx_genai.cli.repl.settings import Settings
from onnx_genai.cli.stats import Stats, count_text
from onnx_genai.errors import AbortedError, ContextOverflowError, InvalidArgumentError
from onnx_genai.words import counted

__all__ = ["EXIT_DONE", "EXIT_INTERRUPTED", "Repl"]

EXIT_DONE = 0
EXIT_INTERRUPTED = 130
NEARLY_FULL = 0.9
"""Share of the context window from which on the user is told."""

ANY_OBJECT = {"type": "json_object"}
"""``response_format`` of `/json on`."""

_COMMAND = re.compile(r"/[^\s/]*(?=\s|$)")


class Repl:
    """One session: a model, a conversation, settings, and where they are read from and shown.

    Commands are functions of this object; see :mod:`onnx_genai.cli.repl.commands`. For the main thread.
    """

    def __init__(
        self,
        host: ModelHost,
        settings: Settings,
        screen: Screen,
        interrupts: Interrupts,
        profiler: Profiler,
        *,
        is_debug: bool = False,
    ) -> None:
        """Begins with an empty conversation; ``is_debug`` shows the Python traceback of errors."""
        self._is_debug = is_debug
        self.host = host
        self.settings = settings
        self.screen = screen
        self.interrupts = interrupts
        self.profiler = profiler
        self.conversation = Conversation()
        self.shows_stats = screen.is_live
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.response_format: Any = None
        self.json_name = "off"
        """What ``response_format`` is called."""
        self.is_raw = False
        self.draft = ""
        """Text that the next prompt begins with; it replaces the last turn when it is sent."""
        self._exit: int | None = None
        self._is_armed = False
        """The next Ctrl-C leaves."""
        self._was_blank = False
        self._used = 0
        """Tokens of the context after the last turn."""

    def run(self, source: Input) -> int:
        """Reads until the end; returns the exit code."""
        while self._exit is None:
            if self.interrupts.take():
                self._press()
                continue
            draft, self.draft = self.draft, ""
            try:
                text = source.read(draft)
            except EOFError:
                if not self.screen.is_live:
                    console.note("")
                return EXIT_DONE
            except KeyboardInterrupt:
                self.interrupts.take()
                self._press()
                continue
            except InvalidArgumentError as error:
                self.screen.error(error)
                continue
            self._is_armed = False
            self.take(text, replaces=bool(draft), literals=source.takes_literals)
            self.screen.space()
        return self._exit

    def take(self, text: str, *, replaces: bool = False, literals: bool = False) -> None:
        """One line of the user: a command, a message, or nothing.

        Args:
            text: The line, or lines.
            replaces: A message takes the place of the last turn.
            literals: ``//text`` is the message ``/text``.
        """
        blank, self._was_blank = self._was_blank, not text.strip()
        if not text.strip():
            self._take_blank(again=blank)
            return
        if literals and text.startswith("//"):
            text = text[1:]
        elif self._is_command(text):
            self._obey(text)
            return
        if replaces:
            self.say_instead(text)
        else:
            self.say(text)

    @staticmethod
    def _is_command(text: str) -> bool:
        """Whether it is one, or was meant as one: of several lines, only a name that is known."""
        from onnx_genai.cli.repl.commands import find  # commands import this module

        found = None if isinstance(text, Quoted) else _COMMAND.match(text)
        if found is None:
            return text.startswith("//") and not isinstance(text, Quoted)
        return "\n" not in text.strip() or find(found[0]) is not None

    def leave(self, code: int = EXIT_DONE) -> None:
        """Ends the session after this line."""
        self._exit = code

    def say(self, text: str) -> None:
        """One turn: a message of the user and its answer. A turn that fails leaves no trace."""
        before = self.conversation.snapshot()
        self.conversation.ask(text)
        self.answer(before)

    def say_instead(self, text: str) -> None:
        """A turn in the place of the last one, which comes back if this one fails."""
        before = self.conversation.snapshot()
        self.conversation.undo()
        self.conversation.ask(text)
        self.answer(before)

    def answer(self, before: Sequence[Message]) -> None:
        """Lets the model answer the last message.

        Args:
            before: The messages to go back to if there is no answer.
        """
        is_kept = False
        try:
            with self._telling(_turn_advice):
                is_kept = self._answer()
        finally:
            if not is_kept:
                self.conversation.restore(before)

    def forget(self) -> None:
        """After another model was loaded: nothing of the conversation fits it."""
        self.conversation.reset()
        self.draft = ""
        self.is_raw = self.host.llm.template is None
        self.warn_about_model()

    def warn_about_model(self) -> None:
        """What the user should know about the model before he types."""
        llm = self.host.llm
        if llm.template is None:
            self.screen.note(
                "This model has no chat template (a base model): it goes on with your text, and knows nothing of what "
                "was said before. Models with -instruct or -chat in their name hold conversations."
            )
        if not llm.context_limit and self.settings.sampling.max_new_tokens is None:
            console.warn(
                f"the package states no context limit, so answers end after {UNKNOWN_LIMIT_TOKENS} tokens; set "
                "--max-new-tokens or --max-context, or model.max_sequence_length in inference_metadata.yaml"
            )

    def context_line(self, width: int) -> str:
        """The line beneath the prompt: model, turns, what is switched on, and hints while there is room."""
        talk = self.conversation
        parts = [self.host.label, counted(talk.num_turns, "turn")]
        if self._used and talk.num_turns and self.host.llm.context_limit:
            parts.append(f"ctx {count_text(self._used)} / {count_text(self.host.llm.context_limit)}")
        if len(talk.branches) > 1:
            parts.append(f"branch {talk.branch}")
        parts += ["raw"] if self.is_raw else []
        parts += [counted(len(self.tools), "tool")] if self.tools else []
        parts += [f"json {self.json_name}"] if self.response_format is not None else []
        for hint in ("Alt+Enter new line", "Tab completes", "Ctrl-D leaves"):
            if len(" · ".join([*parts, hint])) < width:
                parts.append(hint)
        return " · ".join(parts)

    def _press(self) -> None:
        """Ctrl-C while nothing runs."""
        if self._is_armed or not self.screen.can_ask:
            self.leave(EXIT_INTERRUPTED)
            return
        self._is_armed = True
        self.screen.note("Press Ctrl-C again to leave, or go on typing.")

    def _take_blank(self, *, again: bool) -> None:
        # An Enter too much must not end a conversation that somebody looks at.
        if self.screen.is_live and not again:
            self.screen.note(
                "Nothing to send. Press Enter once more to leave, or type a message; /help lists commands."
            )
            return
        self.leave()

    def _obey(self, text: str) -> None:
        from onnx_genai.cli.repl.commands import COMMANDS, find  # commands import this module

        word, argument = (*re.split(r"\s+", text, maxsplit=1), "")[:2]
        command = find(word)
        if command is None:
            near = difflib.get_close_matches(word.lower(), [each.name for each in COMMANDS], n=2)
            hint = f"Did you mean {' or '.join(near)}?" if near else None
            self.screen.error(f"unknown command: {word} (try /help)", hint)
            return
        usage = f"Usage: {command.usage}"
        with self._telling(lambda error: usage if isinstance(error, InvalidArgumentError) else None):
            command.run(self, argument.strip())

    @contextmanager
    def _telling(self, advice: Callable[[Exception], str | None]) -> Iterator[None]:
        """Tells an error and goes on. ``advice`` is what to do about it; None takes the usual words."""
        try:
            yield
        except BrokenPipeError:
            raise
        # Whatever it is, it must not cost the conversation.
        except Exception as error:  # noqa: BLE001
            if self._is_debug:
                traceback.print_exc()
            self.screen.error(error, advice(error))

    def _answer(self) -> bool:
        llm = self.host.llm
        self.profiler.begin(llm)
        request = Request(
            messages=self.conversation.to_send,
            settings=self.settings,
            raw=self.is_raw,
            tools=self.tools,
            response_format=self.response_format,
        )
        reply = Reply(llm, request)
        try:
            is_whole = self._show(reply)
        finally:
            reply.close()
        for call in reply.tool_calls if is_whole else ():
            self.screen.tool_call(call)
        return self._settle(reply, is_whole=is_whole)

    def _show(self, reply: Reply) -> bool:
        """Shows the answer as it comes; False if Ctrl-C stopped it."""
        pieces = iter(reply)
        status = _status if self.shows_stats else _waiting
        # JSON and raw text are not Markdown, whatever they look like.
        markdown = self.settings.markdown and not self.is_raw and self.response_format is None
        with self.screen.reply(lambda: status(reply), markdown=markdown, reasoning=self.settings.reasoning) as view:
            while True:
                try:
                    with self.interrupts.raising():
                        piece = next(pieces, None)
                except KeyboardInterrupt:
                    self.interrupts.take()
                    return False
                if piece is None:
                    return True
                _add(view, piece.reasoning, piece.content)

    def _settle(self, reply: Reply, *, is_whole: bool) -> bool:
        """Numbers, notes, and whether the answer becomes history."""
        stats = reply.stats()
        is_aborted = reply.last is not None and reply.last.finish_reason == "abort"
        is_kept = is_whole and not is_aborted and not reply.is_cut_inside_reasoning
        if is_kept:
            self.conversation.answer(reply.message)
            self.conversation.totals.add(stats.prompt_tokens, stats.completion_tokens)
            self._used = stats.prompt_tokens + stats.completion_tokens
        self._report(reply, stats)
        if not is_whole:
            self._stopped()
        elif is_aborted:
            raise AbortedError("the model was stopped from outside before the answer was whole")
        elif not is_kept:
            self.screen.note(self._cut_note(stats))
        return is_kept

    def _stopped(self) -> None:
        """Ctrl-C stopped an answer."""
        if not self.screen.can_ask:
            self.leave(EXIT_INTERRUPTED)
            return
        self._is_armed = True
        self.screen.note("Stopped; this turn is not kept. Press Ctrl-C again to leave.")

    def _report(self, reply: Reply, stats: Stats) -> None:
        if stats.budget_cap is not None:
            asked, granted = stats.budget_cap
            self.screen.note(f"the memory budget allows {granted} of the {asked} new tokens that were asked for")
        with self._telling(lambda _: None):  # the answer itself is sound
            self.profiler.end(reply.times)
        if self.shows_stats and not self.profiler.shows_report and stats.completion_tokens:
            self.screen.stats(stats)
        limit, used = stats.context_limit, stats.prompt_tokens + stats.completion_tokens
        if limit and not self.is_raw and used >= NEARLY_FULL * limit:
            self.screen.note(
                f"The context is nearly full ({count_text(used)} of {count_text(limit)} tokens): /rewind N goes back "
                "to an earlier turn, /clear begins anew."
            )
        if self.response_format == ANY_OBJECT and reply.content.strip() == "{}":
            self.screen.note(
                "The empty object is JSON, too. Say in your message which keys you want, or demand them with a schema: "
                "/json FILE."
            )
        for call in self.conversation.open_calls[:1]:
            self.screen.note(f"{call['function']['name']} waits for its result: /tools result TEXT")

    def _cut_note(self, stats: Stats) -> str:
        asked = self.settings.sampling.max_new_tokens
        more = f"/set max_new_tokens {2 * asked}" if asked is not None else "/reset, which makes room for it"
        return (
            f"The answer ended inside its reasoning (finish {stats.finish}), so there is no answer and the turn is not "
            f"kept. Try {more}."
        )


def _add(view: ReplyView, reasoning: str, content: str) -> None:
    view.add(reasoning, "reasoning") if reasoning else view.add(content, "content")


def _status(reply: Reply) -> str:
    return status_line(reply.stats(), time.perf_counter() - reply.started)


def _turn_advice(error: Exception) -> str | None:
    if isinstance(error, ContextOverflowError):
        return (
            "Only this turn was dropped. /reset or /clear begins anew, /rewind N goes back, --max-context or another "
            "/model has a larger window."
        )
    if isinstance(error, InvalidArgumentError):
        return "The turn was dropped. /show history has what was sent, /set and /show settings what is set."
    return None


def _waiting(reply: Reply) -> str:
    return "" if reply.times.token_times else waiting_line(time.perf_counter() - reply.started)


def user_path(text: str) -> Path:
    """A path as the user writes it: with ``~``, and in quotes or not."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return Path(text).expanduser()
