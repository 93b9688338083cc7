"""Fetching a model with a progress bar on a terminal."""

from __future__ import annotations

from pathlib import Path

from onnx_genai.package import hub

__all__ = ["fetch"]


def fetch(
    name: str,
    *,
    revision: str | None = None,
    variant: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
) -> Path:
    """Folder of the model, fetched if it is not here yet."""
    return hub.pull(name, revision=revision, variant=variant, cache_dir=cache_dir, offline=offline)
