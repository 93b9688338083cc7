"""Grammars from what people give: each allows what it should and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from onnx_genai import grammar
from onnx_genai.errors import InvalidArgumentError
from tests.grammar.walk import accepts, allowed, object_schema, vocabulary, walk

pytestmark = [pytest.mark.boundary, pytest.mark.usefixtures("interface")]


class City(BaseModel):
    name: str
    population: int
    tags: list[str] = []


@dataclasses.dataclass
class Point:
    x: float
    y: float


SCHEMAS = [
    {"type": "object"},
    {},
    object_schema(name={"type": "string", "maxLength": 5}, age={"type": "integer", "minimum": 0, "maximum": 9}),
    {"enum": ["a", 1, None, {"b": [True]}]},
    {"const": "é\n\"\\"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3.0},
    {"anyOf": [{"type": "boolean"}, object_schema(x={"type": "null"})]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
        "left": {"$ref": "#/$defs/tree"}}, "additionalProperties": False}}},
    {"type": "string", "pattern": "^[a-c]{2,4}$", "maxLength": 3},
    {"type": "number", "multipleOf": 0.5, "exclusiveMaximum": 3},
    {"type": "string", "format": "date"},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"required": ["a"]}]},
    object_schema(**{"": {"type": "boolean"}, "with space": {"type": ["string", "null"]}}),
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "integer"}], "items": False, "minItems": 2},
    City.model_json_schema(),
    grammar.schema_of(Point),
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_random_walks_validate(schema: dict[str, object]) -> None:
    ended = 0
    for seed in range(12):
        text = walk(grammar.json_schema(schema), seed)
        if text is None:
            continue
        ended += 1
        Draft202012Validator(schema).validate(json.loads(text))
    assert ended >= 6


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "strng"}, "strng"),
        ({"type": 3}, "type"),
        ({"type": "array", "contains": {}, "uniqueItems": True}, 'contains", "uniqueItems'),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {}}, "then|if"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"$ref": "http://example.com/x.json"}, "example.com"),
        ({"$ref": "#/$defs/none"}, "none"),
        (False, "False"),
        (["a"], "object"),
        ("{", "no JSON"),
        ({"type": "string", "format": "no-such"}, "no-such"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(schema: object, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        vocabulary()[1].compile(grammar.json_schema(schema))  # type: ignore[arg-type]


def test_white_space_is_bounded() -> None:
    _, compiler, texts = vocabulary()
    matcher = compiler.compile(grammar.json_object()).matcher()
    space = texts.index(b" ")
    matcher.accept([texts.index(b"{")])
    count = 0
    while space in allowed(matcher):
        matcher.accept([space])
        count += 1
        assert count < 100
    assert count == 24


def test_regex_choice_and_lark() -> None:
    assert accepts(grammar.regex(r"a/[0-9]{2}"), "a/12")
    assert not accepts(grammar.regex(r"a/[0-9]{2}"), "a/1")
    options = grammar.choice(["yes", "no", 'say "é"\n'])
    assert all(accepts(options, text) for text in ("yes", "no", 'say "é"\n'))
    assert not accepts(options, "y")
    assert accepts(grammar.lark('start: "x"+ "y"'), "xxy")
    for wrong in (lambda: grammar.choice([]), lambda: grammar.choice("yes"), lambda: grammar.choice([""]),
                  lambda: grammar.regex(""), lambda: grammar.lark("a\0")):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            wrong()
    for spec in (grammar.regex("(a"), grammar.lark("start: nothing"), grammar.regex("(?=a)b")):
        with pytest.raises(InvalidArgumentError, match="refused"):
            vocabulary()[1].compile(spec)


def test_structural_tags() -> None:
    spec = grammar.structural_tags(
        [{"begin": "<f=a>", "schema": object_schema(x={"type": "integer"}), "end": "</f>"}], ["<f="]
    )
    assert accepts(spec, "free text")
    assert accepts(spec, 'so <f=a>{"x": 1}</f> and <f=a>{"x":2}</f> done')
    assert not accepts(spec, "so <f=b>")
    assert not accepts(spec, 'so <f=a>{"y": 1}</f>')
    with pytest.raises(InvalidArgumentError, match="no trigger"):
        grammar.structural_tags([{"begin": "<g>"}], ["<f="])


def test_types_become_schemas_and_objects() -> None:
    assert grammar.parse_as(City, '{"name": "Bern", "population": 3}') == City(name="Bern", population=3)
    assert grammar.parse_as(Point, '{"x": 1, "y": 2}') == Point(1.0, 2.0)
    assert grammar.parse_as({"type": "object"}, '{"a": 1}') == {"a": 1}
    assert grammar.schema_of('{"type": "null"}') == {"type": "null"}
    with pytest.raises(InvalidArgumentError, match="allowed"):
        grammar.schema_of(3)
    with pytest.raises(ValueError, match=r"JSON|line"):
        grammar.parse_as({"type": "object"}, '{"a": ')


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400 + ".0", "NaN", "-Infinity"])
def test_numbers_that_no_double_holds_are_not_parsed(number: str) -> None:
    with pytest.raises(ValueError, match="no number that a double can hold"):
        grammar.parse_as({"type": "object"}, f'{{"a": [{{"b": {number}}}]}}')
    assert grammar.parse_as({"type": "object"}, '{"a": [1e308, -0.0, 12]}') == {"a": [1e308, 0, 12]}


def test_rollback_and_end() -> None:
    tokenizer, compiler, texts = vocabulary()
    matcher = compiler.compile(grammar.regex("ab?")).matcher()
    a, b = texts.index(b"a"), texts.index(b"b")
    matcher.accept([a])
    assert matcher.can_end
    assert not matcher.must_end
    assert allowed(matcher) == sorted([b, tokenizer.special_tokens["</s>"]])
    matcher.accept([b])
    assert matcher.must_end
    matcher.rollback(1)
    assert not matcher.must_end
    assert b in allowed(matcher)


def test_the_cache_is_bounded() -> None:
    compiler = vocabulary()[1]
    for number in range(100):
        compiler.compile(grammar.regex(f"x{number}"))
    assert compiler.num_cached == 32
    assert compiler.compile(grammar.regex("x99")) is not None

    for number in range(10):  # the larger they are, the fewer
        compiler.compile(grammar.regex(f"{number}" * 200_000))
    assert compiler.num_cached == 5


INTEGER: dict[str, object] = {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {**INTEGER, "multipleOf": 10_001},
        {**INTEGER, "multipleOf": 999_983.0},
        {**INTEGER, "multipleOf": 99.9983},
        {**INTEGER, "multipleOf": 10**400},
        {**INTEGER, "multipleOf": 1e300},
        {"type": "number", "multipleOf": 99_999},
        {"allOf": [{**INTEGER, "multipleOf": each} for each in (97, 89, 83)]},
        {"anyOf": [{**INTEGER, "multipleOf": each} for each in (97, 89, 83, 79, 73, 71)]},
        object_schema(multipleOf={**INTEGER, "multipleOf": 20_011}, const={}),
        object_schema(const={**INTEGER, "multipleOf": 20_011}),
        {"$ref": "#/default", "default": {**INTEGER, "multipleOf": 20_011}},
        {"$ref": "#/$defs/a", "multipleOf": 9973, "$defs": {"a": {**INTEGER, "multipleOf": 7}}},
    ],
    ids=lambda schema: json.dumps(schema)[:50],
)
def test_multiples_that_would_take_long_are_refused_at_once(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"multipleOf .* up to 10000"):
        grammar.json_schema(schema)
    tool = {"type": "function", "function": {"name": "f", "parameters": object_schema(a=schema)}}
    with pytest.raises(InvalidArgumentError, match=r"multipleOf .* up to 10000"):
        grammar.tool_call_grammar("hermes", [tool])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**INTEGER, "multipleOf": 10_000}, "70000", "70001"),
        ({**INTEGER, "multipleOf": 9973}, str(9973 * 12345), str(9973 * 12345 + 1)),
        ({"allOf": [{**INTEGER, "multipleOf": each} for each in (97, 89)]}, str(97 * 89 * 5), str(97 * 5)),
        ({"anyOf": [{"type": "number", "multipleOf": each} for each in (0.01, 0.25, 100)]}, "3.75", "3.751"),
    ],
)
def test_multiples_within_the_bound_hold(schema: dict[str, object], good: str, bad: str) -> None:
    assert accepts(grammar.json_schema(schema), good)
    assert not accepts(grammar.json_schema(schema), bad)


def test_a_property_may_be_called_multiple_of() -> None:
    assert accepts(grammar.json_schema(object_schema(multipleOf={"const": 12345})), '{"multipleOf": 12345}')


def test_a_hostile_grammar_ends_in_an_error() -> None:
    matcher = vocabulary()[1].compile(grammar.regex("((a{1,30000}){1,30000}b){1,30000}")).matcher()
    with contextlib.suppress(InvalidArgumentError):  # "too complex", or it gets along
        matcher.bitmask()
    with pytest.raises(InvalidArgumentError, match="allowed"):
        vocabulary()[1].compile(grammar.regex("a" * (5 << 20)))


class Open(BaseModel, extra="allow"):
    inner: City


def test_objects_of_a_type_are_closed_unless_it_says_otherwise() -> None:
    schema = grammar.schema_of(Open)

    assert isinstance(schema, dict)
    assert schema["additionalProperties"] is True
    assert schema["$defs"]["City"]["additionalProperties"] is False
    assert grammar.schema_of(Point)["additionalProperties"] is False  # type: ignore[index]
    assert grammar.schema_of(dict[str, int])["additionalProperties"] == {"type": "integer"}  # type: ignore[index]
    assert grammar.schema_of(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    given = {"type": "object", "properties": {"a": {}}}
    assert grammar.schema_of(given) == given


def test_property_may_have_the_name_of_a_keyword() -> None:
    @dataclasses.dataclass
    class Odd:
        properties: int
        default: Point
        format: str

    schema = grammar.schema_of(Odd)

    text = '{"properties": 1, "default": {"x": 0, "y": 1}, "format": "binary"}'
    assert accepts(grammar.json_schema(schema), text)
    assert not accepts(grammar.json_schema(schema), text[:-1] + ', "z": 1}')


def test_formats_that_say_nothing_about_the_text_are_allowed() -> None:
    schema = {"type": "string", "format": "binary", "maxLength": 3}

    assert accepts(grammar.json_schema(schema), '"ab"')
    assert not accepts(grammar.json_schema(schema), '"abcd"')


def test_type_without_a_schema_is_refused() -> None:
    class Odd:
        pass

    with pytest.raises(InvalidArgumentError, match="Odd"):
        grammar.schema_of(Odd)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}])
def test_a_schema_that_only_refers_to_itself_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="refused"):
        vocabulary()[1].compile(grammar.json_schema(schema))


def test_many_choices() -> None:
    options = [f"val{number}" for number in range(5000)]
    assert accepts(grammar.choice(options), "val4999")
    assert not accepts(grammar.choice(options), "val5000")


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, r'{"a":1,"\u0061":"x"}', '{"a":1,"b":"x"}'),
        (
            {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
            r'{"\u0078":"x"}',
            '{"x":1,"y":"x"}',
        ),
        ({"properties": {"a": {}}, "required": ["a"], "minProperties": 2}, '{"a":1,"a":2}', '{"a":1,"b":2}'),
    ],
)
def test_a_property_has_one_spelling(schema: dict[str, object], wrong: str, right: str) -> None:
    spec = grammar.json_schema({"type": "object", **schema})
    assert not Draft202012Validator(schema).is_valid(json.loads(wrong))
    assert not accepts(spec, wrong)
    assert accepts(spec, right)


def test_control_characters_of_values_are_written_as_escapes() -> None:
    assert accepts(grammar.json_schema({"const": "a\x01\n"}), r'"a\u0001\n"')
    assert accepts(grammar.json_schema({"enum": [["\0"]]}), r'["\u0000"]')
    assert accepts(grammar.json_schema({"properties": {"a\x01": {}}}), r'{"a\u0001":1}')


@pytest.mark.parametrize("lower", ["minimum", "exclusiveMinimum"])
@pytest.mark.parametrize("upper", ["maximum", "exclusiveMaximum"])
def test_bounds_of_a_number_are_kept_or_refused_by_name(lower: str, upper: str) -> None:
    ends = ["-1.5", "-1", "0", "0.25", "1"]
    numbers = ["-2", "-1.5", "-1.2", "-1", "-0", "0", "0.1", "0.25", "1", "2"]
    shares_whole_part = {("0", "0.25"): "exclusiveMinimum", ("-1.5", "-1"): "exclusiveMaximum"}
    for low, high in itertools.combinations(ends, 2):
        schema = {"type": "number", lower: json.loads(low), upper: json.loads(high)}
        bound = shares_whole_part.get((low, high))
        if bound in (lower, upper):
            with pytest.raises(InvalidArgumentError, match=rf"^{bound} (0|-1) with ({lower}|{upper}) "):
                grammar.json_schema(schema)
            continue
        spec = grammar.json_schema(schema)
        for number in numbers:
            if accepts(spec, number):
                Draft202012Validator(schema).validate(json.loads(number))


@pytest.mark.parametrize(
    "schema", [{"minProperties": 2}, {"type": "object", "required": ["a"], "minProperties": 2, "properties": {}}]
)
def test_a_least_number_of_any_properties_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^minProperties 2"):
        grammar.json_schema(schema)
    grammar.json_schema({**schema, "type": "string"})


def test_properties_with_names_of_keywords_are_schemas() -> None:
    names = ("default", "const", "enum", "examples", "properties", "$defs")
    inner = {"type": "string", "format": "binary", "maxLength": 2.0}
    spec = grammar.json_schema({"type": "object", "properties": dict.fromkeys(names, inner), "required": list(names)})

    assert accepts(spec, json.dumps(dict.fromkeys(names, "ab")))
    assert not accepts(spec, json.dumps({**dict.fromkeys(names, "ab"), "const": "abc"}))
