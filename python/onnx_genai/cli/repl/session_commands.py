"""Slash commands about the conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_genai.cli import console
from onnx_genai.cli.repl.command import Command
from onnx_genai.cli.repl.files import SavedConversation, load_conversation, save_conversation
from onnx_genai.cli.repl.settings import SETTINGS
from onnx_genai.errors import GenAIError, InvalidArgumentError, UnsupportedError
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.cli.repl.loop import Repl

__all__ = ["SESSION_COMMANDS"]

SHORT = 60
"""Characters of a message in a list of turns."""


def _system(repl: Repl, text: str) -> None:
    repl.conversation.system = text or None
    repl.screen.say("system message set" if text else "system message cleared")


def _set(repl: Repl, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        repl.screen.table(
            "settings (/set NAME VALUE; default takes one back)",
            [(f"{name} = {_shown(repl, name)}", setting.help) for name, setting in SETTINGS.items()],
        )
        return
    if not value.strip():
        raise InvalidArgumentError(f"{name} has no value; give one, or the word default")
    repl.settings = repl.settings.with_value(name, value.strip())
    name = name.lower().replace("-", "_")
    repl.screen.say(f"{name} = {_shown(repl, name)}")


def _shown(repl: Repl, name: str) -> str:
    value = repl.settings.value(name)
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


def _setting_names(_repl: Repl) -> Iterable[tuple[str, str]]:
    return ((name, setting.help) for name, setting in SETTINGS.items())


def _raw(repl: Repl, _argument: str) -> None:
    if repl.host.llm.template is None:
        raise UnsupportedError("this model has no chat template, so raw mode is always on")
    repl.is_raw = not repl.is_raw
    repl.screen.say("raw mode enabled" if repl.is_raw else "raw mode disabled")


def _reset(repl: Repl, _argument: str) -> None:
    repl.conversation.reset()
    repl.draft = ""
    repl.screen.say("history and pending attachments cleared")


def _clear(repl: Repl, _argument: str) -> None:
    repl.conversation.clear()
    repl.screen.clear()
    repl.screen.say("history cleared; the system message and the settings stay")


def _save(repl: Repl, argument: str) -> None:
    text, with_kv = re.subn(r"(^|\s)--kv(?=\s|$)", " ", argument)
    path = _file(text, "/save FILE")
    if path.suffix == "":
        path = path.with_suffix(".json")
    kv = path.with_name(f"{path.name if path.suffix == '.kv' else path.stem}.kv") if with_kv else None
    saved = SavedConversation(
        model=repl.host.name,
        conversation=repl.conversation,
        settings=repl.settings.as_dict(),
        raw=repl.is_raw,
        kv=kv,
    )
    if kv is not None:
        with repl.host.llm.session() as session:
            session.append(repl.host.llm.encode_chat(repl.conversation.to_send))
            session.save(kv)
    save_conversation(path, saved)
    repl.screen.say(f"saved {path}" + (f" and {kv}" if kv is not None else ""))


def _load(repl: Repl, argument: str) -> None:
    load(repl, _file(argument, "/load FILE"))
    talk = repl.conversation
    branch = f", branch {talk.branch}" if len(talk.branches) > 1 else ""
    repl.screen.say(f"loaded {counted(talk.num_turns, 'turn')}{branch}")


def load(repl: Repl, path: Path) -> None:
    """Takes conversation and settings of a file in place of the present ones.

    Raises:
        NotFoundError, PackageError, InvalidArgumentError: It cannot be used; nothing was changed.
    """
    saved = load_conversation(path)
    settings = repl.settings.with_values(saved.settings)
    if saved.kv is not None and saved.kv.exists():
        try:
            repl.host.llm.load_session(saved.kv, allow_recompute=True).close()
        except GenAIError as error:
            console.warn(f"the computed context in {saved.kv} is not used, so the text is computed again: {error}")
    repl.conversation, repl.settings = saved.conversation, settings
    repl.is_raw = saved.raw or repl.host.llm.template is None
    repl.draft = ""
    if saved.model != repl.host.name:
        repl.screen.note(f"It was held with {saved.model}; {repl.host.label} goes on with it.")


def _file(argument: str, usage: str) -> Path:
    from onnx_genai.cli.repl.loop import user_path

    if not argument.strip():
        raise InvalidArgumentError(f"a file name is missing: {usage}")
    path = user_path(argument)
    if path.is_dir():
        raise InvalidArgumentError(f"{path} is a folder; name a file")
    return path


def _regen(repl: Repl, _argument: str) -> None:
    before = repl.conversation.snapshot()
    repl.conversation.drop_answer()
    if repl.settings.sampling.is_greedy and repl.screen.is_live:
        repl.screen.note("Decoding is greedy, so the same comes again; /set temperature 0.8 makes answers vary.")
    repl.answer(before)


def _undo(repl: Repl, argument: str) -> None:
    repl.conversation.undo(_number(argument) if argument else 1)
    _tell_turns(repl)


def _edit(repl: Repl, argument: str) -> None:
    question = repl.conversation.last_question
    if question is None:
        raise InvalidArgumentError("nothing was said yet; type a message first")
    if argument:
        repl.say_instead(argument)
    elif repl.screen.is_live:
        repl.draft = question
    else:
        raise InvalidArgumentError("the new text is missing: /edit TEXT")


def _fork(repl: Repl, name: str) -> None:
    talk = repl.conversation
    if not name:
        rows = [
            (f"{'*' if name == talk.branch else ' '} {name}", counted(turns, "turn"))
            for name, turns in talk.branches.items()
        ]
        repl.screen.table("branches (/fork NAME makes one or goes to it)", rows)
        return
    if name in talk.branches:
        talk.switch(name)
    else:
        talk.fork(name)
    repl.screen.say(f"branch {talk.branch}, {counted(talk.num_turns, 'turn')}")


def _branch_names(repl: Repl) -> Iterable[tuple[str, str]]:
    return ((name, counted(turns, "turn")) for name, turns in repl.conversation.branches.items())


def _rewind(repl: Repl, argument: str) -> None:
    if not argument:
        rows = [(str(number), _short(text)) for number, text in enumerate(repl.conversation.questions, start=1)]
        repl.screen.table("turns (/rewind N keeps the first N)", rows)
        return
    repl.conversation.rewind(_number(argument))
    _tell_turns(repl)


def _tell_turns(repl: Repl) -> None:
    repl.screen.say(f"{counted(repl.conversation.num_turns, 'turn')} left")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{text!r} is no number of turns") from error


SESSION_COMMANDS = (
    Command(name="/system", arguments="[TEXT]", summary="set the system message; without text: none", run=_system),
    Command(
        name="/set",
        arguments="[NAME VALUE]",
        summary="how answers are made: temperature, seed, stop, ...; without arguments: list",
        run=_set,
        choices=_setting_names,
    ),
    Command(name="/raw", summary="switch the chat template off or on", run=_raw),
    Command(name="/reset", summary="forget everything: history, system message, attachments, counters", run=_reset),
    Command(name="/clear", summary="empty screen and history; system message and settings stay", run=_clear),
    Command(name="/regen", summary="answer the last message again", run=_regen),
    Command(name="/undo", arguments="[N]", summary="forget the last turn, or the last N", run=_undo),
    Command(name="/edit", arguments="[TEXT]", summary="change the last message and send it again", run=_edit),
    Command(
        name="/fork",
        arguments="[NAME]",
        summary="go on in a copy, or go to that branch; without a name: list",
        run=_fork,
        choices=_branch_names,
    ),
    Command(name="/rewind", arguments="[N]", summary="keep the first N turns; without a number: list", run=_rewind),
    Command(
        name="/save",
        arguments="FILE [--kv]",
        summary="write the conversation as JSON; --kv: with its computed context",
        run=_save,
        takes_path=True,
    ),
    Command(name="/load", arguments="FILE", summary="go on with a saved conversation", run=_load, takes_path=True),
)
