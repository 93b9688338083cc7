"""Slash commands about the model and what runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from onnx_genai.cli.options import BACKENDS
from onnx_genai.cli.repl.command import Command
from onnx_genai.errors import GenAIError, InvalidArgumentError
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.cli.repl.loop import Repl

__all__ = ["MODEL_COMMANDS"]


def _session(repl: Repl, _argument: str) -> None:
    repl.screen.table(f"session ({repl.host.accepts})", session_rows(repl))


def session_rows(repl: Repl) -> list[tuple[str, str]]:
    """Facts and counts; no text of any message."""
    host, talk = repl.host, repl.conversation
    rows = [
        ("model", f"{host.label} ({host.path})"),
        ("execution provider", host.provider),
        ("decode backend", f"{host.backend}, {host.decoder} decoder"),
    ]
    if host.options.backend not in ("auto", host.backend):
        rows.append(("requested backend", host.options.backend))
    if host.options.ep != host.provider:
        rows.append(("requested provider", host.options.ep))
    limit = host.llm.context_limit
    rows += [
        ("context", f"{counted(limit, 'token')} (from {host.llm.context_source})" if limit else "no limit known"),
        ("sampling", repl.settings.describe()),
        ("messages", ", ".join(f"{count} {role}" for role, count in talk.counts.items()) or "none"),
        ("completed turns", str(talk.totals.turns)),
        ("tokens", f"{talk.totals.prompt_tokens} prompt, {talk.totals.generated_tokens} generated"),
    ]
    if len(talk.branches) > 1:
        rows.append(("branches", ", ".join(f"{name} ({turns})" for name, turns in talk.branches.items())))
    return rows


def _show_system(repl: Repl) -> None:
    repl.screen.say(repl.conversation.system or "no system message; /system TEXT sets one")


def _show_template(repl: Repl) -> None:
    template = repl.host.llm.package.chat_template
    named = "\n".join(f"{name}:\n{text}" for name, text in template.texts.items())
    repl.screen.say(template.default or named or "no chat template")


def _show_history(repl: Repl) -> None:
    messages = repl.conversation.to_send
    if not messages:
        repl.screen.say("nothing was said yet")
    for message in messages:
        calls = [
            f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()
        ]
        repl.screen.say(f"{message['role']}: {message['content'] or ''}{' '.join(calls)}")


def _show_settings(repl: Repl) -> None:
    from onnx_genai.cli.repl.commands import find

    command = find("/set")
    if command is not None:
        command.run(repl, "")


def _show_model(repl: Repl) -> None:
    rows = [(name, str(value)) for name, value in repl.host.llm.info().items() if value not in ("", None)]
    repl.screen.table(f"{repl.host.label} ({repl.host.accepts})", [("folder", str(repl.host.path)), *rows])


TOPICS: dict[str, tuple[str, Callable[[Repl], None]]] = {
    "session": ("model, counts, sampling", lambda repl: _session(repl, "")),
    "model": ("facts of the loaded model", _show_model),
    "settings": ("what /set knows", _show_settings),
    "system": ("the system message", _show_system),
    "template": ("source of the chat template", _show_template),
    "history": ("all messages", _show_history),
}


def _show(repl: Repl, topic: str) -> None:
    if (topic or "session") not in TOPICS:
        raise InvalidArgumentError(f"there is nothing to show called {topic!r}; choose one of {', '.join(TOPICS)}")
    TOPICS[topic or "session"][1](repl)


def _topics(_repl: Repl) -> Iterable[tuple[str, str]]:
    return ((name, meaning) for name, (meaning, _) in TOPICS.items())


def _model(repl: Repl, name: str) -> None:
    from onnx_genai.cli.repl.loop import user_path

    if not name:
        _session(repl, "")
        return
    path = user_path(name)
    with repl.screen.busy(f"loading {name} …"):
        repl.host.use_model(str(path) if path.exists() else name, repl.interrupts)
    repl.forget()
    repl.screen.say(f"model {repl.host.path} ({repl.host.accepts}); history cleared")


def _model_names(_repl: Repl) -> Iterable[tuple[str, str]]:
    from onnx_genai.package import hub
    from onnx_genai.package.aliases import ALIASES

    try:
        here = {model.name for model in hub.list_local()}
    except (GenAIError, OSError):
        here = set()
    return ((name, "on this machine" if name in here else "is fetched first") for name in sorted({*here, *ALIASES}))


def _ep(repl: Repl, name: str) -> None:
    if not name:
        repl.screen.say(f"execution provider {repl.host.provider}; choose one of {', '.join(repl.host.providers())}")
        return
    with repl.screen.busy(f"loading {repl.host.label} on {name} …"):
        repl.host.use_provider(name, repl.interrupts)
    repl.forget()
    repl.screen.say(f"execution provider {repl.host.provider}; history cleared")


def _providers(repl: Repl) -> Iterable[tuple[str, str]]:
    return ((name, "") for name in repl.host.providers())


def _backend(repl: Repl, name: str) -> None:
    if not name:
        repl.screen.say(f"backend {repl.host.backend}; choose one of {', '.join(BACKENDS)}")
        return
    with repl.screen.busy(f"loading {repl.host.label} …"):
        repl.host.use_backend(name, repl.interrupts)
    repl.forget()
    repl.screen.say(f"backend {repl.host.backend}; history cleared")


def _backends(_repl: Repl) -> Iterable[tuple[str, str]]:
    return ((name, "") for name in BACKENDS)


MODEL_COMMANDS = (
    Command(
        name="/model",
        arguments="[MODEL]",
        summary="load another model (folder, alias or hub id); history is cleared; without: summary",
        category="model",
        run=_model,
        choices=_model_names,
        takes_path=True,
    ),
    Command(
        name="/ep",
        arguments="[NAME]",
        summary="load anew on another execution provider; auto takes the default; without: list",
        category="model",
        run=_ep,
        choices=_providers,
    ),
    Command(
        name="/backend",
        arguments="[auto|ort|native]",
        summary="load anew with another backend",
        category="model",
        run=_backend,
        choices=_backends,
    ),
    Command(
        name="/show",
        arguments="[TOPIC]",
        summary=f"show {', '.join(TOPICS)}",
        category="model",
        run=_show,
        choices=_topics,
    ),
    Command(name="/session", summary="model, sampling and counts, without any message", category="model", run=_session),
)
