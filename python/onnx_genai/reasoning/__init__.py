"""Reasoning in a model's text: which marks enclose it, and a splitter that may be fed piece by piece."""

from __future__ import annotations

from onnx_genai.reasoning.marked import MarkedText
from onnx_genai.reasoning.markers import MARKERS, ReasoningMarkers, find_markers
from onnx_genai.reasoning.splitter import ReasoningSplitter, split_reasoning

__all__ = ["MARKERS", "MarkedText", "ReasoningMarkers", "ReasoningSplitter", "find_markers", "split_reasoning"]
