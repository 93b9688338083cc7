"""A program for the process tests: the command line over a fake model that is slow to load or to answer.

Usage: python -m tests.cli.slow_program SECONDS_TO_LOAD SECONDS_A_PIECE PIECES ARGUMENTS...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_genai.pipelines
from onnx_genai.cli import main
from onnx_genai.types import Chunk, SamplingParams
from tests.cli.fake_llm import FakeLLM, Script


class _SlowLLM(FakeLLM):
    load_seconds = 0.0
    piece_seconds = 0.0

    def __init__(self, model: str | Path, **options: Any) -> None:
        super().__init__(model, **options)
        sys.stderr.write("loading\n")
        sys.stderr.flush()
        time.sleep(self.load_seconds)

    def stream(self, prompt: list[int], params: SamplingParams) -> Iterator[Chunk]:
        for chunk in super().stream(prompt, params):
            time.sleep(self.piece_seconds)
            yield chunk


if __name__ == "__main__":
    _SlowLLM.load_seconds, _SlowLLM.piece_seconds = float(sys.argv[1]), float(sys.argv[2])
    _SlowLLM.script = Script(pieces=("é😀 word ",) * int(sys.argv[3]), context_limit=10**9)
    onnx_genai.pipelines.LLM = _SlowLLM
    sys.exit(main(sys.argv[4:]))
