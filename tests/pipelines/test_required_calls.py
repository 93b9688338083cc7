"""A small real model that must call a tool makes calls that validate, whatever it is asked."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from onnx_genai import SamplingParams
from tests.pipelines.required_calls import GREEDY, PROMPTS, count, tool_sets

pytestmark = pytest.mark.real_model

SAMPLED = SamplingParams(max_new_tokens=256, temperature=1.0, seed=1)
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


def test_call_that_there_is_hardly_room_for_validates(smollm2: Path) -> None:
    params = dataclasses.replace(GREEDY, max_new_tokens=40)

    assert asyncio.run(count(smollm2, {"weather": WEATHER}, 10, params)) == {"weather": 10}


@pytest.mark.slow
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_call_validates_for_all_prompts_and_sets(
    smollm2: Path, shared_cases: Path, params: SamplingParams
) -> None:
    sets = tool_sets(shared_cases / "ort-genai" / "tool-definitions")

    assert len(sets) == 5
    assert asyncio.run(count(smollm2, sets, len(PROMPTS), params)) == dict.fromkeys(sets, 50)
