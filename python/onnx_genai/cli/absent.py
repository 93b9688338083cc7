"""What other runtimes of ONNX models can and this version cannot: told plainly, not as a word that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from onnx_genai.errors import UnsupportedError

__all__ = ["ABSENT_COMMANDS", "absent_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_HAS = "this version runs models that write text (generate, run, serve) and models that make vectors of it (embed)"
_INPUT = "takes {what}, and no model of this version does: all accept text alone"

ABSENT_COMMANDS = {"transcribe": f"transcribe needs a model that takes sound; {_HAS}"}
"""Command -> why there is none."""

_OPTIONS = {
    "--image": _INPUT.format(what="an image"),
    "--audio": _INPUT.format(what="sound"),
    **dict.fromkeys(
        (
            "--output-image",
            "--negative-prompt",
            "--steps",
            "--guidance-scale",
            "--height",
            "--width",
            "--batch-size",
            "--tokenizer",
            "--text-encoder",
            "--vae-decoder",
            "--vae-scaling-factor",
        ),
        f"is for models that draw; {_HAS}",
    ),
    **dict.fromkeys(("--output-audio", "--sample-rate"), f"is for models that speak; {_HAS}"),
}


def absent_options(command: Command) -> Command:
    """Adds options to ``generate`` that only say why they are not there.

    Raises:
        UnsupportedError: When the command is run with one.
    """
    for name in _OPTIONS:
        command = click.option(
            name,
            hidden=True,
            multiple=True,
            expose_value=False,
            allow_from_autoenv=False,
            callback=_refuse,
        )(command)
    return command


def _refuse(_context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> None:
    if value:
        raise UnsupportedError(f"{option.opts[0]} {_OPTIONS[option.opts[0]]}")
