"""Reads what ONNX Runtime recorded of single runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_genai.engine.trace import OpEvent

__all__ = ["read_op_files"]

_NAME = re.compile(r"run(\d+)_.*\.json")
_SUFFIX = "_kernel_time"


def read_op_files(folder: Path, runs: Mapping[int, tuple[int, int]]) -> list[OpEvent]:
    """Reads the files of recorded runs and removes them.

    ONNX Runtime's times count from the moment when it began to record, which is the begin of the run but for the time
    to open the file.

    Args:
        folder: Where they lie, as ``run<number>_<date>.json``.
        runs: Begin and end of each recorded run, in nanoseconds; files of other runs are left for a later call.
    """
    found: list[OpEvent] = []
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match.group(1)) not in runs:
            continue
        number = int(match.group(1))
        found.extend(_read(path, number, *runs[number]))
        path.unlink()
    return found


def _read(path: Path, number: int, begin: int, end: int) -> Sequence[OpEvent]:
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # the run was interrupted, or the disk is full
        return ()
    return [_op(event, number, begin, end) for event in events if _is_kernel(event)]


def _is_kernel(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and str(event.get("name", "")).endswith(_SUFFIX)


def _op(event: Mapping[str, Any], number: int, begin: int, end: int) -> OpEvent:
    start = min(begin + 1000 * int(event["ts"]), end)
    arguments = event.get("args", {})
    node = str(event["name"]).removesuffix(_SUFFIX)
    return OpEvent(
        node=node,
        op=str(arguments.get("op_name", node)),
        provider=str(arguments.get("provider", "")),
        start_ns=start,
        duration_ns=min(1000 * int(event["dur"]), end - start),
        thread=int(event.get("tid", 0)),
        run=number,
    )
