"""A line of a batch: its object, with everything in it either used or refused, and the request that it makes."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from onnx_genai.cli.options import SAMPLED, SamplingOptions
from onnx_genai.cli.prompts import Request, grammar_from, plain_text, request_for
from onnx_genai.errors import InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.pipelines import AsyncLLM, GrammarSpec

__all__ = ["LineDefaults", "check_fields", "line_request", "parse_fields"]

_OTHER_NAMES = {"max_tokens": "max_new_tokens", "custom_id": "id"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineDefaults:
    """What the command line says about all prompts; a line may say otherwise for itself."""

    system: str | None
    raw: bool
    sampling: SamplingOptions
    grammar: GrammarSpec | None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_TEXT = (_is_text, "a text")
_FLAG = (_is_flag, "true or false")
_WHOLE = (_is_whole, "a whole number")
_NUMBER = (_is_number, "a number")
_KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "id": (lambda value: True, "anything"),
    "prompt": (lambda value: _is_text(value) and bool(value), "a text that is not empty"),
    "messages": (
        lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value),
        "a list of objects, [{'role': ..., 'content': ...}]",
    ),
    "system": _TEXT,
    "raw": _FLAG,
    "schema": (lambda value: isinstance(value, (dict, bool)), "a JSON schema, which is an object"),
    "regex": _TEXT,
    "lark": _TEXT,
    "choice": (_is_texts, "a list of texts"),
    "max_new_tokens": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": _WHOLE,
    "min_p": _NUMBER,
    "greedy": _FLAG,
    "no_greedy": _FLAG,
    "seed": _WHOLE,
    "repetition_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "stop": (lambda value: _is_text(value) or _is_texts(value), "a text or a list of texts"),
    "n": _WHOLE,
    "logprobs": _WHOLE,
}
"""The keys of a line, and what they may be; the sampling options are all of :class:`SamplingOptions`."""


def parse_fields(data: bytes, number: int) -> dict[str, Any]:
    """The line's object; ``null`` says nothing and is left out, and other names of a key are replaced.

    Raises:
        InvalidArgumentError: No UTF-8, no JSON object, or a key twice.
    """
    try:
        fields = json.loads(data, object_pairs_hook=_object)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"line {number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"line {number} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"line {number} is {type(fields).__name__}; allowed: a JSON object")
    fields = {key: value for key, value in fields.items() if value is not None}
    for name, key in _OTHER_NAMES.items():
        if name in fields:
            if key in fields:
                raise InvalidArgumentError(f"line {number} has {name} and {key}, which are the same; give one of them")
            fields[key] = fields.pop(name)
    return fields


def check_fields(fields: Mapping[str, Any], number: int) -> None:
    """Refuses what would have no effect.

    Raises:
        InvalidArgumentError: An unknown key, a value of a wrong type, no prompt or two.
    """
    for key, value in fields.items():
        if key not in _KINDS:
            near = difflib.get_close_matches(key, _KINDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(_KINDS)}"
            raise InvalidArgumentError(f"line {number} has the unknown key {key!r}; {hint}")
        fits, allowed = _KINDS[key]
        if not fits(value):
            raise InvalidArgumentError(f"line {number}: {key} is {value!r:.80}; allowed: {allowed}")
    if ("prompt" in fields) == ("messages" in fields):
        raise InvalidArgumentError(f"line {number} needs either prompt or messages")


def line_request(llm: AsyncLLM, fields: Mapping[str, Any], place: int, defaults: LineDefaults) -> Request:
    """The request of checked fields; ``place`` counts the lines from 0.

    Raises:
        InvalidArgumentError: Fields that exclude each other, or a number out of range.
        UnsupportedError: The package has no chat template, which the line needs.
        click.UsageError: As InvalidArgumentError, of a sampling option.
    """
    params = _sampling(fields, place, defaults.sampling).params(package_temperature=llm.package.generation.temperature)
    own = grammar_from(
        schema=fields.get("schema"),
        regex=fields.get("regex"),
        lark=fields.get("lark"),
        choice=fields.get("choice", ()),
    )
    raw = fields.get("raw", defaults.raw)
    if raw and "system" in fields:
        raise InvalidArgumentError(
            "system and raw exclude each other, as the chat template writes the system message; leave one of them out"
        )
    if "messages" in fields:
        text, templated = llm.render(_messages(fields, defaults, raw=raw)), True
    else:
        system = None if raw else fields.get("system", defaults.system)
        text, templated = plain_text(llm, fields["prompt"], system, raw=raw)
    grammar = own if own is not None else defaults.grammar
    return request_for(llm, text, params, grammar, templated=templated, quiet=place > 0)


def _messages(fields: Mapping[str, Any], defaults: LineDefaults, *, raw: bool) -> list[dict[str, Any]]:
    """The messages of a line with the system message that it or the command line gives."""
    messages: list[dict[str, Any]] = fields["messages"]
    if raw:
        raise InvalidArgumentError(
            'messages need the chat template, and raw leaves it out; write a prompt, or "raw": false in the line'
        )
    begins_with_system = bool(messages) and messages[0].get("role") in ("system", "developer")
    if begins_with_system and "system" in fields:
        raise InvalidArgumentError("there is a system message in messages and one in system; leave one of them out")
    system = fields.get("system", None if begins_with_system else defaults.system)
    return messages if system is None or not messages else [{"role": "system", "content": system}, *messages]


def _sampling(fields: Mapping[str, Any], place: int, base: SamplingOptions) -> SamplingOptions:
    """The line's own options on top of those of the command line.

    A seed of the command line is counted up, so that equal prompts get different answers, and the same ones next time.
    """
    own = {field.name: fields[field.name] for field in dataclasses.fields(SamplingOptions) if field.name in fields}
    if any(key in own for key in ("greedy", "no_greedy", *SAMPLED)):
        own = {"greedy": False, "no_greedy": False, **own}
    asks = own.get("top_p") is not None or own.get("no_greedy") or own.get("top_k", 0) > 0 or own.get("min_p", 0) > 0
    if asks and base.temperature == 0:
        own.setdefault("temperature", None)  # else greedy would win
    stop = own.get("stop")
    if stop is not None:
        own["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "seed" not in own and base.seed is not None:
        own["seed"] = (base.seed + place) % 2**64
    return dataclasses.replace(base, **own)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidArgumentError(f"has the key {twice!r} twice in an object; leave one of them out")
    return value
