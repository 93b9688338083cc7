"""JSON of clients: what a fast reader takes is what the exact one takes, and it is bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onnx_genai.server.errors import ApiError
from onnx_genai.server.strict_json import LARGE_BYTES, MAX_CONTAINERS, MAX_DEPTH, parse_json
from tests.server.running import RunningServer

FILL = json.dumps("x" * LARGE_BYTES)
"""Makes a body large, so that the fast reader is asked first."""

RIGHT = [
    "1",
    "-0",
    "-0.0",
    "1e5",
    "1E-400",
    "1.7976931348623157e308",
    "1" * 250,
    '["1e400", "' + "1" * 400 + '"]',
    "123456789012345678901234567890",
    "[1, 2.5, [true, false, null], {}]",
    '{"a": 1, "b": {"a": [[]]}, "a": 2}',
    r'"\u0000 \ud83d\ude00 \" \\ \/ \n é 😀 \u2028"',
    '{"": "", "\\u0061": 1}',
    " [ 1 , 2 ] ",
    "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2),
]
WRONG = [
    ("NaN", "number"),
    ("-Infinity", "number"),
    ("1e999", "number"),
    ("[0, [-1e999]]", "number"),
    ("1" * 400 + ".0", "number"),
    ("9" * 5000, "number"),
    ('{"a": 1e400, "a": 2}', "number"),
    ('{"a": {"b": -1E+0400}, "a": 2}', "number"),
    ('{"a": ' + "9" * 309 + '.5, "a": 2}', "number"),
    ('{"a": ' + "1" * 250 + 'e99, "a": 2}', "number"),
    ('{"a": ' + "9" * 5000 + ', "a": 2}', "number"),
    ('{"a": NaN, "a": 2}', "number"),
    ("01", "Expecting"),
    ("'a'", "Expecting"),
    ("[1,]", "Expecting|Illegal"),
    ('"\x01"', "control character"),
    (r'"\ud800"', "lone surrogate"),
    (r'{"\udfff": 1}', "lone surrogate"),
    ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "levels deep"),
    ("[" * 100_000 + "]" * 100_000, "levels deep|lists and objects"),
    ("1 2", "Expecting"),
    ("", "Expecting"),
]


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("text", RIGHT, ids=range(len(RIGHT)))
def test_what_is_right_is_what_the_library_reads(text: str, is_large: bool) -> None:
    body = f'{{"fill": {FILL if is_large else 0}, "value": {text}}}'

    found, expected = parse_json(body.encode()), json.loads(body)

    assert repr(found) == repr(expected) or text == "-0.0"
    assert found == expected


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_told_the_same_in_small_and_in_large(text: str, message: str, is_large: bool) -> None:
    body = f'{{"fill": {FILL if is_large else 0}, "value": {text}}}'

    with pytest.raises(ApiError, match=message) as caught:
        parse_json(body.encode())

    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert len(caught.value.message) < 200


def test_bytes_that_are_no_text_are_named() -> None:
    with pytest.raises(ApiError, match="not UTF-8"):
        parse_json(f'{{"fill": {FILL}, "value": "'.encode() + b'\xff"}')


@pytest.mark.parametrize("piece", ["[1]", "{}", '{"role": "user", "content": "x"}'])
def test_millions_of_lists_are_refused_before_they_are_made(hello: RunningServer, piece: str) -> None:
    count = MAX_CONTAINERS + 1
    body = b'{"prompt": [' + b",".join([piece.encode()] * count) + b"]}"

    response = hello.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})

    assert response.status_code == 400
    assert f"more than {MAX_CONTAINERS} lists and objects" in response.json()["error"]["message"]


@pytest.mark.parametrize("piece", ["[{", '\\"[{', '\\\\\\"{', "\\\\[\\\\{"])
def test_brackets_in_texts_are_no_lists(piece: str) -> None:
    text = piece * MAX_CONTAINERS
    other: dict[str, Any] = {"a": [1, {"b": "["}]}
    body = f'{{"a": "{text}", "b": [{json.dumps(other)}], "c": "{text}"}}'

    assert parse_json(body.encode()) == {"a": json.loads(f'"{text}"'), "b": [other], "c": json.loads(f'"{text}"')}
