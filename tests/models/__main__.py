"""``python -m tests.models FOLDER`` writes every checksum package and a scripted one into FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.models.checksum import CHECKSUM_STYLES
from tests.models.packages import write_checksum_package, write_scripted_package


def write_all(folder: Path) -> list[Path]:
    """The folders written: ``checksum_<style>`` for every style, and ``scripted_hello``."""
    packages = [write_checksum_package(folder / f"checksum_{style}", style) for style in CHECKSUM_STYLES]
    return [*packages, write_scripted_package(folder / "scripted_hello", "Hello there.")]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tests.models FOLDER", file=sys.stderr)
        return 2
    for package in write_all(Path(arguments[0])):
        print(package)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
