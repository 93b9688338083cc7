"""What the tests of chats say, offer and compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx_genai import LLM, Choice, SamplingParams

__all__ = [
    "CALL",
    "GREEDY",
    "HELLO",
    "THINKING",
    "TIME",
    "TOOLS_PART",
    "TOOLS_SHOWN",
    "WEATHER",
    "Open",
    "joined",
    "same",
    "sampled",
]

Open = Callable[..., LLM]

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.content else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>\n' if enable_thinking }}{% endif %}"
)
TOOLS_PART = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
TOOLS_SHOWN = (
    f"{TOOLS_PART}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments}"
    " | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"enum": ["Paris", "Oslo"]},
                "days": {"type": "integer", "maximum": 9, "minimum": 0},
            },
            "required": ["place"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
HELLO = [{"role": "user", "content": "Hi"}]
GREEDY = SamplingParams(max_new_tokens=300, temperature=0)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Paris"}}\n</tool_call>'


def sampled(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 400, "temperature": 1.0, "seed": seed, **more})


def joined(model: LLM, messages: Sequence[Mapping[str, Any]], params: SamplingParams, **options: Any) -> list[Choice]:
    """The choices that the pieces of a stream join to."""
    parts: dict[int, dict[str, Any]] = {}
    for chunk in model.chat_stream(messages, params, **options):
        part = parts.setdefault(chunk.index, {"text": "", "reasoning": "", "calls": [], "ids": [], "finish": None})
        assert part["finish"] is None
        part["text"] += chunk.content
        part["reasoning"] += chunk.reasoning
        part["calls"] += chunk.tool_calls
        part["ids"] += chunk.token_ids
        part["finish"] = chunk.finish_reason
    return [
        Choice(
            index=index,
            text=part["text"],
            reasoning=part["reasoning"],
            tool_calls=tuple(part["calls"]),
            token_ids=tuple(part["ids"]),
            finish_reason=part["finish"],
        )
        for index, part in sorted(parts.items())
    ]


def same(streamed: Choice, whole: Choice) -> None:
    assert streamed.text == whole.text
    assert streamed.reasoning == (whole.reasoning or "")
    assert [dataclasses.replace(call, id="") for call in streamed.tool_calls] == [
        dataclasses.replace(call, id="") for call in whole.tool_calls
    ]
    assert (streamed.token_ids, streamed.finish_reason) == (whole.token_ids, whole.finish_reason)
