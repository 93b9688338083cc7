"""Perfetto's own reader of traces, where it is installed: :func:`ask`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ask"]

HERE = Path(__file__).parent
FOLDER = HERE / "package" / "assets" / "trace-processor"
"""Where ``tar`` puts what ``npm pack`` has fetched; ``docs/testing.md`` has the commands."""
SECONDS = 300

Rows = list[dict[str, Any]]


def ask(trace: Path, *queries: str) -> list[Rows]:
    """The rows of each query in PerfettoSQL about a trace; skips the test where there is no trace processor."""
    folder = Path(os.environ.get("ONNX_GENAI_TRACE_PROCESSOR", FOLDER)).resolve()
    node = shutil.which("node")
    if node is None or not (folder / "trace_processor.wasm").is_file():
        pytest.skip("no node, or no trace processor of Perfetto (docs/testing.md tells how to get it)")
    command = [node, str(HERE / "ask.mjs"), str(folder), str(trace), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    answers: list[Rows] = json.loads(done.stdout)
    return answers
