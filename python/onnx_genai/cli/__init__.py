"""The command ``onnx-genai``. Only the product goes to stdout; everything else goes to stderr."""

from __future__ import annotations

from onnx_genai.cli.app import main

__all__ = ["main"]
