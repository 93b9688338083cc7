"""The one place where a grammar of :meth:`GeneratorParams.set_guidance` becomes part of a request."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_genai import grammar
from onnx_genai.engine import RequestOptions
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.grammar import GrammarSpec

__all__ = ["GUIDANCE_KINDS", "Guidance", "check_guidance", "constrained"]

GUIDANCE_KINDS = ("json_schema", "regex", "lark_grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """A constraint on what is generated."""

    kind: str
    """One of :data:`GUIDANCE_KINDS`."""
    data: str
    """The schema, expression or grammar."""
    fast_forward: bool = False
    """Tokens that the grammar forces may be appended without a choice."""


def constrained(guidance: Guidance) -> RequestOptions:
    """Options of a request that generates what the guidance allows, from its first token on."""
    return RequestOptions(grammar=_spec(guidance))


def check_guidance(guidance: Guidance) -> None:
    """Raises what :meth:`GeneratorParams.set_guidance` raises; a grammar that cannot be compiled is refused later.

    Raises:
        InvalidArgumentError: An unknown kind, or data that is no text or no JSON schema.
    """
    if guidance.kind not in GUIDANCE_KINDS:
        raise InvalidArgumentError(f"type is {guidance.kind!r}; allowed: {', '.join(GUIDANCE_KINDS)}")
    if not isinstance(guidance.data, str) or not guidance.data:
        raise InvalidArgumentError(f"data is {guidance.data!r}; allowed: the text of the {guidance.kind}")
    _spec(guidance)


def _spec(guidance: Guidance) -> GrammarSpec:
    make = {"json_schema": grammar.json_schema, "regex": grammar.regex, "lark_grammar": grammar.lark}
    return make[guidance.kind](guidance.data)
