"""``onnx-genai run``: a chat with a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.models import MODEL, fetched_model
from onnx_genai.cli.options import SAMPLED, ModelOptions, model_options, sampling_options, take, take_sampling
from onnx_genai.cli.profile import ProfileOptions, Profiler, profile_options
from onnx_genai.cli.settings import ENVIRONMENT_RANK, source_rank
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.cli.repl.editor import Input
    from onnx_genai.cli.repl.loop import Repl
    from onnx_genai.cli.repl.settings import Settings
    from onnx_genai.cli.repl.terminal import Ending

__all__ = ["run"]

ONE_ANSWER = {"n": 1, "logprobs": None}
"""Sampling options that a chat does not have."""


@click.command()
@click.argument("model", type=MODEL, required=False, metavar="MODEL")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--raw", is_flag=True, help="Do not apply the chat template; each message stands alone.")
@click.option("--load", type=click.Path(path_type=Path), metavar="FILE", help="Go on with a conversation of /save.")
@click.option("--plain", is_flag=True, help="Show answers as they are, without Markdown and without redrawing.")
@click.option("--no-stats", is_flag=True, help="No numbers while and after an answer comes.")
@click.option("--private", is_flag=True, help="Keep no history of what is typed.")
@click.option("--image", multiple=True, type=click.Path(path_type=Path), metavar="PATH", help="For the first message.")
@click.option("--audio", multiple=True, type=click.Path(path_type=Path), metavar="PATH", help="For the first message.")
@sampling_options
@model_options
@profile_options
def run(model: str | None, **values: Any) -> int:
    """Chat with MODEL.

    On a terminal there is a line editor, and /help lists the commands. From a pipe each line is a message.
    """
    from onnx_genai.cli.repl.host import ModelHost, open_model
    from onnx_genai.cli.repl.screen import busy
    from onnx_genai.cli.repl.settings import Settings

    if model is None:
        raise click.UsageError(
            "MODEL is missing. `onnx-genai run smollm2` fetches a small model and talks to it; `onnx-genai list` shows "
            "the models on this machine"
        )
    sampling = take_sampling(click.get_current_context(), {**values, **ONE_ANSWER})
    loading = take(ModelOptions, values)
    profiler = Profiler(ProfileOptions.take(values))
    # Wrong usage is found before the model is fetched and loaded.
    sampling.params()
    if values["raw"] and values["system"] is not None:
        raise click.UsageError("--system needs the chat template; drop --raw or put the text into the message")
    path = fetched_model(model, variant=loading.variant, offline=loading.offline)
    with profiler.phase("model load"), busy(f"loading {model} …"):
        llm = console.interruptible(lambda: open_model(path, loading))
    host = ModelHost(model, path, loading, llm)
    try:
        settings = Settings(sampling=sampling, markdown=not values["plain"])
        code = _chat(host, settings, profiler, values)
    finally:
        profiler.close()
        host.close()
    if code:
        raise click.exceptions.Exit(code)
    return code


run.params[:] = [parameter for parameter in run.params if parameter.name not in ONE_ANSWER]


def _chat(host: Any, settings: Settings, profiler: Profiler, values: dict[str, Any]) -> int:
    from onnx_genai.cli.repl import terminal
    from onnx_genai.cli.repl.input_commands import refuse_attachment
    from onnx_genai.cli.repl.interrupts import Interrupts
    from onnx_genai.cli.repl.loop import Repl
    from onnx_genai.cli.repl.screen import Screen, TerminalScreen
    from onnx_genai.cli.repl.session_commands import load

    with terminal.left_sane() as ending, Interrupts() as interrupts:
        screen = TerminalScreen() if terminal.can_draw() else Screen()
        state = click.get_current_context().find_root().obj or {}
        repl = Repl(host, settings, screen, interrupts, profiler, is_debug=bool(state.get("debug")))
        repl.conversation.system = values["system"]
        repl.is_raw = values["raw"] or host.llm.template is None
        if values["no_stats"]:
            repl.shows_stats = False
        for kind in ("image", "audio"):
            if values[kind]:
                refuse_attachment(repl, kind)
        if values["load"] is not None:
            load(repl, values["load"])
            _put_back(repl, settings, values)
        _greet(repl)
        return repl.run(_source(repl, ending, is_private=values["private"]))


def _put_back(repl: Repl, given: Settings, values: dict[str, Any]) -> None:
    """Command line and environment are stronger than what a conversation's file has."""
    from onnx_genai.cli.repl.settings import SETTINGS

    context = click.get_current_context()
    strong = {name for name in values if source_rank(context, name) >= ENVIRONMENT_RANK}
    strong |= {"greedy"} if "no_greedy" in strong else set()
    strong |= {"markdown"} if "plain" in strong else set()
    merged, asked = repl.settings.as_dict(), given.as_dict()
    if strong & {"greedy", *SAMPLED}:
        # What the file has on the other side of greedy or sampled gives way.
        merged.pop("greedy", None)
        for name in set(SAMPLED) - strong:
            if asked.get("greedy") or merged.get(name) == 0:
                merged.pop(name, None)
    for name in SETTINGS.keys() & strong:
        merged.pop(name, None)
        if name in asked:
            merged[name] = asked[name]
    repl.settings = repl.settings.with_values(merged)
    if values["system"] is not None:
        repl.conversation.system = values["system"]
    if "raw" in strong:
        repl.is_raw = values["raw"] or repl.host.llm.template is None


def _source(repl: Repl, ending: Ending, *, is_private: bool) -> Input:
    from onnx_genai.cli.repl import terminal
    from onnx_genai.cli.repl.commands import complete
    from onnx_genai.cli.repl.editor import Editor, LineReader, history_path

    if not repl.screen.is_live:
        return LineReader(repl.interrupts)
    editor = Editor(
        complete=lambda text: complete(repl, text),
        toolbar=lambda: repl.context_line(terminal.size()[0]),
        history=None if is_private else history_path(),
        colours=terminal.has_colours(),
        interrupted=repl.interrupts.take,
    )
    ending.take = editor.leave
    return editor


def _greet(repl: Repl) -> None:
    host = repl.host
    limit, threads = host.llm.context_limit, host.llm.info().get("intra_op_threads")
    facts = [
        host.provider,
        f"{host.decoder} decoder",
        f"context {counted(limit, 'token')}" if limit else "no context limit known",
        *([counted(int(str(threads)), "thread")] if threads is not None else []),
    ]
    lines = [" · ".join(facts)]
    if repl.screen.is_live:
        lines.append("Type a message and press Enter. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    repl.screen.banner(f"onnx-genai · {host.label} ({host.accepts})", lines)
    repl.warn_about_model()
    turns = repl.conversation.num_turns
    if turns:
        repl.screen.note(f"{counted(turns, 'turn')} loaded; /show history shows {'it' if turns == 1 else 'them'}.")
