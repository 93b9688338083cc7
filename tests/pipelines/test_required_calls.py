"""A small real model that must call a tool makes calls that validate, whatever it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.pipelines.required_calls import PROMPTS, count, tool_sets

pytestmark = pytest.mark.real_model

WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]


def test_every_call_validates(smollm2: Path) -> None:
    assert asyncio.run(count(smollm2, {"weather": WEATHER}, 5)) == {"weather": 5}


@pytest.mark.slow
def test_every_call_validates_for_all_prompts_and_sets(smollm2: Path, shared_cases: Path) -> None:
    sets = tool_sets(shared_cases / "ort-genai" / "tool-definitions")

    assert len(sets) == 5
    assert asyncio.run(count(smollm2, sets, len(PROMPTS))) == dict.fromkeys(sets, 50)
