"""``onnx-genai import``: makes a package of a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click

from onnx_genai.cli import console

__all__ = ["import_"]


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as a JSON object.")
def import_(file: Path, out: Path, as_json: bool) -> None:
    """Make the package folder OUT of a GGUF file, and print what was done to its weights."""
    from onnx_genai import convert

    console.write(str(convert.import_gguf(file, out)))
