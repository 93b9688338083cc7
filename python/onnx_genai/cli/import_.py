"""``onnx-genai import``: makes a package of a GGUF file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.progress import ProgressBar

if TYPE_CHECKING:
    from onnx_genai.convert import ImportReport

__all__ = ["import_"]

# The same as convert.DTYPES, which is not imported here: that would slow down every command.
DTYPES = ("auto", "fp32", "fp16", "int4", "int8")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(DTYPES), help="Default: auto, which keeps quantized tensors as they are.")
@click.option("--bits", type=click.Choice(("4", "8")), help="The same as --dtype int4 or int8.")
@click.option("--block-size", type=int, default=32, show_default=True, help="Weights that share a scale.")
@click.option("--max-context", type=int, metavar="TOKENS", help="Bound of the context; default: that of the model.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as a JSON object.")
def import_(
    file: Path,
    out: Path,
    dtype: str | None,
    bits: str | None,
    block_size: int,
    max_context: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make the package folder OUT of a GGUF file, and print what was done to its weights.

    FILE may also be the folder of an encoder's checkpoint (BERT or RoBERTa: config.json, model.safetensors,
    tokenizer.json), for embeddings or reranking; its weights stay float32.
    """
    from onnx_genai.convert import import_encoder, import_gguf

    if file.is_dir():
        if bits is not None or dtype not in (None, "auto", "fp32") or max_context is not None:
            raise click.UsageError("a checkpoint's weights stay float32; drop --bits, --dtype and --max-context")
        made = import_encoder(file, out, overwrite=overwrite)
        facts = {**dataclasses.asdict(made), "source": str(made.source), "path": str(made.path)}
        console.write(json.dumps(facts, ensure_ascii=False) + "\n" if as_json else str(made))
        return
    with ProgressBar(f"importing {file.name}") as bar:
        report = import_gguf(
            file,
            out,
            bits=None if bits is None else int(bits),
            dtype=dtype,
            block_size=block_size,
            max_context=max_context,
            overwrite=overwrite,
            progress=lambda _tensor, done, total: bar.update(done, total),
        )
    console.write(json.dumps(_report_object(report), ensure_ascii=False) + "\n" if as_json else str(report))


def _report_object(report: ImportReport) -> dict[str, Any]:
    return {
        **dataclasses.asdict(report),
        "source": str(report.source),
        "path": str(report.path),
        "max_relative_error": report.max_relative_error,
    }
