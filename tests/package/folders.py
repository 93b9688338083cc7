"""Writes package folders for the readers. The graphs are stand-ins: the readers do not look into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["GENAI", "genai_with", "write"]

GRAPH = b"\x08\x08:\x00"
"""A model with an empty graph."""
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 2, "content": "</s>", "special": True},
        {"id": 7, "content": "<|im_end|>", "special": True},
        {"id": 8, "content": "<|eot_id|>", "special": False},
    ],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "plain": 5}, "merges": []},
}
GENAI: dict[str, Any] = {
    "model": {
        "type": "llama",
        "context_length": 4096,
        "vocab_size": 32000,
        "eos_token_id": [2, 5],
        "bos_token_id": 1,
        "pad_token_id": 0,
        "decoder": {"filename": "model.onnx", "num_key_value_heads": 8, "num_attention_heads": 32, "head_size": 64},
    },
    "search": {"do_sample": True, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "max_length": 2048},
}


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Writes files: bytes and text as they are, ``None`` as a graph, objects as JSON or YAML by their suffix."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.write_bytes(GRAPH)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix in (".yaml", ".yml"):
            path.write_text(yaml.safe_dump(content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def genai_with(path: str, value: Any) -> dict[str, Any]:
    """A copy of GENAI with one value changed; ``path`` is like ``model.decoder.filename``."""
    copy: dict[str, Any] = json.loads(json.dumps(GENAI))
    target = copy
    *parents, last = path.split(".")
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return copy
