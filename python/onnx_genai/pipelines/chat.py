"""What a chat asks for: tools, a form of the answer, reasoning. :class:`ChatRequest` becomes an :class:`AnswerForm`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx_genai import grammar
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar import GrammarSpec
from onnx_genai.pipelines.answer import AnswerForm, AnswerParser, was_cut
from onnx_genai.reasoning import ReasoningMarkers, find_markers
from onnx_genai.template import ChatTemplate
from onnx_genai.tools import FORMATS, ToolFormat, detect_format, function_tool, get_format
from onnx_genai.types import ChatChunk, Choice, Chunk, FinishReason, Result, SamplingParams, ToolCall

__all__ = [
    "ChatAbilities",
    "ChatReader",
    "ChatRequest",
    "PreparedChat",
    "Tool",
    "ToolChoice",
    "calls_as_text",
    "listed_tools",
    "tools_as_text",
]

ToolChoice = Literal["none", "auto", "required"] | Mapping[str, Any]
"""Whether tools are called; a mapping names one: ``{"type": "function", "function": {"name": ...}}``."""

Tool = Mapping[str, Any] | Callable[..., Any]
"""OpenAI's object, or a function, which is described by its annotations; see :func:`onnx_genai.tools.function_tool`."""

_log = logging.getLogger("onnx_genai")

DEFAULT_FORMAT = "hermes"
"""For models whose template knows no tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAbilities:
    """What a package's model does in a chat, as its template and tokenizer tell."""

    reasoning: ReasoningMarkers | None
    tool_format: ToolFormat | None
    special_tokens: Mapping[str, int]

    @classmethod
    def of(
        cls, template: ChatTemplate | None, special_tokens: Mapping[str, int], added_tokens: Collection[str]
    ) -> ChatAbilities:
        """Looks at the templates first, then at the tokens: for calls at the template that is given the tools."""
        usual, with_tools = ("" if template is None else template.source_for(tools=tools) for tools in (False, True))
        return cls(
            reasoning=find_markers(usual) or find_markers(with_tools, added_tokens),
            tool_format=detect_format(with_tools, added_tokens),
            special_tokens=special_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """The part of a chat call that is about the form of its answer. Checked when it is made."""

    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    tool_format: str | None = None
    """Name of a format; None takes the one that the template shows."""
    enforce_tool_calls: bool = False
    """With ``auto``: once a call has begun, it must become a right one."""
    response_format: Any = None
    """None, OpenAI's object, a :class:`~onnx_genai.grammar.GrammarSpec`, a JSON schema, a pydantic model or a type."""

    def __post_init__(self) -> None:
        for number, tool in enumerate(self.tools):
            if not isinstance(tool, Mapping):
                raise InvalidArgumentError(
                    f"tools[{number}] is {type(tool).__name__}; allowed: a mapping, or a function"
                )
            if tool.get("type", "function") != "function":
                raise InvalidArgumentError(f"tools[{number}] has the type {tool['type']!r}; allowed: function")
            function = tool.get("function", tool)
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
                raise InvalidArgumentError(f"tools[{number}] has no function name")
            if not isinstance(function.get("parameters", {}), (Mapping, type(None))):
                raise InvalidArgumentError(f"tools[{number}].function.parameters is no JSON schema (an object)")
        names = self._names()
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(f"two tools are called {name!r}; give each a name of its own")
        if isinstance(self.tool_choice, Mapping):
            if self.required_name not in self._names():
                raise InvalidArgumentError(
                    f"tool_choice names {self.required_name!r}; the tools are {', '.join(self._names()) or '(none)'}"
                )
        elif self.tool_choice not in ("none", "auto", "required"):
            raise InvalidArgumentError(
                f"tool_choice is {self.tool_choice!r}; allowed: none, auto, required, or an object that names a "
                "function"
            )
        elif self.tool_choice == "required" and not self.tools:
            raise InvalidArgumentError("tool_choice is 'required', but there are no tools")
        if self.tool_format is not None:
            get_format(self.tool_format)
        self.answer_grammar()

    def _names(self) -> list[str]:
        return [tool.get("function", tool)["name"] for tool in self.tools]

    @property
    def required_name(self) -> str | None:
        """The function that must be called."""
        if not isinstance(self.tool_choice, Mapping):
            return None
        function = self.tool_choice.get("function", self.tool_choice)
        return function.get("name") if isinstance(function, Mapping) else None

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, Mapping)

    @property
    def offered_tools(self) -> tuple[Mapping[str, Any], ...]:
        """Tools that the prompt shows; none with ``tool_choice="none"``."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def parse_type(self) -> Any:
        """What the text is parsed as; None if it stays text."""
        form = self.response_format
        if form is None:
            return None
        if isinstance(form, GrammarSpec):
            return {} if form.kind == "json_schema" else None
        if isinstance(form, Mapping) and _is_openai(form):
            return None if form.get("type") == "text" else {}
        return form

    def answer_grammar(self) -> GrammarSpec | None:
        """The grammar of an answer without calls; None if it is free.

        Raises:
            InvalidArgumentError: ``response_format`` is nothing that can be enforced.
        """
        form = self.response_format
        if form is None or isinstance(form, GrammarSpec):
            return form
        if isinstance(form, Mapping) and _is_openai(form):
            return _openai_format(form)
        return grammar.json_schema(grammar.schema_of(form))

    def format_of_calls(self, shown: ToolFormat | None) -> ToolFormat:
        """The format that calls are written in; ``shown`` is that of the template, if it shows the tools."""
        if self.tool_format is not None:
            return get_format(self.tool_format)
        return shown or FORMATS[DEFAULT_FORMAT]

    def answer_form(
        self, abilities: ChatAbilities, tool_format: ToolFormat | None, *, inside_reasoning: bool
    ) -> tuple[AnswerForm, GrammarSpec | None]:
        """How answers are taken apart, and the grammar that they must follow.

        Args:
            abilities: What the model does.
            tool_format: How calls are written; None when no tools are offered.
            inside_reasoning: The prompt has opened the reasoning already.
        """
        markers = abilities.reasoning
        spec = self._grammar(tool_format, abilities.special_tokens)
        if spec is not None and markers is not None and not markers.repeats:
            spec = grammar.after_reasoning(
                spec, start=markers.start, end=markers.end, inside=inside_reasoning, special=abilities.special_tokens
            )
        form = AnswerForm(
            reasoning=markers, inside_reasoning=inside_reasoning, tool_format=tool_format, tools=self.offered_tools
        )
        return form, spec

    @staticmethod
    def visible_tokens(form: AnswerForm, special: Mapping[str, int]) -> tuple[int, ...]:
        """Special tokens that are marks of the answer's parts, so that they must be seen."""
        marks = (*form.reasoning_marks, *form.call_marks)
        return tuple(token for text, token in special.items() if text and any(text in mark for mark in marks))

    def _grammar(self, tool_format: ToolFormat | None, special: Mapping[str, int]) -> GrammarSpec | None:
        answer = None if self.must_call else self.answer_grammar()
        if tool_format is None or not (self.must_call or self.enforce_tool_calls or answer is not None):
            return answer
        calls = grammar.tool_call_grammar(
            tool_format.name,
            self.offered_tools,
            mode="required" if self.must_call or answer is not None else "auto",
            only=self.required_name,
            parallel=self.parallel_tool_calls,
            special=special,
        )
        if calls is None or answer is None:
            return calls
        return grammar.calls_or_answer(calls, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """A chat that is ready to be submitted, and how its answers are read."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    form: AnswerForm
    grammar: GrammarSpec | None
    parse_type: Any

    def read(self, result: Result) -> Result:
        """The result with its texts taken apart."""
        choices = tuple(self._read_choice(choice) for choice in result.choices)
        return dataclasses.replace(result, choices=choices, prompt_token_ids=self.prompt_ids)

    def _read_choice(self, choice: Choice) -> Choice:
        parser = self.form.parser()
        pieces = [*parser.feed(choice.text), *parser.finish(was_cut=was_cut(choice))]
        text = "".join(piece.content for piece in pieces)
        reasoning = "".join(piece.reasoning for piece in pieces)
        calls = tuple(piece.tool_call for piece in pieces if piece.tool_call is not None)
        parsed = None
        if self.parse_type is not None and not calls and choice.finish_reason != "length":
            # An answer that was cut off, also where it fits, or is nested deeper than Python goes, stays text.
            with contextlib.suppress(ValueError, RecursionError):
                parsed = grammar.parse_as(self.parse_type, text)
        _tell(parser, choice.finish_reason)
        return dataclasses.replace(
            choice,
            text=text,
            reasoning=reasoning if parser.has_reasoning else None,
            tool_calls=calls,
            unfinished_call=parser.unfinished_call,
            malformed_calls=parser.malformed_calls,
            parsed=parsed,
        )

    def reader(self) -> ChatReader:
        """Reads a stream of chunks."""
        return ChatReader(self.form)


class ChatReader:
    """Turns the chunks of a request into those of a chat."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._parsers: dict[int, AnswerParser] = {}

    def read(self, chunk: Chunk) -> ChatChunk:
        """One for one: a piece may be empty while its text is held back, but its tokens are there."""
        parser = self._parsers.setdefault(chunk.index, self._form.parser())
        pieces = parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            pieces += parser.finish(was_cut=was_cut(chunk))
            _tell(parser, chunk.finish_reason)
        has_ended = chunk.finish_reason is not None
        calls: list[ToolCall] = [piece.tool_call for piece in pieces if piece.tool_call is not None]
        return ChatChunk(
            index=chunk.index,
            content="".join(piece.content for piece in pieces),
            reasoning="".join(piece.reasoning for piece in pieces),
            tool_calls=tuple(calls),
            unfinished_call=parser.unfinished_call if has_ended else "",
            malformed_calls=parser.malformed_calls if has_ended else 0,
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
            token_ids=chunk.token_ids,
            logprobs=chunk.logprobs,
            usage=chunk.usage,
        )


def _tell(parser: AnswerParser, finish_reason: FinishReason) -> None:
    """Logs what is odd about the calls of an answer, without its text."""
    if parser.unfinished_call:
        _log.warning(
            "an answer began a call and did not end it (%d characters, finish reason %s): neither text nor a call",
            len(parser.unfinished_call),
            finish_reason,
        )
    if parser.malformed_calls:
        _log.warning("an answer has %d malformed calls, which stay text", parser.malformed_calls)


def listed_tools(tools: Sequence[Tool] | None) -> tuple[Mapping[str, Any], ...]:
    """The tools of a call as a tuple of mappings.

    Raises:
        InvalidArgumentError: They are no list, or a function has no schema.
    """
    if tools is None:
        return ()
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidArgumentError(f"tools is {tools!r:.80}; allowed: a list of mappings and functions, or None")
    return tuple(tool if isinstance(tool, Mapping) or not callable(tool) else function_tool(tool) for tool in tools)


def tools_as_text(tools: Sequence[Mapping[str, Any]], tool_format: ToolFormat) -> str:
    """A message that offers tools to a model whose template knows none."""
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. These are their signatures:\n<tools>\n"
        f"{described}\n</tools>\n"
        f"To call one, answer with its name and arguments in this form:\n{grammar.call_example(tool_format.name)}"
    )


def calls_as_text(calls: Sequence[Any]) -> str:
    """Calls of an earlier answer for a template that knows none, in the form that :func:`tools_as_text` asks for."""
    texts = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        written = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        texts.append(f"<tool_call>\n{written}\n</tool_call>")
    return "\n".join(texts)


def _is_openai(form: Mapping[str, Any]) -> bool:
    """Whether it is OpenAI's ``response_format`` and not a JSON schema, which may have a ``type`` as well."""
    kind = form.get("type")
    return kind in ("text", "json_object", "json_schema", "grammar", "structural_tag", "regex") or "json_schema" in form


def _openai_format(form: Mapping[str, Any]) -> GrammarSpec | None:
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return grammar.json_object()
    if kind == "json_schema":
        inner = form.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if not isinstance(schema, (Mapping, bool)):
            raise InvalidArgumentError("response_format has no json_schema.schema; allowed: a JSON schema (an object)")
        return grammar.json_schema(schema)
    raise InvalidArgumentError(
        f"response_format has the type {kind!r}; allowed: text, json_object, json_schema, a schema, or a grammar"
    )
