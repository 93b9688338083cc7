"""What an answer may look like: :class:`GrammarSpec` and the ways to make one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar.lark import literal, regex_of, text_with_tokens
from onnx_genai.grammar.schema import bounded_schema

__all__ = ["GrammarSpec", "choice", "json_object", "json_schema", "lark", "regex", "structural_tags"]

MAX_CHOICES = 10_000


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar in source form, before it is compiled for a vocabulary."""

    kind: Literal["json_schema", "regex", "lark"]
    source: str
    is_given: bool = field(default=False, compare=False)
    """A Lark grammar from outside: its rules may have any names, so it cannot be part of another."""

    def as_rule(self) -> str:
        """The grammar as the right side of a Lark rule, to be put into a larger one.

        Raises:
            InvalidArgumentError: A Lark grammar, which cannot be part of another.
        """
        if self.kind == "json_schema":
            return f"%json {self.source}"
        if self.kind == "regex":
            return regex_of(self.source)
        raise InvalidArgumentError(
            "a Lark grammar cannot be combined with reasoning or tool calls; write them into the grammar itself"
        )


def json_object() -> GrammarSpec:
    """Any JSON object."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any] | bool | str) -> GrammarSpec:
    """JSON that validates against a schema (draft 2020-12); the order of properties is that of the schema.

    Raises:
        InvalidArgumentError: ``schema`` is no schema, or has a ``multipleOf`` that is too expensive. Keywords that
            cannot be enforced are refused when the grammar is compiled, by name.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the JSON schema is no JSON: {error}") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise InvalidArgumentError(f"the JSON schema is {schema!r:.80}; allowed: an object")
    try:
        return GrammarSpec("json_schema", json.dumps(bounded_schema(schema), ensure_ascii=False, allow_nan=False))
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the JSON schema cannot be written as JSON: {error}") from error


def regex(pattern: str) -> GrammarSpec:
    """Text that matches a regular expression as a whole (Rust's syntax: no look-around, no back references)."""
    _check_text("regex", pattern)
    return GrammarSpec("regex", pattern)


def lark(source: str) -> GrammarSpec:
    """Text of a grammar in llguidance's dialect of Lark; the first rule is ``start``."""
    _check_text("lark", source)
    return GrammarSpec("lark", source, is_given=True)


def choice(options: Sequence[str]) -> GrammarSpec:
    """One of the given texts."""
    if isinstance(options, (str, bytes)) or not isinstance(options, Sequence) or not options:
        raise InvalidArgumentError(f"choice is {options!r:.80}; allowed: a list of at least one text")
    if len(options) > MAX_CHOICES:
        raise InvalidArgumentError(f"choice has {len(options)} texts; allowed: up to {MAX_CHOICES}")
    for option in options:
        _check_text("choice", option)
    # One terminal: as alternatives of a rule they would each take a place in the parser, which has some 1000.
    texts = "\n  | ".join(literal(option) for option in dict.fromkeys(options))
    return GrammarSpec("lark", f"start: CHOICE\nCHOICE: {texts}\n")


def structural_tags(
    tags: Sequence[Mapping[str, Any]], triggers: Sequence[str], *, special: Mapping[str, int] | None = None
) -> GrammarSpec:
    """Free text with tagged pieces: once a trigger is written, one of its tags must follow.

    Args:
        tags: Each with ``begin``, ``schema`` (a JSON schema) and ``end``; ``begin`` starts with a trigger.
        triggers: Texts that oblige.
        special: Texts and ids of the tokenizer's special tokens (``llm.tokenizer.special_tokens``). Without them a mark
            such as ``<tool_call>`` is plain text: the model's own token of that name is never allowed, and what it
            would have written there is lost.

    Raises:
        InvalidArgumentError: An argument has a wrong form, a tag begins with no trigger, or a trigger has a special
            token beside other text, or a part of one.
    """
    special = special or {}
    for name, given, kind in (("tags", tags, Mapping), ("triggers", triggers, str)):
        if not isinstance(given, Sequence) or not given or not all(isinstance(each, kind) for each in given):
            what = "mappings" if kind is Mapping else "texts"
            raise InvalidArgumentError(f"{name} is {given!r:.80}; allowed: a list of at least one, all {what}")
    rules = []
    names = []
    for number, tag in enumerate(tags):
        begin, end = tag.get("begin"), tag.get("end", "")
        if not isinstance(begin, str) or not isinstance(end, str):
            raise InvalidArgumentError(
                f"structural tag {number} is {tag!r:.80}; allowed: texts begin and end, and schema"
            )
        trigger = next((each for each in triggers if each and begin.startswith(each)), None)
        if trigger is None:
            raise InvalidArgumentError(f"structural tag {number} begins with {begin!r}, which starts with no trigger")
        head = _trigger_rule(begin, trigger, special)
        parts = [f"head_{number}", text_with_tokens(begin[len(trigger) :], special), f"body_{number}"]
        parts.append(text_with_tokens(end, special))
        rules.append(f"head_{number}{head}\ntag_{number}: {' '.join(part for part in parts if part)}")
        rules.append(f"body_{number}: {json_schema(tag.get('schema', {})).as_rule()}")
        names.append(f"tag_{number}")
    lines = [f"start: ({' | '.join(names)})* rest", "rest: TEXT", r"TEXT: /(.|\n)*/", *rules]
    return GrammarSpec("lark", "\n".join(lines) + "\n")


def _trigger_rule(begin: str, trigger: str, special: Mapping[str, int]) -> str:
    """What follows the name of a rule for free text up to a trigger, which may be a special token."""
    if trigger in special:
        return f": TEXT <[{special[trigger]}]>"
    mark = next((each for each in special if each and 0 <= begin.find(each) < len(trigger)), None)
    if mark is not None:
        raise InvalidArgumentError(
            f"the trigger {trigger!r} has a part of the special token {mark!r} of {begin!r}; take the token alone as "
            "the trigger, or a trigger that ends in front of it"
        )
    return f"[lazy]: TEXT {literal(trigger)}"


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidArgumentError(f"{name} is {value!r:.80}; allowed: a text that is not empty")
