"""``onnx-genai version``: what is installed, to paste into a report."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Any

import click

from onnx_genai.cli import console

__all__ = ["package_version", "version"]


def package_version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version("onnx-genai")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def version(as_json: bool) -> None:
    """Print versions, and which ONNX Runtime is used and why."""
    from onnx_genai.pipelines import find_ort_library

    facts: dict[str, Any] = {
        "version": package_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if not as_json:
        console.write(f"onnx-genai {facts['version']}\npython {facts['python']} on {facts['platform']}\n")
    library = find_ort_library()
    facts["onnxruntime"] = {
        "version": library.version,
        "api_version": library.api_version,
        "path": str(library.path),
        "reason": library.reason,
    }
    facts["execution_providers"] = [_short_name(provider) for provider in library.providers]
    if as_json:
        console.write(json.dumps(facts) + "\n")
        return
    console.write(
        f"execution providers: {', '.join(facts['execution_providers'])}\n"
        f"ONNX Runtime {library.version} (API {library.api_version}): {library.path}\n"
        f"  chosen because: {library.reason}\n"
        "hint: choose a provider with --ep NAME or ONNX_GENAI_EP\n"
    )


def _short_name(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()
