"""Text to token ids and back: a thin layer over the ``tokenizers`` library."""

from __future__ import annotations

from onnx_genai.tokenizer.table import TokenKind, TokenTableData
from onnx_genai.tokenizer.tokenizer import Tokenizer

__all__ = ["TokenKind", "TokenTableData", "Tokenizer"]
