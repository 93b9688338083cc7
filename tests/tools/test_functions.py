"""Tools from Python functions."""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional

import pytest

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.pipelines.chat import ChatRequest, listed_tools
from onnx_genai.tools import function_tool


def get_weather(city: str, days: int = 1, *, unit: Literal["C", "F"] = "C") -> str:
    """Weather of a city.

    It may be wrong.

    Args:
        city: Its name,
            as people say it.
        days (int): How many days.
        unit: Of temperatures.

    Returns:
        A sentence.
    """
    raise AssertionError("a tool is described, not called")


def test_function_becomes_the_object_of_openai() -> None:
    assert function_tool(get_weather) == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.\n\nIt may be wrong.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name, as people say it."},
                    "days": {"type": "integer", "description": "How many days."},
                    "unit": {"enum": ["C", "F"], "description": "Of temperatures."},
                },
                "required": ["city"],
            },
        },
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (Sequence[list[bool]], {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}),
        (dict, {"type": "object"}),
        (Mapping[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
        (Literal["a", 2, None, True], {"enum": ["a", 2, None, True]}),
        (tuple, {"type": "array"}),
        (typing.Tuple, {"type": "array"}),  # noqa: UP006
        (tuple[()], {"type": "array", "maxItems": 0}),
        (tuple[int, int], {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
    ],
)
def test_annotation_becomes_a_schema(hint: Any, schema: dict[str, Any]) -> None:
    def tool(x: int) -> None: ...

    tool.__annotations__["x"] = hint

    assert function_tool(tool)["function"]["parameters"]["properties"] == {"x": schema}
    assert "description" not in function_tool(tool)["function"]


def _bare(x): ...  # type: ignore[no-untyped-def]


def _many(*x: int) -> None: ...


def _odd(x: complex) -> None: ...


def _pair(x: tuple[int, str]) -> None: ...


def _unknown(x: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class _Unit(enum.Enum):
    C = "C"


class _Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("pytest.Nope", "AttributeError"),
        ("a b", "SyntaxError"),
        ("", "SyntaxError|IndexError"),
        ("1/0", "ZeroDivisionError"),
        ([1, 2], r"\[1, 2\]"),
        ({"x": 1}, "{'x': 1}"),
        (5, "5"),
        (Literal[b"x"], "b'x'"),
        (Optional[Literal[b"x"]], "b'x'"),  # noqa: UP045
        (Literal[_Unit.C], "_Unit.C"),
        (Literal[_Level.LOW], "_Level.LOW"),
        (Literal[float("nan")], "nan"),  # type: ignore[valid-type]
        (list[int, str], "list.int, str."),  # type: ignore[type-arg]
    ],
    ids=str,
)
def test_annotation_that_has_no_schema_is_refused(hint: Any, said: str) -> None:
    def tool(x: int) -> None: ...

    tool.__annotations__["x"] = hint

    with pytest.raises(InvalidArgumentError, match=said) as caught:
        function_tool(tool)
    assert '{"type": "function", "function": {"name": ' in str(caught.value)


def test_a_section_begins_on_a_line_of_its_own() -> None:
    def tool(x: int) -> None:
        """Usage of Args:
        as they are.

        Args:
            x: One.
        """

    assert function_tool(tool)["function"]["description"] == "Usage of Args:\nas they are."
    assert function_tool(tool)["function"]["parameters"]["properties"]["x"]["description"] == "One."


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (_bare, "the argument x of _bare has no annotation; write x: str"),
        (_many, "_many has the argument *x: "),
        (_odd, "the argument x of _odd is annotated <class 'complex'>, which has no JSON schema here"),
        (_pair, "tuple[int, str]"),
        (_unknown, "NoSuchType"),
        (int, "the tool int is no function"),
    ],
)
def test_function_that_cannot_be_described_is_refused_with_the_way_out(tool: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        function_tool(tool)

    assert said in str(caught.value)
    assert "write x: str" in said or '{"type": "function", "function": {"name": ' in str(caught.value)


def test_chat_takes_functions_beside_objects() -> None:
    other = {"type": "function", "function": {"name": "other"}}

    tools = listed_tools([get_weather, other])

    assert ChatRequest(tools=tools, tool_choice="required").tools == (function_tool(get_weather), other)
    with pytest.raises(InvalidArgumentError, match=r"tools\[0\] is str; allowed: a mapping, or a function"):
        ChatRequest(tools=listed_tools(["get_weather"]))  # type: ignore[list-item]
