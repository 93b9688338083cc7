"""Ends of regions: the same in one piece and in many, and no piece is looked at twice."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_genai.tools import FORMATS, Call, ToolCallParser
from onnx_genai.tools.scan import Scan

ALPHABET = st.text(alphabet="{}[]()\"'\\ a", max_size=40)


def slow_end(text: str, opening: str, closing: str, quotes: tuple[str, ...]) -> int | None:
    """Written down plainly, one character after the other."""
    depth, quote, place = 0, "", 0
    while place < len(text):
        if text[place] == "\\" and quote:
            place += 2
            continue
        mark = next((each for each in quotes if text.startswith(each, place)), "")
        if quote and text.startswith(quote, place):
            place += len(quote)
            quote = ""
            continue
        if not quote and mark:
            quote = mark
            place += len(mark)
            continue
        if not quote and text[place] in opening + closing:
            depth += 1 if text[place] in opening else -1
            if depth <= 0:
                return place + 1
        place += 1
    return None


@given(ALPHABET, st.lists(st.integers(0, 41), max_size=5))
def test_an_end_is_the_same_however_the_text_comes(inner: str, cuts: list[int]) -> None:
    text = "[" + inner
    code_scan = Scan()
    code_end = None
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        code_end = code_end or code_scan.code_end(text[:cut], 0)
    assert code_end == slow_end(text, "{[(", "}])", ('"""', "'''", '"', "'"))


JSON_PIECES = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", '"a"', '"\\""', ":", ",", "1", "-0.5e3", "tru", "true", "null", " ", "\n", "x", '"']
    ),
    max_size=12,
)


@given(JSON_PIECES, st.integers(1, 4))
def test_an_end_of_json_is_the_one_of_the_library_however_the_text_comes(pieces: list[str], size: int) -> None:
    text = "  [" + "".join(pieces)
    scan = Scan()
    ends = [scan.json_end(text[:cut], 2) for cut in range(3, len(text) + size, size)]
    found = next((end for end in ends if end is not None), None)
    try:
        expected: int | None = json.JSONDecoder(strict=False).raw_decode(text, 2)[1]
    except json.JSONDecodeError:
        expected = None

    assert found == expected or (expected is None and found == 2)
    assert Scan().json_end(text, 2) == found


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("{", None),
        ('{"na', None),
        ('{"name"', None),
        ('{"name" :', None),
        ('{"name": "x', None),
        ('{"name": "x \\', None),
        ('{"name": "x", ', None),
        ('{"a": tr', None),
        ('{"a": -', None),
        ('{"a": 1.', None),
        ('{"a": [1, {"b": []', None),
        ("{ and", 0),
        ("{`", 0),
        ('{"name" is', 0),
        ('{"name": x', 0),
        ('{"name": "x" y', 0),
        ('{"a": 1,}', 0),
        ('{"a": 01', 0),
        ('{"a": truth', 0),
        ('{"a": [1}', 0),
        ("[1 2", 0),
        ("[,", 0),
        ("{1", 0),
        ("{'a'", 0),
    ],
)
def test_what_no_text_makes_json_of_is_told_at_once(text: str, end: int | None) -> None:
    assert Scan().json_end(text, 0) == end
    assert end is None or Scan().json_end(text + " }", 0) == end


@pytest.mark.parametrize("text", ['["""a"b"""]', "['', ''']''']", '["\\""]', "[f(a='it\\'s', b=\"]\")]", "['''''']"])
def test_quotes_of_code_at_every_cut(text: str) -> None:
    scan = Scan()
    ends = [scan.code_end(text[:cut], 0) for cut in range(1, len(text) + 1)]
    assert ends == [None] * (len(text) - 1) + [len(text)]


def test_what_was_looked_through_is_not_looked_through_again() -> None:
    scan = Scan()
    assert scan.json_end('{"a": [1, "', 0) is None
    assert scan.json_end("xxxxxxxxxxx}]}", 0) is None  # still inside the text that the first piece began
    assert scan.json_end('xxxxxxxxxxx}]}"]}', 0) == 17
    assert scan.json_end("anything", 0) == 17
    assert scan.json_end(" {}", 1) == 3
    assert scan.code_end("[a(", 0) is None
    assert scan.code_end("xxx)]", 0) == 5
    assert scan.find("ab</", 1, "</f>", "<e") == -1
    assert scan.find("</f></f></f><e", 1, "</f>", "<e") == 4  # from the last three on, which may have begun a mark
    assert scan.find("</f></f>", 5, "</f>", "<e") == -1
    assert scan.find("</f></f><e>", 5, "</f>", "<e") == 8


LONG = "x" * 400 + "\\n] } ) ' "


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "%s"}}</tool_call>'),
        ("hermes", "<tool_call><function=f><parameter=a>%s</parameter></function></tool_call>"),
        (
            "llama3_json",
            '{"name": "f", "parameters": {"a": "%s"}}; {"name": "f", "parameters": {"a": "%s"}}',
        ),
        ("pythonic", '[f(a="%s")]'),
        ("mistral", '[TOOL_CALLS]f{"a": "%s"}'),
        ("deepseek", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "%s"}<｜tool▁call▁end｜>'),
        ("command_r7b", '<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": "%s"}}]<|END_ACTION|>'),
    ],
)
def test_a_long_argument_is_looked_through_once(form: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text.replace("%s", LONG)
    seen = 0
    plain = Scan._sign

    def counted(self: Scan, *args: object, **options: object) -> int:
        nonlocal seen
        seen += 1
        return plain(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Scan, "_sign", counted)
    parser = ToolCallParser(FORMATS[form], [{"name": "f"}])
    pieces = [text[place : place + 3] for place in range(0, len(text), 3)]
    items = list(itertools.chain.from_iterable(map(parser.feed, pieces))) + parser.finish()

    assert items
    assert all(isinstance(item, Call) for item in items)
    assert seen <= sum(text.count(sign) for sign in "\"'{}[]()\\")
