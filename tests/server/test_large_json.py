"""JSON in slices is the JSON of the library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onnx_genai.server.large_json import json_answer, json_pieces

VALUES: list[Any] = [
    {},
    [],
    None,
    "",
    {"a": [], "b": {}, "c": ""},
    [1, 2.5, True, None, "x"],
    list(range(10_000)),
    ["a" * 100, "b", {"c": [1, [2, {"d": None}]]}] * 3000,
    {"text": 'quote " back \\ line \n bell \x07 é 😀 \u2028' * 2000, "n": 1},
    [[], {}, [[]]],
    ("tuple", (1, 2)),
    {f"k{index}": {"v": "x" * index} for index in range(500)},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_slices_are_the_whole(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    pieces = list(json_pieces(value))

    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 2**19
    response = asyncio.run(json_answer(value, 201, {"X-A": "b"}))
    assert (response.status_code, response.body, response.headers["x-a"]) == (201, text.encode("utf-8"), "b")
    assert response.headers["content-type"] == "application/json"


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        list(json_pieces({"a": [1.0, float("nan")]}))
