"""Construct by construct: the text is the one of jinja2 with the settings of transformers, or both refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.errors import InvalidArgumentError, PackageError
from onnx_genai.template import ChatTemplate
from tests.template.reference import NOW, Refused, reference_render

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": 'Say "yes" é'},
    {"role": "user", "content": "One <b> & \n two  "},
    {"role": "assistant", "content": "Done 😀", "name": "helper"},
    {"role": "user", "content": "</think> More"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CONSTRUCTS = json.loads(Path(__file__).with_name("constructs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("source", [source for group in CONSTRUCTS.values() for source in group])
def test_construct_gives_what_transformers_gives(source: str) -> None:
    template = ChatTemplate(source, **TOKENS, clock=lambda: NOW)
    variables = {**TOKENS, "messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": True}

    try:
        expected = reference_render(source, variables)
    except Refused:
        with pytest.raises((InvalidArgumentError, PackageError)):
            template.render(MESSAGES)
    else:
        assert template.render(MESSAGES) == expected
