"""Server-sent events as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onnx_genai.server.streaming import ChoiceEvents, data_event

HEAD = {"id": "x", "object": "chunk", "model": 'a "model"\n\u2028 ]}'}


@pytest.mark.parametrize("tail", [{}, {"usage": None}, {"usage": None, "more": [1, {}]}])
@pytest.mark.parametrize("choice", [{"index": 0, "text": ""}, {"text": '"}]\n\x00 \U0001f600', "logprobs": None}])
def test_events_of_choices_are_those_that_are_written_whole(tail: dict[str, Any], choice: dict[str, Any]) -> None:
    event = ChoiceEvents(HEAD, tail).of(choice)

    assert event == data_event({**HEAD, "choices": [choice], **tail})
    assert json.loads(event.removeprefix(b"data: ")) == {**HEAD, "choices": [choice], **tail}
