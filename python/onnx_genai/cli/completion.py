"""``onnx-genai completion``: what the Tab key offers in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from onnx_genai.cli import console

__all__ = ["COMPLETE_VARIABLE", "completion"]

COMPLETE_VARIABLE = "_ONNX_GENAI_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options, models and files with the Tab key.

    It asks the program itself, so it need not be made again after an update.
    """
    kind = get_completion_class(shell)
    if kind is None:  # click was built without it
        raise click.UsageError(f"{shell} is not known; choose {', '.join(SHELLS)}")
    console.write(kind(click.Command("onnx-genai"), {}, "onnx-genai", COMPLETE_VARIABLE).source())
