"""What a model is asked: prompt, chat template, saved session, grammar, budget."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.errors import ContextOverflowError, InvalidArgumentError, PackageError, UnsupportedError
from onnx_genai.types import SamplingParams
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM, AsyncLLM, GrammarSpec, Session
    from onnx_genai.pipelines.answer import AnswerForm

__all__ = [
    "UNKNOWN_LIMIT_TOKENS",
    "Request",
    "SavedTurns",
    "given_prompt",
    "grammar_from",
    "plain_text",
    "rendered_text",
    "request_for",
]

UNKNOWN_LIMIT_TOKENS = 512
"""Answer length when neither the user nor the package bounds it."""

_MARK = "the-answer-before-ends-here"
"""Stands for the earlier answer when the text that follows it is rendered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is submitted."""

    prompt_ids: list[int]
    params: SamplingParams
    grammar: GrammarSpec | None = None
    form: AnswerForm | None = None
    """What may be in the answer, in a template's words; None where nobody needs to know."""
    adapter: str | None = None
    """Name of a LoRA adapter."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``stream`` and ``generate``."""
        options = {"grammar": self.grammar, "adapter": self.adapter}
        return {name: value for name, value in options.items() if value is not None}


def given_prompt(given: str | None) -> str:
    """The prompt of the command line, what was piped in, or both: the prompt, an empty line, what was piped in.

    Raises:
        click.UsageError: There is none.
    """
    if given == "-" or (given is None and not sys.stdin.isatty()):
        text = console.read_stdin()
    elif given is None:
        raise click.UsageError("Missing option '-p' / '--prompt': give the prompt, or pipe it in")
    else:
        piped = console.read_stdin() if console.has_piped_stdin() else ""
        text = f"{given}\n\n{piped}" if piped and given else given or piped
    if not text:
        raise click.UsageError("the prompt is empty; give at least one character with -p or on stdin")
    return text


def rendered_text(llm: LLM | AsyncLLM, messages: Sequence[Mapping[str, Any]], plain: str) -> str | None:
    """The messages in the chat template; None, with a warning, if it is broken and ``plain`` goes in as it is."""
    try:
        return llm.render(messages)
    except PackageError as error:
        console.warn(f"the chat template is broken, so the prompt goes in as it is: {error}")
        return None


def plain_text(llm: LLM | AsyncLLM, prompt: str, system: str | None, *, raw: bool) -> tuple[str, bool]:
    """The text that the model gets, and whether a template wrote it, with all special tokens.

    Raises:
        UnsupportedError: ``system`` without a template.
    """
    if raw or llm.template is None:
        if system is not None:
            raise UnsupportedError(
                "this package has no chat template, which --system needs; put the text into the prompt"
            )
        return prompt, False
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    text = rendered_text(llm, messages, prompt)
    return (prompt, False) if text is None else (text, True)


def request_for(
    llm: LLM | AsyncLLM,
    text: str,
    params: SamplingParams,
    grammar: GrammarSpec | None,
    *,
    templated: bool,
    before: Sequence[int] = (),
    quiet: bool = False,
) -> Request:
    """The request for a text, with its budget; a grammar leaves the model's reasoning free.

    Args:
        llm: The model.
        text: What it gets.
        params: How it answers.
        grammar: What the answer must look like.
        templated: A chat template wrote the text, with BOS and the like.
        before: Tokens of the turns before.
        quiet: Do not warn that nothing bounds the answer.
    """
    form = None
    if templated and (grammar is not None or llm.abilities.reasoning is not None):
        from onnx_genai.pipelines.chat import ChatRequest

        chat = ChatRequest(response_format=grammar)
        # Every text here ends with what the template writes behind a message of the user.
        inside = llm.opens_reasoning(text, [{"role": "user", "content": "Hello"}])
        form, grammar = chat.answer_form(llm.abilities, None, inside_reasoning=inside)
        visible = chat.visible_tokens(form, llm.abilities.special_tokens)
        if visible:
            params = dataclasses.replace(params, visible_special_tokens=visible)
    own = llm.tokenizer.encode(text) if not templated and not before else _inner_ids(llm, text)
    if before and own and before[-1] == own[0]:
        own = own[1:]  # the end of the answer before is there already
    ids = [*before, *own]
    bounded = _with_budget(llm, ids, params, quiet=quiet)
    return Request(prompt_ids=ids, params=bounded, grammar=grammar, form=form)


def grammar_from(
    *,
    schema: Path | Mapping[str, Any] | bool | None = None,
    regex: str | None = None,
    lark: Path | str | None = None,
    choice: Sequence[str] = (),
) -> GrammarSpec | None:
    """The one grammar that was asked for; files are read.

    Raises:
        InvalidArgumentError: More than one, or one that is wrong.
    """
    given = {"schema": schema, "regex": regex, "lark": lark, "choice": choice or None}
    named = [name for name, value in given.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise InvalidArgumentError(f"{' and '.join(named)} exclude each other; give one of them")
    from onnx_genai.pipelines import grammar  # takes time to import

    value = _read_json(schema) if isinstance(schema, Path) else schema
    if value is not None:
        if not isinstance(value, (Mapping, bool)):
            raise InvalidArgumentError(f"the JSON schema is {value!r:.80}; allowed: an object")
        return grammar.json_schema(value)
    if regex is not None:
        return grammar.regex(regex)
    if lark is not None:
        return grammar.lark(console.read_file(lark) if isinstance(lark, Path) else lark)
    return grammar.choice(list(choice))


class SavedTurns:
    """A conversation in a file: its tokens and their KV. The file changes when an answer is complete."""

    def __init__(self, llm: LLM, path: Path, *, adapter: str | None = None) -> None:
        self._llm = llm
        self._path = path
        self.is_new = not path.exists()
        if self.is_new and not path.absolute().parent.is_dir():
            raise InvalidArgumentError(f"{path} cannot be written, as its folder does not exist; make it first")
        try:
            self._session: Session = (
                llm.session(adapter=adapter) if self.is_new else llm.load_session(path, adapter=adapter)
            )
        except PackageError as error:  # it is the file that is wrong, and no model package
            raise InvalidArgumentError(f"{error}. A new file begins a new conversation") from error

    @property
    def tokens(self) -> tuple[int, ...]:
        return self._session.tokens

    def next_text(self, prompt: str, system: str | None, *, raw: bool) -> tuple[str, bool]:
        """As :func:`plain_text`, for the next turn: what the template writes behind the answer before."""
        if self.is_new or not self.tokens:
            return plain_text(self._llm, prompt, system, raw=raw)
        if system is not None:
            raise InvalidArgumentError(
                f"--system is given, but {self._path} has begun already; leave --system out, or name a new file"
            )
        if raw or self._llm.template is None:
            return prompt, False
        messages = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": _MARK},
            {"role": "user", "content": prompt},
        ]
        text = rendered_text(self._llm, messages, prompt)
        if text is None:
            return prompt, False
        _, mark, behind = text.partition(_MARK)
        if not mark:
            raise UnsupportedError(
                "the chat template shows no earlier answers, so a session cannot go on with it; use --raw"
            )
        return behind, True

    def keep(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Adds a complete turn and writes the file."""
        self._session.append([*prompt_ids[len(self.tokens) :], *answer_ids])
        self._session.save(self._path)


def _inner_ids(llm: LLM | AsyncLLM, text: str) -> list[int]:
    return llm.tokenizer.encode(text, add_special_tokens=False)


def _with_budget(llm: LLM | AsyncLLM, ids: Sequence[int], params: SamplingParams, *, quiet: bool) -> SamplingParams:
    limit = llm.context_limit
    if limit and len(ids) >= limit:
        raise ContextOverflowError(
            f"the prompt fills the context window: {len(ids)}/{counted(limit, 'token')} (limit from "
            f"{llm.context_source}); shorten the prompt, or use a larger window (--max-context, or a model with a "
            "longer context)"
        )
    if params.max_new_tokens is not None or limit:
        return params
    if not quiet:
        console.warn(
            f"the package states no context limit, so the answer ends after {UNKNOWN_LIMIT_TOKENS} tokens; set "
            "--max-new-tokens or --max-context, or model.max_sequence_length in inference_metadata.yaml"
        )
    return dataclasses.replace(params, max_new_tokens=UNKNOWN_LIMIT_TOKENS)


def _read_json(path: Path) -> Any:
    text = console.read_file(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path}: is no JSON: {error}") from error
