"""A program for the terminal tests: the command line over models that answer slowly.

Usage: python -m tests.cli.repl.slow_run SECONDS_A_PIECE ARGUMENTS...
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

import onnx_genai.pipelines
from onnx_genai.cli import main
from onnx_genai.pipelines.text import LLM
from onnx_genai.types import Chunk

PIECE = 4
"""Characters at once."""


class _SlowLLM(LLM):
    piece_seconds = 0.0

    def stream(self, *arguments: Any, **options: Any) -> Iterator[Chunk]:
        return self._slowly(super().stream(*arguments, **options))

    def _slowly(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            # A small model is done before anybody asks, and so all its text is in one piece.
            places = range(0, max(1, len(chunk.text)), PIECE)
            for number, place in enumerate(places):
                time.sleep(self.piece_seconds)
                is_last = number + 1 == len(places)
                end: dict[str, Any] = {} if is_last else {"finish_reason": None, "usage": None, "budget_cap": None}
                ids = chunk.token_ids[number:] if is_last else chunk.token_ids[number : number + 1]
                yield dataclasses.replace(chunk, text=chunk.text[place : place + PIECE], token_ids=ids, **end)


if __name__ == "__main__":
    _SlowLLM.piece_seconds = float(sys.argv[1])
    onnx_genai.pipelines.LLM = _SlowLLM  # type: ignore[misc]
    sys.exit(main(sys.argv[2:]))
