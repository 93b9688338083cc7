"""Short ways to generate through the compat module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_genai.compat as og

__all__ = ["generator", "model", "sequences"]


def model(folder: Path, overlay: str | None = None) -> og.Model:
    """A package on the CPU, whatever provider it was made for."""
    config = og.Config(str(folder))
    config.clear_providers()
    if overlay is not None:
        config.overlay(overlay)
    return og.Model(config)


def generator(subject: og.Model, **options: Any) -> og.Generator:
    """A generator without a prompt."""
    params = og.GeneratorParams(subject)
    params.set_search_options(**options)
    return og.Generator(subject, params)


def sequences(made: og.Generator) -> list[list[int]]:
    """All sequences after generating to the end."""
    while not made.is_done():
        made.generate_next_token()
    return [made.get_sequence(index).tolist() for index in range(made.sequence_count())]
