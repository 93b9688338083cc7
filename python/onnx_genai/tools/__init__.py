"""Tool calls in a model's text: formats, detection, and a parser that may be fed piece by piece."""

from __future__ import annotations

from onnx_genai.tools.calls import Call, Region, ToolFormat
from onnx_genai.tools.formats import FORMATS, detect_format, get_format
from onnx_genai.tools.functions import function_tool
from onnx_genai.tools.schemas import ToolSchemas
from onnx_genai.tools.stream import ToolCallParser, parse_tool_calls

__all__ = [
    "FORMATS",
    "Call",
    "Region",
    "ToolCallParser",
    "ToolFormat",
    "ToolSchemas",
    "detect_format",
    "function_tool",
    "get_format",
    "parse_tool_calls",
]
