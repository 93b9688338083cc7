"""``python -m onnx_genai``: the program ``onnx-genai``."""

from __future__ import annotations

import sys

from onnx_genai.cli import main

if __name__ == "__main__":
    sys.exit(main())
