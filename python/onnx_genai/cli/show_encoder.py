"""What ``show`` prints for an embedding model or reranker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["encoder_lines"]

_KINDS = {"embedding": "embedding model", "reranker": "reranker (scores a query with a document)"}


def encoder_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people of what ``inspect_encoder`` returned."""
    yield f"model directory: {facts['directory']}"
    yield f"format: {facts['format']}"
    if facts["model_type"]:
        yield f"model type: {facts['model_type']}"
    yield f"model file: {facts['model_file']}"
    if len(facts["variants"]) > 1:
        names = (
            f"{each['name']} *" if each["name"] == facts["variant"] else each["name"] for each in facts["variants"]
        )
        yield f"variants: {', '.join(names)}"
    yield f"tokenizer: {facts['tokenizer'] or '(none)'}"
    yield f"kind: {_KINDS[facts['kind']]}"
    yield "inputs and outputs:"
    for role, port in facts["ports"].items():
        yield f"  {role}: {port}"
    yield f"  output: {facts['output']}"
    if facts["kind"] == "embedding":
        how = "in the graph" if facts["pooling"] is None else ", ".join(facts["pooling"])
        yield f"pooling: {how} (from {facts['pooling_source']})"
        yield f"after pooling: {', '.join(facts['after_pooling']) or '(nothing)'}"
        yield f"width: {facts['width']}"
        names = (f"{name} *" if name == facts["default_prompt"] else name for name in facts["prompts"])
        yield f"prompts: {', '.join(names) or '(none)'}"
    yield f"longest text: {facts['max_length'] or 'unknown'}" + (
        f" (from {facts['max_length_source']})" if facts["max_length_source"] else ""
    )
    if facts["max_batch"]:
        yield f"largest batch: {facts['max_batch']}"
    for warning in facts["warnings"]:
        yield f"warning: {warning}"
