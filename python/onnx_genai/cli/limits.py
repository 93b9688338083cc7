"""Memory limits on the command line: ``auto``, bytes, a fraction of capacity, or a size such as ``8GiB``."""

from __future__ import annotations

import click

from onnx_genai.errors import InvalidArgumentError

__all__ = ["checked_limit"]


def checked_limit(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Option callback: checks the spelling and hands the text on, as ``LLM`` takes it; None stays None."""
    if value is None:
        return None
    from onnx_genai.pipelines import parse_memory_limit  # takes time to import

    try:
        parse_memory_limit(value, name="the limit")
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    return value
