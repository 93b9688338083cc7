"""The command group, and what happens around every command: streams, errors, exit codes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from onnx_genai.cli import console
from onnx_genai.cli.failures import explain
from onnx_genai.cli.generate import generate
from onnx_genai.cli.import_ import import_
from onnx_genai.cli.list import list_
from onnx_genai.cli.pull import pull
from onnx_genai.cli.serve import serve
from onnx_genai.cli.show import show
from onnx_genai.cli.version import package_version, version

__all__ = ["COMMANDS", "main"]

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

COMMANDS: dict[str, click.Command] = {
    "generate": generate,
    "serve": serve,
    "show": show,
    "list": list_,
    "pull": pull,
    "import": import_,
    "version": version,
}
ALIASES = {"ls": "list"}


class _Group(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_Group,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ONNX_GENAI"},
)
@click.version_option(package_version(), prog_name="onnx-genai")
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def group(context: click.Context, debug: bool) -> None:
    """Run generative ONNX models.

    MODEL is a folder, a file in one, an alias such as smollm2, or a Hugging Face id (owner/name).
    """
    context.obj["debug"] = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Returns:
        0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    console.prepare_streams()
    state: dict[str, bool] = {}
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments), state)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has what it wanted (`| head`).
        console.drop_stdout()
        return EXIT_OK
    return code


def _run(arguments: list[str], state: dict[str, bool]) -> int:
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
