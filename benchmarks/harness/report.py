"""Medians with their spread, ratios of alternated runs, a table for people and JSON for machines."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, extremes and relative spread (max - min over the median)."""
    middle = statistics.median(values)
    return {
        "median": middle,
        "min": min(values),
        "max": max(values),
        "spread": (max(values) - min(values)) / middle if middle else 0.0,
    }


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ratios ours / theirs of runs taken one after the other, so that a drift of the machine cancels out."""
    return summary([a / b for a, b in zip(ours, theirs, strict=True)])


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A text table with the first column left and the others right aligned."""
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in cells)
    )


def without_paths(value: Any) -> Any:
    """The record with every absolute path cut to its last name: a record is for others to read."""
    if isinstance(value, str):
        return re.sub(r"(?<![\w./])/(?:[^/\s:,;]+/)+([^/\s:,;]+)", r"\1", value)
    if isinstance(value, Mapping):
        return {key: without_paths(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(each) for each in value]
    return value


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Writes the raw record, without paths of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(without_paths(record), indent=1) + "\n", encoding="utf-8")
