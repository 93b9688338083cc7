"""Tool calls as grammars, in the form that a model's format writes them; and reasoning before an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar.lark import literal, text_with_tokens
from onnx_genai.grammar.schema import bounded_schema
from onnx_genai.grammar.spec import GrammarSpec

__all__ = ["MAX_CALLS", "CallSyntax", "after_reasoning", "call_example", "calls_or_answer", "tool_call_grammar"]

MAX_CALLS = 16
"""Calls that an answer may be made to have; a model that repeats itself would otherwise fill the context."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a format writes calls; ``{name}`` stands for the function's name."""

    begin: str
    end: str
    first: str = ""
    """Before the first call."""
    between: str = ""
    last: str = ""
    """Behind the last call."""
    trigger: str = ""
    """What free text is ended by; a call follows. Empty: calls cannot stand behind free text."""
    keywords: bool = False
    """Arguments are ``name=value`` instead of an object."""


SYNTAX: dict[str, CallSyntax] = {
    "hermes": CallSyntax(
        begin='<tool_call>\n{"name": "{name}", "arguments": ', end="}\n</tool_call>", between="\n",
        trigger="<tool_call>",
    ),
    "llama3_json": CallSyntax(begin='{"name": "{name}", "parameters": ', end="}", between="; "),
    "mistral": CallSyntax(
        first="[TOOL_CALLS][", begin='{"name": "{name}", "arguments": ', end="}", between=", ", last="]",
        trigger="[TOOL_CALLS]",
    ),
    "deepseek": CallSyntax(
        first="<｜tool▁calls▁begin｜>", begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        end="\n```<｜tool▁call▁end｜>", between="\n", last="<｜tool▁calls▁end｜>", trigger="<｜tool▁calls▁begin｜>",
    ),
    "command_r": CallSyntax(
        first="Action: ```json\n[", begin='{"tool_name": "{name}", "parameters": ', end="}", between=", ",
        last="]\n```", trigger="Action: ```json",
    ),
    "command_r7b": CallSyntax(
        first="<|START_ACTION|>[", begin='{"tool_call_id": "0", "tool_name": "{name}", "parameters": ', end="}",
        between=", ", last="]<|END_ACTION|>", trigger="<|START_ACTION|>",
    ),
    "phi4": CallSyntax(
        first="<|tool_call|>[", begin='{"name": "{name}", "arguments": ', end="}", between=", ",
        last="]<|/tool_call|>", trigger="<|tool_call|>",
    ),
    "functools": CallSyntax(
        first="functools[", begin='{"name": "{name}", "arguments": ', end="}", between=", ", last="]",
        trigger="functools[",
    ),
    "granite": CallSyntax(
        first="<|tool_call|>[", begin='{"name": "{name}", "arguments": ', end="}", between=", ", last="]",
        trigger="<|tool_call|>",
    ),
    "gemma": CallSyntax(
        first="```tool_code\n", begin="{name}(", end=")", between="\n", last="\n```", trigger="```tool_code",
        keywords=True,
    ),
    "pythonic": CallSyntax(first="[", begin="{name}(", end=")", between=", ", last="]", keywords=True),
    "channels": CallSyntax(
        begin="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", end="<|call|>",
        trigger="<|channel|>",
    ),
}  # fmt: skip
"""By name of the format (:data:`onnx_genai.tools.FORMATS`)."""


def tool_call_grammar(
    form: str,
    tools: Sequence[Mapping[str, Any]],
    *,
    mode: Literal["required", "auto"] = "required",
    only: str | None = None,
    parallel: bool = True,
    special: Mapping[str, int] | None = None,
) -> GrammarSpec | None:
    """The grammar of an answer that calls tools.

    Args:
        form: Name of the model's format.
        tools: OpenAI's objects.
        mode: ``required`` allows nothing but calls; ``auto`` allows free text, and enforces a call once it has begun.
        only: Name of the one function that may be called.
        parallel: Whether there may be several calls, up to :data:`MAX_CALLS` in a row.
        special: Texts and ids of the tokenizer's special tokens.

    Returns:
        None for ``auto`` where calls have no mark that they begin with.

    Raises:
        InvalidArgumentError: No tool, an unknown ``only``, a special token in a name, or a format that cannot be
            enforced.
    """
    special = special or {}
    syntax = SYNTAX.get(form)
    if syntax is None:
        raise InvalidArgumentError(f"calls in the format {form!r} cannot be enforced; allowed: {', '.join(SYNTAX)}")
    functions = _functions(tools)
    if only is not None:
        if only not in functions:
            raise InvalidArgumentError(f"tool_choice names {only!r}; the tools are {', '.join(functions) or '(none)'}")
        functions = {only: functions[only]}
    if not functions:
        raise InvalidArgumentError("tool calls are required, but there is no tool")
    for name in functions:
        mark = next((text for text in special if text and text in name), None)
        if mark is not None:
            raise InvalidArgumentError(f"the tool {name!r} has the special token {mark!r} in its name; rename the tool")
    if mode == "auto" and not syntax.trigger:
        return None
    rules = _call_rules(syntax, functions, special)
    call = "(" + " | ".join(f"call_{number}" for number in range(len(functions))) + ")"
    more = ""
    if parallel:
        more = f" ({_join(text_with_tokens(syntax.between, special), call)}){{0,{MAX_CALLS - 1}}}"
    calls = _join(text_with_tokens(syntax.first, special), call + more, text_with_tokens(syntax.last, special))
    if mode == "required":
        return GrammarSpec("lark", "\n".join([f"start: {calls}", *rules]) + "\n")
    return _free_text_and_calls(syntax, functions, rules, call, more, special)


def call_example(form: str) -> str:
    """A call as a format writes it, with words instead of name and arguments.

    Raises:
        InvalidArgumentError: There is no such format, or its calls cannot be described.
    """
    syntax = SYNTAX.get(form)
    if syntax is None:
        raise InvalidArgumentError(f"calls in the format {form!r} cannot be described; allowed: {', '.join(SYNTAX)}")
    arguments = "parameter=value" if syntax.keywords else "{...}"
    begin = syntax.begin.replace("{name}", "function_name")
    return f"{syntax.first}{begin}{arguments}{syntax.end}{syntax.last}"


def _free_text_and_calls(
    syntax: CallSyntax,
    functions: Mapping[str, Any],
    rules: list[str],
    call: str,
    more: str,
    special: Mapping[str, int],
) -> GrammarSpec:
    """Free text until the trigger is written, then calls, then free text again."""
    first = syntax.first
    if first.startswith(syntax.trigger):
        after = _join(
            text_with_tokens(first[len(syntax.trigger) :], special), call + more, text_with_tokens(syntax.last, special)
        )
    else:
        # The trigger opens the call itself, so the first call has a rule without it.
        rest = [
            _join(
                text_with_tokens(_opening(syntax, name)[len(syntax.trigger) :], special),
                f"arguments_{number}",
                text_with_tokens(syntax.end, special),
            )
            for number, name in enumerate(functions)
        ]  # fmt: skip
        after = "(" + " | ".join(rest) + ")" + more
    if syntax.trigger in special:
        head = f"head: TEXT <[{special[syntax.trigger]}]>"
    else:
        head = f"head[lazy]: TEXT {literal(syntax.trigger)}"
    lines = ["start: (head after)* rest", head, f"after: {after}", "rest: TEXT", r"TEXT: /(.|\n)*/", *rules]
    return GrammarSpec("lark", "\n".join(lines) + "\n")


def after_reasoning(
    spec: GrammarSpec, *, start: str, end: str, inside: bool, special: Mapping[str, int] | None = None
) -> GrammarSpec:
    """The grammar behind free reasoning: ``end`` ends it; it may be left out unless the prompt has opened it.

    Raises:
        InvalidArgumentError: A Lark grammar of the user, which cannot be part of another.
    """
    special = special or {}
    if end in special:
        thought = [f"thought: THOUGHT <[{special[end]}]>", r"THOUGHT: /(.|\n)*/"]
    else:
        thought = [f"thought[lazy]: THOUGHT {literal(end)}", r"THOUGHT: /(.|\n)*/"]
    opening = "" if inside else text_with_tokens(start, special)
    whole = f"{_join(opening, 'thought')} blank"
    first = whole if inside else f"({whole})?"
    lines = [f"start: {first} answer", r"blank: /[ \n\r\t]{0,8}/", *thought, _named("answer", spec)]
    return GrammarSpec("lark", "\n".join(lines) + "\n")


def calls_or_answer(calls: GrammarSpec, answer: GrammarSpec) -> GrammarSpec:
    """Either calls, as :func:`tool_call_grammar` requires them, or an answer of a form.

    Raises:
        InvalidArgumentError: A Lark grammar of the user, which cannot be part of another.
    """
    lines = ["start: calls | form", _named("calls", calls), _named("form", answer)]
    return GrammarSpec("lark", "\n".join(lines) + "\n")


def _named(name: str, spec: GrammarSpec) -> str:
    """A grammar as a rule, with the rules that it needs behind it."""
    if spec.kind == "lark" and not spec.is_given:
        return spec.source.replace("start: ", f"{name}: ", 1)
    return f"{name}: {spec.as_rule()}"


def _functions(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    out: dict[str, Mapping[str, Any]] = {}
    for number, tool in enumerate(tools):
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"tools[{number}] has no function name")
        parameters = function.get("parameters")
        out[name] = (
            parameters if isinstance(parameters, Mapping) and parameters else {"type": "object", "properties": {}}
        )
    return out


def _call_rules(
    syntax: CallSyntax, functions: Mapping[str, Mapping[str, Any]], special: Mapping[str, int]
) -> list[str]:
    rules = []
    for number, (name, parameters) in enumerate(functions.items()):
        begin = text_with_tokens(_opening(syntax, name), special)
        rules.append(f"call_{number}: {_join(begin, f'arguments_{number}', text_with_tokens(syntax.end, special))}")
        if syntax.keywords:
            rules.extend(_keyword_rules(number, name, parameters))
        else:
            schema = {"type": "object", **parameters}
            schema.setdefault("additionalProperties", False)
            rules.append(f"arguments_{number}: %json {_json(schema)}")
    return rules


def _opening(syntax: CallSyntax, name: str) -> str:
    """``begin`` with the name in it, as the parser of the format reads it back.

    Raises:
        InvalidArgumentError: The format has no way to write such a name.
    """
    if not name.isprintable() or name != name.strip():
        raise InvalidArgumentError(f"the function name {name!r} has characters that are not printable; rename it")
    if '"{name}"' in syntax.begin:
        return syntax.begin.replace('"{name}"', json.dumps(name, ensure_ascii=False))
    allowed = r"[A-Za-z_][\w.]*" if syntax.keywords else r"[\w.\-]+"
    if not re.fullmatch(allowed, name):
        raise InvalidArgumentError(f"the function name {name!r} cannot be written in calls of this format; rename it")
    return syntax.begin.replace("{name}", name)


def _keyword_rules(number: int, name: str, parameters: Mapping[str, Any]) -> list[str]:
    """``a=1, b="x"``: required parameters in order, then optional ones in order."""
    properties = parameters.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    wanted = parameters.get("required", ())
    if not isinstance(wanted, Sequence):
        raise InvalidArgumentError(f"'required' of {name} is {wanted!r:.80}; allowed: a list of names")
    required = [key for key in properties if key in wanted]
    optional = [key for key in properties if key not in required]
    for key in properties:
        if not key.isidentifier():
            raise InvalidArgumentError(f"parameter {key!r} of {name} is no name that can be written in a call")
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    values = {key: f"value_{number}_{place}" for place, key in enumerate(properties)}
    rules = [f"{values[key]}: %json {_json({**definitions, **_schema(properties[key])})}" for key in properties]
    fixed = ' ", " '.join(f"{literal(key + '=')} {values[key]}" for key in required)
    if fixed:
        tail = "".join(f" ({literal(', ' + key + '=')} {values[key]})?" for key in optional)
        return [f"arguments_{number}: {fixed}{tail}", *rules]
    # Nothing is required: begin with any of the optional ones, or none.
    starts = []
    for place, key in enumerate(optional):
        tail = "".join(f" ({literal(', ' + other + '=')} {values[other]})?" for other in optional[place + 1 :])
        starts.append(f"{literal(key + '=')} {values[key]}{tail}")
    return [f"arguments_{number}: " + ("(" + " | ".join(starts) + ")?" if starts else '""'), *rules]


def _schema(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(bounded_schema(schema), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the parameters of a tool cannot be written as JSON: {error}") from error


def _join(*pieces: str) -> str:
    return " ".join(piece for piece in pieces if piece)
