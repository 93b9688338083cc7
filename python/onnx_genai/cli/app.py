"""The command group, and what happens around every command: streams, settings, errors, exit codes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import shell_complete

from onnx_genai.cli import console
from onnx_genai.cli.absent import ABSENT_COMMANDS
from onnx_genai.cli.bench import bench
from onnx_genai.cli.completion import COMPLETE_VARIABLE, completion
from onnx_genai.cli.doctor import doctor
from onnx_genai.cli.embed import embed
from onnx_genai.cli.failures import explain
from onnx_genai.cli.generate import generate
from onnx_genai.cli.import_ import import_
from onnx_genai.cli.list import list_
from onnx_genai.cli.manual import add_examples, manual_page
from onnx_genai.cli.profile import PROFILE_NAMES
from onnx_genai.cli.pull import pull
from onnx_genai.cli.serve import serve
from onnx_genai.cli.settings import CONFIG_VARIABLE, Config, load_config, name_variables
from onnx_genai.cli.show import show
from onnx_genai.cli.version import package_version, version
from onnx_genai.errors import UnsupportedError

__all__ = ["COMMANDS", "main"]

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@click.command("help")
@click.argument("names", metavar="[COMMAND]", nargs=-1)
@click.pass_context
def help_(context: click.Context, names: tuple[str, ...]) -> None:
    """Print the manual page of a command: what it does, its options and variables, and examples."""
    root = context.find_root()
    if not names:
        console.write(root.get_help() + "\n")
        return
    command, rest = group.find_command(root, list(names))
    if command is None or rest:
        raise click.UsageError(f"no such command: {' '.join(names)}; onnx-genai help lists them", context)
    console.write(manual_page(command, root))


def _optional(module: str, name: str) -> dict[str, click.Command]:
    """A command whose module need not be there."""
    if importlib.util.find_spec(module) is None:
        return {}
    command: click.Command = getattr(importlib.import_module(module), name)
    return {command.name or name: command}


COMMANDS: dict[str, click.Command] = {
    **_optional("onnx_genai.cli.run", "run"),
    "generate": generate,
    "embed": embed,
    "serve": serve,
    "show": show,
    "list": list_,
    "pull": pull,
    "import": import_,
    "bench": bench,
    "doctor": doctor,
    "completion": completion,
    "version": version,
    "help": help_,
}
ALIASES = {"ls": "list"}
SUBCOMMANDS = {"bench serve": ("onnx_genai.cli.bench_serve", "bench_serve")}
"""Second words that are commands of their own; imported when they are used."""

PREFIX = "ONNX_GENAI"

add_examples(COMMANDS)
name_variables(COMMANDS, PREFIX)


def _subcommand(name: str) -> click.Command | None:
    module, attribute = SUBCOMMANDS.get(name, ("", ""))
    if not module or importlib.util.find_spec(module) is None:
        return None
    command: click.Command = getattr(importlib.import_module(module), attribute)
    command.name = name
    add_examples({name: command})
    name_variables({name: command}, PREFIX)
    return command


def _all_commands() -> dict[str, click.Command]:
    found = {name: _subcommand(name) for name in SUBCOMMANDS}
    return {**COMMANDS, **{name: command for name, command in found.items() if command is not None}}


class _Group(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        command, rest = self.find_command(ctx, args)
        if command is not None:
            return command.name, command, [*_given_before(ctx, command), *rest]
        if args and args[0] in ABSENT_COMMANDS:
            raise UnsupportedError(ABSENT_COMMANDS[args[0]])
        return super().resolve_command(ctx, args)

    def find_command(self, context: click.Context, words: list[str]) -> tuple[click.Command | None, list[str]]:
        """The command that the words begin with, and the other words."""
        command = _subcommand(" ".join(words[:2]))
        if command is not None:
            return command, words[2:]
        return (self.get_command(context, words[0]), words[1:]) if words else (None, words)


def _given_before(context: click.Context, command: click.Command) -> list[str]:
    """Options for profiling that stand in front of the command, as if they stood behind it."""
    given: list[str] = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in PROFILE_NAMES and value:
            given += [option.opts[0]] if value is True else [option.opts[0], value]
    if given and not any(option.name in PROFILE_NAMES for option in command.params):
        raise click.UsageError(
            f"{given[0]} has no meaning for {command.name}; generate, run, bench and serve take it", context
        )
    return given


def _before(*names: str, **attributes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    # Variables and config file speak to the command itself.
    return click.option(*names, hidden=True, allow_from_autoenv=False, **attributes)


@click.group(
    cls=_Group,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX},
)
@click.version_option(package_version(), prog_name="onnx-genai")
@click.option(
    "--config", metavar="FILE", envvar=CONFIG_VARIABLE, help="Config file; default: the user's. An empty name is none."
)
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@_before("--profile", is_flag=True)
@_before("--profile-json")
@_before("--profile-trace")
@_before("--profile-verbosity")
@click.pass_context
def group(context: click.Context, /, config: str | None, debug: bool, **_profile: object) -> None:
    """Run generative ONNX models.

    MODEL is a folder, a file in one, an alias such as smollm2, a name that `list` prints, or a Hugging Face id
    (owner/name). The options for profiling of generate, run, bench and serve may also stand before the command.
    """
    context.obj["debug"] = debug
    if config is None and os.environ.get(CONFIG_VARIABLE) == "":
        config = ""
    loaded = load_config(config, _all_commands)
    context.obj["config"] = loaded
    context.default_map = {name: dict(values) for name, values in loaded.values.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """:func:`onnx_genai.cli.main`, when everything is imported.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Returns:
        0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    console.prepare_streams()
    _print_warnings()
    state: dict[str, Any] = {"debug": False, "config": Config()}
    instruction = os.environ.get(COMPLETE_VARIABLE)
    try:
        if instruction:
            return shell_complete(group, {"obj": state}, "onnx-genai", COMPLETE_VARIABLE, instruction)
        code = _run(list(sys.argv[1:] if arguments is None else arguments), state)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has what it wanted (`| head`).
        console.drop_stdout()
        return EXIT_OK
    if arguments is None:
        _leave_busy_threads(code)
    return code


def _leave_busy_threads(code: int) -> None:
    """Ends the process at once if threads still work for requests that have ended: native work cannot be stopped."""
    background = sys.modules.get("onnx_genai.pipelines.background")
    if background is not None and background.is_busy():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # it is closed, or nobody reads
                stream.flush()
        os._exit(code)


class _Warnings(logging.Handler):
    """Prints what the library warns of; looks for stderr anew each time, as tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        console.warn(record.getMessage())


def _print_warnings() -> None:
    log = logging.getLogger("onnx_genai")
    if not log.handlers:
        log.addHandler(_Warnings(logging.WARNING))


def _run(arguments: list[str], state: dict[str, Any]) -> int:
    # Not click's own main: it exits with 1 on a closed pipe and prints errors in its own form.
    try:
        with group.make_context("onnx-genai", arguments, obj=state) as context:
            group.invoke(context)
        return EXIT_OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILURE
    except (KeyboardInterrupt, click.Abort):
        console.report_interrupt()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    # The last stop: whatever it is, the user is told, and the exit code says that it failed.
    except Exception as error:  # noqa: BLE001
        if state.get("debug"):
            traceback.print_exc()
        console.report_failure(explain(error))
        return EXIT_FAILURE
