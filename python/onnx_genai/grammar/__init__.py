"""What an answer may look like, as a grammar: JSON schemas, regular expressions, choices, tags, tool calls."""

from __future__ import annotations

from onnx_genai.grammar.schema import parse_as, schema_of
from onnx_genai.grammar.spec import (
    GrammarSpec,
    choice,
    json_object,
    json_schema,
    lark,
    regex,
    structural_tags,
)
from onnx_genai.grammar.tool_calls import after_reasoning, call_example, calls_or_answer, tool_call_grammar

__all__ = [
    "GrammarSpec",
    "after_reasoning",
    "call_example",
    "calls_or_answer",
    "choice",
    "json_object",
    "json_schema",
    "lark",
    "parse_as",
    "regex",
    "schema_of",
    "structural_tags",
    "tool_call_grammar",
]
