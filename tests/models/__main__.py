"""``python -m tests.models FOLDER`` writes every model of the C++ tests into FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.models.checksum import CHECKSUM_STYLES
from tests.models.encoder import write_encoder_package
from tests.models.encoder_decoder import STYLES, write_encoder_decoder
from tests.models.packages import write_checksum_package, write_scripted_package
from tests.models.paged import write_paged_models
from tests.models.window import write_window_model


def write_all(folder: Path) -> list[Path]:
    """The folders written: ``checksum_<style>``, ``scripted_hello``, ``window``, ``encoder``,
    ``encoder_decoder_<style>``, ``paged_<style>``.
    """
    packages = [write_checksum_package(folder / f"checksum_{style}", style) for style in CHECKSUM_STYLES]
    scripted = write_scripted_package(folder / "scripted_hello", "Hello there.")
    others = [write_window_model(folder / "window"), write_encoder_package(folder / "encoder")]
    seq2seq = [write_encoder_decoder(folder / f"encoder_decoder_{style}", style) for style in STYLES]
    return [*packages, scripted, *others, *seq2seq, *write_paged_models(folder)]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tests.models FOLDER", file=sys.stderr)
        return 2
    for package in write_all(Path(arguments[0])):
        print(package)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
