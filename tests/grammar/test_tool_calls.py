"""Tool calls as grammars: what a random model writes under them is parsed back into calls that fit their schema."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from onnx_genai import grammar
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar.tool_calls import SYNTAX
from onnx_genai.tools import FORMATS, parse_tool_calls
from tests.grammar.walk import accepts, special_tokens, walk

pytestmark = [pytest.mark.boundary, pytest.mark.usefixtures("interface")]

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer"}, "dry": {"type": "boolean"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}


@pytest.mark.parametrize("form", sorted(SYNTAX))
@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_fit_their_schema(form: str, parallel: bool) -> None:
    spec = grammar.tool_call_grammar(form, TOOLS, parallel=parallel)
    assert spec is not None
    ended = 0
    for seed in range(10):
        text = walk(spec, seed)
        if text is None:
            continue
        ended += 1
        content, calls = parse_tool_calls(text, FORMATS[form], TOOLS)
        assert calls, text
        assert content == "", text
        assert parallel or len(calls) == 1
        for call in calls:
            Draft202012Validator(SCHEMAS[call.name]).validate(json.loads(call.arguments))
    assert ended >= 3


@pytest.mark.parametrize("form", sorted(SYNTAX))
def test_a_named_tool_is_the_only_one(form: str) -> None:
    spec = grammar.tool_call_grammar(form, TOOLS, only="now", parallel=False)
    assert spec is not None
    texts = {walk(spec, seed) for seed in range(4)}
    for text in texts - {None}:
        _, calls = parse_tool_calls(str(text), FORMATS[form], TOOLS)
        assert [(call.name, call.arguments) for call in calls] == [("now", "{}")]


@pytest.mark.parametrize("form", sorted(name for name, syntax in SYNTAX.items() if syntax.trigger))
def test_free_text_may_come_but_a_begun_call_must_be_right(form: str) -> None:
    spec = grammar.tool_call_grammar(form, TOOLS, mode="auto")
    assert spec is not None
    assert accepts(spec, "It rains. {a}")
    call = grammar.tool_call_grammar(form, TOOLS, only="now", parallel=False)
    assert call is not None
    written = next(text for text in (walk(call, seed) for seed in range(9)) if text)
    assert accepts(spec, f"Well: {written}")
    assert accepts(spec, f"{written} and more")
    assert not accepts(spec, f"Well: {SYNTAX[form].trigger}\x01")


def test_marks_that_are_special_tokens() -> None:
    special = special_tokens()
    spec = grammar.after_reasoning(
        grammar.json_schema({"type": "boolean"}), start="<s>", end="<|im_end|>", inside=False, special=special
    )
    assert accepts(spec, "true")
    assert accepts(spec, "<s>hm</ <|im_end|>\n\nfalse")
    assert not accepts(spec, "<s>hm true")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "spec",
    [grammar.json_schema({"type": "boolean"}), grammar.regex("true|false"), grammar.choice(["true", "false"])],
    ids=["schema", "regex", "choice"],
)
def test_the_grammar_begins_behind_the_reasoning(spec: grammar.GrammarSpec, inside: bool) -> None:
    whole = grammar.after_reasoning(spec, start="<think>", end="</think>", inside=inside)
    assert accepts(whole, ("" if inside else "<think>") + "is it {true}?</think>\n\nfalse")
    assert accepts(whole, "true") is not inside
    assert not accepts(whole, ("" if inside else "<think>") + "hm</think>maybe")


@pytest.mark.parametrize("form", ["hermes", "mistral", "gemma"])
@pytest.mark.parametrize("inside", [True, False])
def test_calls_are_not_enforced_inside_thoughts(form: str, inside: bool) -> None:
    calls = grammar.tool_call_grammar(form, TOOLS, mode="auto")
    only = grammar.tool_call_grammar(form, TOOLS, only="now", parallel=False)
    assert calls is not None
    assert only is not None
    call = next(text for text in (walk(only, seed) for seed in range(9)) if text)
    spec = grammar.after_reasoning(calls, start="<think>", end="</think>", inside=inside)

    begin = "" if inside else "<think>"
    thought = f"{begin}I could use {SYNTAX[form].trigger} here.</think>"
    assert accepts(spec, f"{thought}\n\nNo need.")
    assert accepts(spec, f"{thought}\n\nWell: {call} done, <think> and {call}")
    assert not accepts(spec, f"{thought}\n\nWell: {SYNTAX[form].trigger}\x01")
    assert not accepts(spec, f"{begin}I could use {SYNTAX[form].trigger} here.")
    for text in ("Well.", f"Well: {call}", "<thin", call):
        assert accepts(spec, text) is not inside


@pytest.mark.parametrize("end", ["</think>", "<|im_end|>"])
def test_thoughts_may_have_the_marks_of_calls_as_tokens(end: str) -> None:
    special = {**special_tokens(), "<tool_call>": special_tokens()["<s>"]}
    calls = grammar.tool_call_grammar("hermes", TOOLS, mode="auto", special=special)
    assert calls is not None
    spec = grammar.after_reasoning(calls, start="<think>", end=end, inside=False, special=special)

    assert accepts(spec, f"<think>a <s> b <s>{end}Well.")
    assert accepts(spec, f"<think>{end}Well.")
    assert accepts(spec, "Well.")
    assert not accepts(spec, f"<think>a <s>{end}Well <s>.")
    assert not accepts(spec, "<think>a <s> b")


def test_a_lark_grammar_cannot_follow_reasoning() -> None:
    with pytest.raises(InvalidArgumentError, match="Lark"):
        grammar.after_reasoning(grammar.lark('?start: "a"'), start="<a>", end="</a>", inside=True)


def test_wrong_tools_are_refused() -> None:
    for tools, only, match in (
        ([], None, "no tool"),
        (TOOLS, "rm", "names 'rm'"),
        ([{"type": "function", "function": {}}], None, "name"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            grammar.tool_call_grammar("hermes", tools, only=only)
    with pytest.raises(InvalidArgumentError, match="cannot be enforced"):
        grammar.tool_call_grammar("function_gemma", TOOLS)
    assert grammar.tool_call_grammar("pythonic", TOOLS, mode="auto") is None


def test_parallel_calls_have_a_bound() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    spec = grammar.tool_call_grammar("hermes", tools)
    assert spec is not None

    assert accepts(spec, "\n".join([call] * 16))
    assert not accepts(spec, "\n".join([call] * 17))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a b", "\u65e5\u672c"])
def test_odd_names_are_written_so_that_they_are_read_again(name: str) -> None:
    tools = [{"name": name, "parameters": {"type": "object", "properties": {}}}]
    spec = grammar.tool_call_grammar("hermes", tools, parallel=False)
    assert spec is not None
    _, calls = parse_tool_calls(str(walk(spec, 1)), FORMATS["hermes"], tools)
    assert [call.name for call in calls] == [name]


KEYWORD_FORMS = sorted(name for name, syntax in SYNTAX.items() if syntax.keywords)
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["v"],
}


def one_tool(parameters: object, name: str = "f") -> list[dict[str, object]]:
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


def check_calls(form: str, parameters: dict[str, object]) -> None:
    """Whatever is written under the grammar is read back as a call that fits the schema."""
    tools = one_tool(parameters)
    spec = grammar.tool_call_grammar(form, tools, parallel=False)
    assert spec is not None
    texts = {walk(spec, seed) for seed in range(10)} - {None}
    assert texts
    for text in texts:
        _, calls = parse_tool_calls(str(text), FORMATS[form], tools)
        assert [call.name for call in calls] == ["f"], text
        Draft202012Validator(parameters).validate(json.loads(calls[0].arguments))


@pytest.mark.parametrize("form", ["pythonic", "gemma", "hermes", "llama3_json"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/A"}}, "required": ["a"],
         "definitions": {"A": {"type": "integer"}}},
        {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}, "required": ["a"], "strict": True},
        {"type": "object"},
        {"properties": {"default": {"type": "string", "format": "binary", "maxLength": 3.0},
                        "const": {"type": "integer"}, "enum": {"type": "string", "format": "path", "maxLength": 2},
                        "examples": {"type": "array", "maxItems": 1.0}}, "required": ["const", "enum", "examples"]},
    ],
    ids=["reference", "definitions", "nullable", "strict", "bare", "keywords"],
)  # fmt: skip
def test_schemas_of_many_kinds_are_kept(form: str, parameters: dict[str, object]) -> None:
    check_calls(form, parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
        {"anyOf": [{"type": "object", "properties": {each: {"type": "integer"}}, "required": [each]} for each in "ab"]},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["a"]},
    ],
    ids=["allOf", "anyOf", "required", "beside"],
)
def test_objects_that_are_described_elsewhere_are_kept_in_json(parameters: dict[str, object]) -> None:
    check_calls("hermes", parameters)


@pytest.mark.parametrize("form", KEYWORD_FORMS)
@pytest.mark.parametrize(
    ("parameters", "name", "match"),
    [
        ({"properties": {"from": {}}}, "f", "'from'"),
        ({"properties": {"None": {}}}, "f", "'None'"),
        ({"properties": {"\ufb01": {}}}, "f", "\ufb01"),
        ({"properties": {"__debug__": {"type": "integer"}}}, "f", None),
        ({}, "import", "'import'"),
        ({}, "a.class", "'a.class'"),
        ({}, "a..b", "a..b"),
        ({"anyOf": [{"properties": {"a": {}}}]}, "f", "anyOf"),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, "f", "minProperties"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "f", "maxProperties"),
        ({"properties": {"a": {}}, "required": ["z"]}, "f", "'z'"),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "f", "#/properties/b"),
        ({"$ref": "#/$defs/none"}, "f", "ref"),
        ({"properties": {"a": False}}, "f", "'a'"),
        ({"type": "array"}, "f", "'array'"),
    ],
)
def test_what_calls_with_keywords_cannot_keep_is_refused_by_name(
    form: str, parameters: dict[str, object], name: str, match: str | None
) -> None:
    if match is None:
        check_calls(form, {**parameters, "required": list(parameters["properties"])})  # type: ignore[call-overload]
        return
    with pytest.raises(InvalidArgumentError, match=match):
        grammar.tool_call_grammar(form, one_tool(parameters, name))


@pytest.mark.parametrize("form", KEYWORD_FORMS)
def test_numbers_and_texts_mean_the_same_in_code(form: str) -> None:
    spec = grammar.tool_call_grammar(
        form, one_tool({"properties": {"n": {"type": "number"}}, "required": ["n"]}), parallel=False
    )
    assert spec is not None
    begin, end = SYNTAX[form].first + "f(n=", ")" + SYNTAX[form].last
    for number in ("0", "-1.5", "6.02e23", "1E-99"):
        assert accepts(spec, begin + number + end)
    for number in ("1e999", "01", "1.", ".5", "1" * 400):
        assert not accepts(spec, begin + number + end)
    spec = grammar.tool_call_grammar(form, one_tool({"properties": {"n": {"type": "string"}}, "required": ["n"]}))
    assert spec is not None
    assert accepts(spec, begin + r'"a\n\"\\"' + end)
    for text in (r'"\/"', r'"\ud83d\ude00"'):  # Python reads these as other texts
        assert not accepts(spec, begin + text + end)
