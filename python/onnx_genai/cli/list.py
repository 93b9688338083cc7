"""``onnx-genai list``: the models on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from onnx_genai.cli import console
from onnx_genai.cli.models import MODEL_MARKS, MODELS_DIR
from onnx_genai.errors import NotFoundError
from onnx_genai.package import hub

__all__ = ["list_"]

MAX_DEPTH = 4
"""Levels below the models folder that are looked at."""


@click.command("list")
@click.option(
    "--models-dir",
    type=click.Path(path_type=Path),
    envvar=MODELS_DIR,
    help=f"Folder of models to look through as well (or {MODELS_DIR}).",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(models_dir: Path | None, as_json: bool) -> None:
    """Print the models on this machine: those that were pulled, and those in a folder of models."""
    if models_dir is not None and not models_dir.is_dir():
        raise NotFoundError(f"{models_dir} is no folder; give an existing one with --models-dir or {MODELS_DIR}")
    models = [
        {
            "id": model.name,
            "path": str(model.path),
            "source": model.source,
            "revision": model.revision,
            "variant": model.variant,
            "size_bytes": model.size_bytes,
        }
        for model in hub.list_local()
    ]
    if models_dir is not None:
        models += [
            {"id": _identifier(path, models_dir), "path": str(path), "source": "folder"}
            for path in _models_below(models_dir, MAX_DEPTH)
        ]
    models.sort(key=lambda model: (str(model["id"]), str(model["path"])))
    if as_json:
        console.write(json.dumps(models, ensure_ascii=False) + "\n")
        return
    if not models:
        looked = "" if models_dir is None else f" and none in {models_dir}"
        raise NotFoundError(
            f"no model was pulled{looked}; fetch one with `onnx-genai pull smollm2`, or name a folder of models with "
            f"--models-dir or {MODELS_DIR}"
        )
    console.write("".join(f"{model['id']}\t{model['path']}\n" for model in models))


def _models_below(folder: Path, depth: int) -> Iterator[Path]:
    """Model folders; nothing inside a model is looked at."""
    try:
        entries = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        console.warn(f"{folder} cannot be read: {error.strerror or error}")
        return
    if any((folder / mark).is_file() for mark in MODEL_MARKS):
        yield folder
        return
    if depth > 0:
        for entry in entries:
            yield from _models_below(Path(entry), depth - 1)


def _identifier(path: Path, models_dir: Path) -> str:
    relative = path.relative_to(models_dir)
    return relative.as_posix() if relative.parts else path.resolve().name
