"""``onnx-genai generate``: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.models import fetched_model
from onnx_genai.cli.options import ModelOptions, SamplingOptions, model_options, sampling_options, take
from onnx_genai.cli.stats import Stats, compact_line, resident_bytes
from onnx_genai.errors import AbortedError, ContextOverflowError, PackageError, UnsupportedError
from onnx_genai.types import Chunk, SamplingParams, TokenLogprob, Usage

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM

__all__ = ["generate"]

UNKNOWN_LIMIT_TOKENS = 512
"""Answer length when neither the user nor the package bounds it."""


@click.command()
@click.argument("model")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt; - reads stdin, as does leaving it out in a pipe.")
@click.option("--system", metavar="TEXT", help="System message, before the prompt.")
@click.option("--raw", is_flag=True, help="Do not apply the chat template.")
@click.option(
    "--stream/--no-stream", default=None, help="Print the answer as it comes; the default on a terminal for one answer."
)
@click.option("--json-output", is_flag=True, help="Print a JSON object (with --stream: one a piece and line).")
@click.option("--no-stats", is_flag=True, help="Do not print the line of numbers.")
@sampling_options
@model_options
def generate(model: str, **values: Any) -> None:
    """Print the answer of MODEL to a prompt.

    The model's chat template is applied when it has one. Decoding is greedy unless a sampling option is given.
    """
    sampling = take(SamplingOptions, values)
    loading = take(ModelOptions, values)
    stream = values["stream"]
    if stream is None:
        # Nobody should look at an empty screen while a long answer is made. The bytes on stdout are the same.
        stream = sys.stdout.isatty() and sampling.n == 1 and not values["json_output"]
    output = _Output(stream=stream, as_json=values["json_output"], logprobs=sampling.logprobs is not None)
    # Wrong usage is found before the model is fetched and loaded.
    sampling.params()
    if values["raw"] and values["system"] is not None:
        raise click.UsageError("--system needs the chat template; drop --raw or put the text into the prompt")
    if sampling.n > 1 and output.stream and not output.as_json:
        raise click.UsageError("--stream prints one answer; use --n 1, or --json-output to tell answers apart")
    prompt = _prompt(values["prompt"])
    path = fetched_model(model, variant=loading.variant, offline=loading.offline)
    with console.interruptible(lambda: loading.open(path)) as llm:
        ids = _prompt_ids(llm, prompt, values["system"], raw=values["raw"])
        params = _with_budget(llm, ids, sampling.params(package_temperature=llm.package.generation.temperature))
        answer = _Answer(started=time.perf_counter())
        for chunk in llm.stream(ids, params):
            answer.add(chunk)
            output.piece(chunk)
        output.end(answer)
        _report(llm, answer, show_stats=not (values["no_stats"] or output.as_json))


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class _Answer:
    """What the stream has brought so far."""

    started: float
    choices: dict[int, _Choice] = field(default_factory=dict)
    usage: Usage | None = None
    budget_cap: tuple[int, int] | None = None
    first_token: float | None = None
    last_token: float | None = None

    def add(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self.last_token = time.perf_counter()
            self.first_token = self.first_token or self.last_token
        choice = self.choices.setdefault(chunk.index, _Choice())
        choice.text.append(chunk.text)
        choice.token_ids.extend(chunk.token_ids)
        choice.logprobs.extend(chunk.logprobs or ())
        choice.finish_reason = chunk.finish_reason or choice.finish_reason
        choice.stop_reason = chunk.stop_reason if chunk.stop_reason is not None else choice.stop_reason
        self.usage = chunk.usage or self.usage
        self.budget_cap = chunk.budget_cap or self.budget_cap
        if chunk.finish_reason == "abort":
            raise AbortedError("the generation was stopped from outside before it was done")

    def in_order(self) -> Iterator[tuple[int, _Choice]]:
        return iter(sorted(self.choices.items()))


class _Output:
    """Writes the product: text, or JSON for programs."""

    def __init__(self, *, stream: bool, as_json: bool, logprobs: bool) -> None:
        self.stream = stream
        self.as_json = as_json
        self._logprobs = logprobs
        self._last = ""

    def piece(self, chunk: Chunk) -> None:
        if not self.stream:
            return
        if self.as_json:
            console.write(json.dumps(_chunk_object(chunk), ensure_ascii=False) + "\n")
        elif chunk.text:
            console.write(chunk.text)
            self._last = chunk.text

    def end(self, answer: _Answer) -> None:
        if self.stream and self.as_json:
            return
        if self.as_json:
            console.write(json.dumps(_answer_object(answer), ensure_ascii=False) + "\n")
            return
        if self.stream:
            # A pipe gets exactly one line end more; a terminal only needs to be on a new line.
            if not sys.stdout.isatty() or (self._last and not self._last.endswith("\n")):
                console.write("\n")
        else:
            console.write("".join(f"{''.join(choice.text)}\n" for _, choice in answer.in_order()))
        if self._logprobs:
            for index, choice in answer.in_order():
                for entry in choice.logprobs:
                    console.note(_logprob_line(entry, index if len(answer.choices) > 1 else None))


def _prompt(given: str | None) -> str:
    if given is not None and given != "-":
        text = given
    elif given is None and sys.stdin.isatty():
        raise click.UsageError("Missing option '-p' / '--prompt': give the prompt, or pipe it in")
    else:
        text = console.read_stdin()
    if not text:
        raise click.UsageError("the prompt is empty; give at least one character with -p or on stdin")
    return text


def _prompt_ids(llm: LLM, prompt: str, system: str | None, *, raw: bool) -> list[int]:
    if raw or llm.template is None:
        if system is not None:
            raise UnsupportedError(
                "this package has no chat template, which --system needs; put the text into the prompt"
            )
        return llm.tokenizer.encode(prompt)
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    try:
        text = llm.render(messages)
    except PackageError as error:
        console.warn(f"the chat template is broken, so the prompt goes in as it is: {error}")
        return llm.tokenizer.encode(prompt)
    # The template writes BOS and the like itself.
    return llm.tokenizer.encode(text, add_special_tokens=False)


def _with_budget(llm: LLM, ids: list[int], params: SamplingParams) -> SamplingParams:
    limit = llm.context_limit
    if limit and len(ids) >= limit:
        raise ContextOverflowError(
            f"the prompt fills the context window: {len(ids)}/{limit} tokens (limit from {llm.context_source}); "
            "shorten the prompt, or use a larger window (--max-context, or a model with a longer context)"
        )
    if params.max_new_tokens is not None or limit:
        return params
    console.warn(
        f"the package states no context limit, so the answer ends after {UNKNOWN_LIMIT_TOKENS} tokens; set "
        "--max-new-tokens or --max-context, or model.max_sequence_length in inference_metadata.yaml"
    )
    return dataclasses.replace(params, max_new_tokens=UNKNOWN_LIMIT_TOKENS)


def _report(llm: LLM, answer: _Answer, *, show_stats: bool) -> None:
    if answer.budget_cap is not None:
        asked, granted = answer.budget_cap
        console.note(f"the memory budget allows {granted} of the {asked} new tokens that were asked for")
    if not show_stats or answer.usage is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    decoder = llm.info().get("decoder")
    console.note(
        compact_line(
            Stats(
                prompt_tokens=answer.usage.prompt_tokens,
                completion_tokens=answer.usage.completion_tokens,
                cached_tokens=answer.usage.cached_tokens,
                context_limit=llm.context_limit,
                backend=None if decoder is None else str(decoder),
                started=answer.started,
                first_token=answer.first_token,
                last_token=answer.last_token,
                budget_cap=answer.budget_cap,
                resident=resident_bytes(),
            )
        )
    )


def _usage_object(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def _answer_object(answer: _Answer) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "text": "".join(choice.text),
            "token_ids": choice.token_ids,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "logprobs": [_logprob_object(entry) for entry in choice.logprobs] or None,
        }
        for index, choice in answer.in_order()
    ]
    first = choices[0] if choices else {"text": "", "token_ids": [], "finish_reason": None}
    return {
        "text": first["text"],
        "token_ids": first["token_ids"],
        "finish_reason": first["finish_reason"],
        "usage": _usage_object(answer.usage),
        "budget_cap": answer.budget_cap,
        "choices": choices,
    }


def _chunk_object(chunk: Chunk) -> dict[str, Any]:
    return {
        "index": chunk.index,
        "text": chunk.text,
        "token_ids": list(chunk.token_ids),
        "finish_reason": chunk.finish_reason,
        "stop_reason": chunk.stop_reason,
        "logprobs": [_logprob_object(entry) for entry in chunk.logprobs] if chunk.logprobs else None,
        "usage": _usage_object(chunk.usage),
    }


def _logprob_object(entry: TokenLogprob) -> dict[str, Any]:
    value = {
        "token": entry.token,
        "bytes": list(entry.token_bytes),
        "token_id": entry.token_id,
        "logprob": entry.logprob,
    }
    return {**value, "top": [_logprob_object(other) for other in entry.top]} if entry.top else value


def _logprob_line(entry: TokenLogprob, index: int | None) -> str:
    head = "" if index is None else f"{index}: "
    others = "".join(f"  {other.token!r} {other.logprob:.4f}" for other in entry.top)
    return f"{head}{entry.token!r} {entry.logprob:.4f}{' |' if others else ''}{others}"
