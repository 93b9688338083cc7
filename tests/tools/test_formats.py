"""Tool calls of every format: documented examples, every cut, and mutations that must never become a call."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tools import FORMATS, Call, ToolCallParser, ToolFormat, detect_format, get_format, parse_tool_calls

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
            },
        },
    },
    {"name": "now"},
]
WEATHER = {"city": "Zürich", "days": 3}


@dataclass(frozen=True)
class Example:
    """What a model writes, the text that stays, and the calls."""

    form: str
    text: str
    calls: tuple[tuple[str, object], ...] = (("get_weather", WEATHER),)
    content: str = ""


W = json.dumps(WEATHER, ensure_ascii=False)
EXAMPLES = [
    Example("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {W}}}\n</tool_call>'),
    Example(
        "hermes",
        f'Let me look.\n<tool_call>{{"name": "get_weather", "arguments": {W}}}</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        (("get_weather", WEATHER), ("now", {})),
        "Let me look.\n",
    ),
    Example(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a </tool_call> \\" } b"}}</tool_call>',
        (("get_weather", {"city": 'a </tool_call> " } b'}),),
    ),
    Example(
        "hermes",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    Example(
        "hermes",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\n3\n</parameter>\n<parameter=tags>\n["a", 1]\n'
        "</parameter>\n</function>\n</tool_call>done",
        (("get_weather", {"city": "3", "tags": ["a", 1]}),),
        "done",
    ),
    Example("hermes", '<tool_call>{"name": "now"}</tool_call>', (("now", {}),)),
    Example("hermes", '<tool_call>{"name": "now", "arguments": "{}"}', (("now", {}),)),
    Example("llama3_json", f'{{"name": "get_weather", "parameters": {W}}}'),
    Example("llama3_json", f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {W}}}'),
    Example(
        "llama3_json",
        f'{{"name": "get_weather", "parameters": {W}}}; {{"name": "now", "parameters": {{}}}}',
        (("get_weather", WEATHER), ("now", {})),
    ),
    Example("llama3_json", '<|python_tag|>brave_search.call(query="cats")', (("brave_search", {"query": "cats"}),)),
    Example("llama3_json", '{"name": "Bob", "parameters": {}}', (), '{"name": "Bob", "parameters": {}}'),
    Example("llama3_json", "<|python_tag|>print(1 + 2)", (), "<|python_tag|>print(1 + 2)"),
    Example(
        "mistral",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {W}}}, {{"name": "now", "arguments": {{}}}}]',
        (("get_weather", WEATHER), ("now", {})),
    ),
    Example("mistral", f"Sure.[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{W}", content="Sure."),
    Example("mistral", f"[TOOL_CALLS]get_weather{W}[TOOL_CALLS]now{{}}", (("get_weather", WEATHER), ("now", {}))),
    Example(
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{W}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (("get_weather", WEATHER), ("now", {})),
    ),
    Example(
        "deepseek",
        f"Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{W}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        content="Well.",
    ),
    Example(
        "command_r",
        f'Action: ```json\n[\n    {{"tool_name": "get_weather", "parameters": {W}}}\n]\n```',
    ),
    Example("command_r", 'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]\n```', ()),
    Example(
        "command_r7b",
        f'<|START_ACTION|>[\n {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {W}}}\n]<|END_ACTION|>',
    ),
    Example("phi4", f'<|tool_call|>[{{"name": "get_weather", "arguments": {W}}}]<|/tool_call|>'),
    Example("functools", f'functools[{{"name": "get_weather", "arguments": {W}}}]'),
    Example("granite", f'<|tool_call|>[{{"name": "get_weather", "arguments": {W}}}]'),
    Example("gemma", '```tool_code\nget_weather(city="Zürich", days=3)\n```'),
    Example("gemma", 'Hm.\n```tool_code\nprint(get_weather(city="Zürich", days=3))\nnow()\n```', (
        ("get_weather", WEATHER), ("now", {})), "Hm.\n"),
    Example(
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Zürich<escape>,days:3}<end_function_call>",
    ),
    Example(
        "function_gemma",
        '<start_function_call>call:get_weather{city:<escape>a "b", c:1 <end_function_call><escape>}<end_function_call>',
        (("get_weather", {"city": 'a "b", c:1 <end_function_call>'}),),
    ),
    Example("pythonic", '[get_weather(city="Zürich", days=3), now()]', (("get_weather", WEATHER), ("now", {}))),
    Example("pythonic", '[get_weather(city="]", tags=[true, null, {"a": -1.5}])]', (
        ("get_weather", {"city": "]", "tags": [True, None, {"a": -1.5}]}),)),
    Example("pythonic", "[a link](http://x) and text", (), "[a link](http://x) and text"),
    Example("pythonic", '[rm(path="/")]', (), '[rm(path="/")]'),
    Example(
        "channels",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + W + "<|call|>",
    ),
    Example(
        "channels",
        "<|start|>assistant<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant to=functions.get_weather"
        "<|channel|>commentary json<|message|>" + W + "<|call|>",
        content="Looking.",
    ),
    Example("channels", "<|channel|>final<|message|>It rains.<|return|>", (), "It rains."),
]  # fmt: skip
IDS = [f"{example.form}-{number}" for number, example in enumerate(EXAMPLES)]


def streamed(pieces: list[str], form: ToolFormat) -> tuple[str, tuple[Call, ...]]:
    parser = ToolCallParser(form, TOOLS)
    items = [item for piece in pieces for item in parser.feed(piece)] + parser.finish()
    return "".join(item for item in items if isinstance(item, str)), tuple(
        item for item in items if isinstance(item, Call)
    )


def check_calls(calls: tuple[Call, ...]) -> list[tuple[str, object]]:
    """Every call is well formed, whatever the text was."""
    out = []
    for call in calls:
        assert call.name
        arguments = json.loads(call.arguments)
        assert isinstance(arguments, dict)
        call.arguments.encode("utf-8")
        out.append((call.name, arguments))
    return out


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_documented_examples_at_every_cut(example: Example) -> None:
    form = FORMATS[example.form]
    content, calls = parse_tool_calls(example.text, form, TOOLS)
    assert check_calls(calls) == list(example.calls)
    assert content == example.content
    for cut in range(len(example.text) + 1):
        assert streamed([example.text[:cut], example.text[cut:]], form) == (content, calls), cut
    assert streamed(list(example.text), form) == (content, calls)


def mutations(text: str, count: int, seed: int) -> list[str]:
    """Texts that differ from the example in a few places: cut, doubled, swapped, replaced."""
    random_source = random.Random(seed)
    out = []
    marks = [
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        ",",
        ":",
        "\\",
        "<",
        ">",
        "\n",
        " ",
        "NaN",
        "1e999",
        "\\ud800",
        "\0",
        "```",
        "</",
    ]
    for _ in range(count):
        mutant = text
        for _ in range(random_source.randint(1, 3)):
            place = random_source.randrange(len(mutant) + 1)
            kind = random_source.randrange(4)
            if kind == 0:
                mutant = mutant[:place]
            elif kind == 1:
                mutant = mutant[:place] + random_source.choice(marks) + mutant[place:]
            elif kind == 2:
                mutant = mutant[:place] + mutant[place + random_source.randint(1, 4) :]
            else:
                other = random_source.randrange(len(mutant) + 1)
                mutant = mutant[:place] + mutant[min(place, other) : max(place, other)] + mutant[place:]
            if not mutant:
                mutant = text[:3]
        out.append(mutant)
    return out


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_mutations_never_raise_and_never_depend_on_the_cut(example: Example) -> None:
    form = FORMATS[example.form]
    for number, mutant in enumerate(mutations(example.text, 200, seed=7)):
        content, calls = parse_tool_calls(mutant, form, TOOLS)
        check_calls(calls)
        for call in calls:
            # Nothing is invented: the name stands in the text, letter by letter.
            assert call.name in mutant
        for cut in range(1, len(mutant)):
            assert streamed([mutant[:cut], mutant[cut:]], form) == (content, calls), (mutant, cut)
        cuts = random.Random(number)
        places = sorted({cuts.randrange(len(mutant) + 1) for _ in range(4)} | {0, len(mutant)})
        pieces = [mutant[a:b] for a, b in itertools.pairwise(places)]
        assert streamed(pieces, form) == (content, calls), mutant
        assert streamed(list(mutant), form) == (content, calls), mutant


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1,}}</tool_call>'),
        ("hermes", "<tool_call>{'name': 'now'}</tool_call>"),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 3}</tool_call>'),
        ("hermes", "<tool_call> what is this </tool_call>"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{now\n```json\n{}\n```<｜tool▁call▁end｜>"),
        ("hermes", "<tool_call><function=now><parameter=a>1</function></tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name": "now"}, {"nome": "x"}]'),
        ("phi4", '<|tool_call|>[{"name": "now", "arguments": 3}]<|/tool_call|>'),
        ("gemma", "```tool_code\nimport os; os.remove('x')\n```"),
        ("gemma", "```tool_code\nnow(open('/etc/passwd'))\n```"),
        ("gemma", "```tool_code\nnow(a=f())\n```"),
        ("pythonic", "[now(a={[1]: 2})]"),
        ("pythonic", "[now(a={1: 2})]"),
        ("pythonic", "[now(a=0x" + "f" * 5000 + ")]"),
        ("pythonic", "[now" + ".b" * 400 + "()]"),
        ("pythonic", "[now" + ".b" * 20_000 + "()]"),
        ("pythonic", "[now(a=" + "-" * 20_000 + "1)]"),
        ("pythonic", "[now(a=" + "1+" * 20_000 + "1j)]"),
        ("pythonic", "[now(a=" + "[" * 5000 + "]" * 5000 + ")]"),
        ("gemma", "```tool_code\nnow(a={[1]: 2})\n```"),
        ("gemma", "```tool_code\nnow(a={{1}})\n```"),
        ("llama3_json", "<|python_tag|>now.call(a={[1]: 2})"),
        ("function_gemma", "<start_function_call>call:now{a:1<escape>x<escape>}<end_function_call>"),
        ("function_gemma", "<start_function_call>call:now{a:\0,b:<escape>x<escape>}<end_function_call>"),
        ("function_gemma", "<start_function_call>call:now{a:" + "1" * 5000 + "}<end_function_call>"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>"),
        ("hermes", '<tool_call>{"name": "now", "arguments": "' + "[" * 100_000 + '"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}</tool_call>"),
        ("mistral", "[TOOL_CALLS]now" + " " * 20_000 + "!"),
        ("deepseek", "<｜tool▁call▁begin｜>" + " " * 20_000 + "!<｜tool▁call▁end｜>"),
        ("channels", "<|channel|>final" + " " * 5000 + "!<|message|>x"),
        ("channels", '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": 1<|call|>'),
        ("pythonic", "[now(1)]"),
        ("pythonic", "[now(**{})]"),
    ],
)
def test_malformed_calls_stay_text(form: str, text: str) -> None:
    parser = ToolCallParser(FORMATS[form], TOOLS)
    items = [*parser.feed(text), *parser.finish()]
    assert "".join(item for item in items if isinstance(item, str)) == text
    assert all(isinstance(item, str) for item in items)
    assert parser.malformed == 1
    assert streamed(list(text), FORMATS[form]) == parse_tool_calls(text, FORMATS[form], TOOLS)


@pytest.mark.parametrize("prefix", ["", "r", "u"])
@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_texts_in_code_may_be_long_and_code_may_not(prefix: str, quote: str) -> None:
    long = "1.5+" * 50_000
    _, calls = parse_tool_calls(f"[now(a={prefix}{quote}{long}{quote}, b='x')]", FORMATS["pythonic"], TOOLS)
    assert check_calls(calls) == [("now", {"a": long, "b": "x"})]

    for code in (f"[now(a={long}1)]", f"[now(a=f{quote}{{{long}1}}{quote})]", f"[now(a='', b={long}1, c='')]"):
        assert parse_tool_calls(code, FORMATS["pythonic"], TOOLS) == (code, ())


@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", "<|return|>", "<|start|>"])
def test_an_empty_message_that_has_ended_is_an_empty_object(end: str) -> None:
    head = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"
    _, calls = parse_tool_calls(head + end, FORMATS["channels"])
    assert calls == (Call("now", "{}"),)


def test_any_number_of_calls_in_a_row() -> None:
    parser = ToolCallParser(FORMATS["llama3_json"], TOOLS)
    items = parser.feed('{"name": "now", "parameters": {}}; ' * 2000)
    assert items == [Call("now", "{}")] * 2000
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "now"};', "", 1),
        ('{"name": "now"} ;\n', "", 1),
        ('{"name": "now"}; and', "; and", 1),
        ('{"name": "now"};{"a": 1}', ';{"a": 1}', 1),
        ('{"name": "now"};{"name": "rm"}', ';{"name": "rm"}', 1),
        ('{"name": "now"};{"name": ', ';{"name": ', 1),
        ('{"name": "now"};{"nome": ', ';{"nome": ', 1),
        ('{"name": "now"} {"name": "now"}', "", 2),
        ('<|python_tag|>{"name": "rm"}; {"name": "now"}', "", 2),
        (";", ";", 0),
        (';{"name": "now"}', ';{"name": "now"}', 0),
    ],
)
def test_semicolons_stand_between_calls_only(text: str, content: str, calls: int) -> None:
    form = FORMATS["llama3_json"]
    found = parse_tool_calls(text, form, TOOLS)
    assert (found[0], len(found[1])) == (content, calls)
    assert streamed(list(text), form) == found


def test_escaped_texts_may_hold_anything() -> None:
    text = "<start_function_call>call:now{a:<escape>0\0, b:1<escape>,c:<escape>\\1<escape>,d:2}<end_function_call>"
    _, calls = parse_tool_calls(text, FORMATS["function_gemma"], TOOLS)
    assert check_calls(calls) == [("now", {"a": "0\0, b:1", "c": "\\1", "d": 2})]


INTEGER = {"type": "integer"}
DEFS = {"N": INTEGER, "S": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}, "a/b": INTEGER,
        "Arguments": {"properties": {"n": INTEGER}}}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        (INTEGER, "5", 5),
        ({"anyOf": [INTEGER, {"type": "null"}]}, "5", 5),
        ({"anyOf": [INTEGER, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "number"}]}, "5", 5),
        ({"allOf": [INTEGER]}, "5", 5),
        ({"allOf": [{"$ref": "#/$defs/N"}, {"title": "x"}]}, "5", 5),
        ({"$ref": "#/$defs/N"}, "5", 5),
        ({"$ref": "#/$defs/a~1b"}, "5", 5),
        ({"$ref": "#/$defs/S"}, "5", "5"),
        ({"$ref": "#/$defs/Loop"}, "5", "5"),
        ({"$ref": "#/nothing"}, "5", "5"),
        ({"enum": [5, 6]}, "5", 5),
        ({"enum": [5, "auto"]}, "auto", "auto"),
        ({"enum": [5, "5"]}, "5", "5"),
        ({"enum": ["a", "b"]}, "5", "5"),
        ({"const": 5}, "5", 5),
        ({"const": "5"}, "5", "5"),
        ({"const": None}, "null", None),
        ({"type": ["integer", "string"]}, "5", "5"),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [INTEGER, {"type": "string"}]}, "5", "5"),
        ({"anyOf": [{"$ref": "#/$defs/N"}, {"type": "array", "items": INTEGER}]}, "[5]", [5]),
        ({"type": "boolean"}, "true", True),
        ({"description": "any"}, "5", "5"),
        (True, "5", "5"),
        ({}, "5", "5"),
    ],
)
def test_xml_values_have_the_type_of_their_schema(schema: object, written: str, value: object) -> None:
    parameters = {"type": "object", "properties": {"n": schema}, "$defs": DEFS}
    text = f"<tool_call>\n<function=f>\n<parameter=n>\n{written}\n</parameter>\n</function>\n</tool_call>"
    _, calls = parse_tool_calls(text, FORMATS["hermes"], [{"name": "f", "parameters": parameters}])
    assert check_calls(calls) == [("f", {"n": value})]


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/Arguments"},
        {"allOf": [{"$ref": "#/$defs/Arguments"}, {"properties": {"m": {"type": "string"}}}]},
        {"anyOf": [{"properties": {"m": INTEGER}}, {"$ref": "#/$defs/Arguments"}]},
        {"additionalProperties": INTEGER},
    ],
)
def test_xml_values_are_known_wherever_their_schema_stands(parameters: dict[str, object]) -> None:
    text = "<tool_call><function=f><parameter=n>5</parameter><parameter=x y>7</parameter></function></tool_call>"
    _, calls = parse_tool_calls(text, FORMATS["hermes"], [{"name": "f", "parameters": {**parameters, "$defs": DEFS}}])
    other = 7 if "additionalProperties" in parameters else "7"
    assert check_calls(calls) == [("f", {"n": 5, "x y": other})]


def test_a_broken_block_does_not_hide_the_next() -> None:
    text = '<tool_call>{"name": "now", "arguments": {</tool_call>\n<tool_call>{"name": "now"}</tool_call>'
    content, calls = parse_tool_calls(text, FORMATS["hermes"], TOOLS)
    assert [call.name for call in calls] == ["now"]
    assert content == '<tool_call>{"name": "now", "arguments": {</tool_call>\n'


def test_arguments_beat_parameters() -> None:
    _, calls = parse_tool_calls('<tool_call>{"name": "now", "parameters": {"a": 1}, "arguments": {"b": 2}}</tool_call>',
                                FORMATS["hermes"])  # fmt: skip
    assert check_calls(calls) == [("now", {"b": 2})]


def test_lone_surrogates_stay_escaped() -> None:
    _, calls = parse_tool_calls(
        '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d"}}</tool_call>', FORMATS["hermes"]
    )
    assert calls[0].arguments == '{"a": "\\ud83d"}'


@pytest.mark.parametrize(("form", "text"), [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": %s}}</tool_call>'),
    ("pythonic", "[now(a=%s)]"),
])  # fmt: skip
def test_arguments_have_at_most_a_hundred_levels(form: str, text: str) -> None:
    for levels, count in ((98, 1), (99, 1), (100, 0), (150, 0), (900, 0)):
        whole = text % ("[" * levels + "]" * levels)
        content, calls = parse_tool_calls(whole, FORMATS[form], TOOLS)
        assert (len(calls), content) == (count, "" if count else whole), levels


def test_ids_of_the_model_are_kept() -> None:
    _, calls = parse_tool_calls("[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}", FORMATS["mistral"])
    assert calls == (Call("now", "{}", "a1b2c3d4e"),)


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("text", ["", " \n", "plain text", " two  words \n", "a { b [ c < d"])
def test_text_without_calls_is_not_touched(form: str, text: str) -> None:
    assert parse_tool_calls(text, FORMATS[form], TOOLS) == (text, ())


OPENERS = {name: (*form.openers, *form.at_start, *form.after_call) for name, form in FORMATS.items()}


@given(st.text(alphabet="<>{}[]\"'\\/|tool_calfunction=:,;()` \n1", max_size=80), st.sampled_from(sorted(FORMATS)))
def test_any_text_is_either_text_or_calls(text: str, form: str) -> None:
    content, calls = parse_tool_calls(text, FORMATS[form], TOOLS)
    check_calls(calls)
    if not calls and form != "channels":
        assert content == text or text.replace(content, "", 1).strip().startswith(OPENERS[form])
    assert streamed(list(text), FORMATS[form]) == (content, calls)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
        ("<|tool_call|>x<|/tool_call|>", "phi4"),
        ("<|tool_call|>", "granite"),
        ("<|START_ACTION|>", "command_r7b"),
        ("<|start|>assistant<|channel|>", "channels"),
    ],
)
def test_detects_the_format_from_the_template(source: str, form: str) -> None:
    found = detect_format(source)
    assert found is FORMATS[form]


def test_detects_the_format_from_the_tokens() -> None:
    found = detect_format("{{ messages }}", ["<s>", "[TOOL_CALLS]"])
    assert found is FORMATS["mistral"]
    assert detect_format("{{ messages }}", ["<s>"]) is None


def test_unknown_names_are_refused() -> None:
    assert get_format("hermes") is FORMATS["hermes"]
    with pytest.raises(InvalidArgumentError, match="allowed: hermes"):
        get_format("nosuch")
