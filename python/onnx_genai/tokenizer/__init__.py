"""Text to token ids and back: a thin layer over the ``tokenizers`` library."""

from __future__ import annotations

from onnx_genai.tokenizer.fim import FimMarks, find_fim_marks
from onnx_genai.tokenizer.stream import TokenStream
from onnx_genai.tokenizer.table import TokenKind, TokenTableData
from onnx_genai.tokenizer.tokenizer import Tokenizer
from onnx_genai.tokenizer.whole import WholeText

__all__ = ["FimMarks", "TokenKind", "TokenStream", "TokenTableData", "Tokenizer", "WholeText", "find_fim_marks"]
