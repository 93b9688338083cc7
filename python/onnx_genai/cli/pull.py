"""``onnx-genai pull``: fetches a model."""

from __future__ import annotations

from pathlib import Path

import click

from onnx_genai.cli import console
from onnx_genai.cli.progress import fetch

__all__ = ["pull"]


@click.command()
@click.argument("name")
@click.option("--revision", help="Branch, tag or commit of the hub repository.")
@click.option("--variant", help="Which of several graphs to fetch: q4, fp16, ...")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder to keep models in.")
@click.option("--offline", is_flag=True, help="Only look into the cache.")
def pull(name: str, revision: str | None, variant: str | None, cache_dir: Path | None, offline: bool) -> None:
    """Fetch the model behind an alias (smollm2) or a Hugging Face id (owner/name), and print its folder.

    Only the files that are needed are fetched; a broken-off download goes on where it stopped.
    """
    path = fetch(name, revision=revision, variant=variant, cache_dir=cache_dir, offline=offline)
    console.write(f"{path}\n")
