"""``onnx-genai generate --batch``: many prompts from a file, answered together, written in order."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onnx_genai.cli import console
from onnx_genai.cli.answer import logprob_object, usage_object
from onnx_genai.cli.batch_file import InputLine, OutputFile, count_lines, read_lines
from onnx_genai.cli.options import ModelOptions, SamplingOptions
from onnx_genai.cli.prompts import Request, grammar_from, plain_text, request_for
from onnx_genai.errors import AbortedError, GenAIError, InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.cli.profile import Profiler
    from onnx_genai.pipelines import LLM, AsyncLLM, GrammarSpec
    from onnx_genai.types import Choice, Result

__all__ = ["BatchOptions", "run_batch"]

SYNC_SECONDS = 1.0
"""How often what was written is brought to the disk; a loss of power costs this much."""
WINDOW = 4
"""Answers that may wait for an earlier one, as a multiple of the prompts at once."""

_OWN_KEYS = ("id", "prompt", "messages", "system", "raw", "schema", "regex", "lark", "choice")
_SAMPLING_KEYS = tuple(field.name for field in dataclasses.fields(SamplingOptions))
_MODE_KEYS = ("temperature", "top_p", "top_k", "min_p", "greedy", "no_greedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What the command line says about all prompts; a line may say otherwise for itself."""

    input: Path
    output: Path | None
    """None is standard output, which cannot be gone on with."""
    overwrite: bool
    parallel: int
    system: str | None
    raw: bool
    sampling: SamplingOptions
    grammar: GrammarSpec | None


def run_batch(find_model: Callable[[], Path], loading: ModelOptions, options: BatchOptions, profiler: Profiler) -> None:
    """Answers what is missing in the output, and says how it went.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was answered in order up to there is in the output.
        InvalidArgumentError: The output belongs to other prompts.
    """
    total = count_lines(options.input)
    if not total:
        raise InvalidArgumentError(f"{options.input}: has no prompt; write one JSON object a line")
    if options.output is None:
        if options.overwrite:
            raise click.UsageError("--overwrite needs --output FILE")
        _answer_all(find_model, loading, options, _Stdout(), profiler, total)
        return
    with OutputFile(options.output, options.input, overwrite=options.overwrite) as output:
        before = output.num_records
        if before < total:
            if before:
                console.note(f"{options.output}: {before} of {total} answers are there; going on")
            try:
                _answer_all(find_model, loading, options, output, profiler, total)
            except KeyboardInterrupt:
                console.note(
                    f"{output.num_records} of {total} prompts are answered; the same command line goes on with the rest"
                )
                raise
        failed = f", {output.num_failed} of them with an error" if output.num_failed else ""
        console.note(f"{options.output}: {total} prompts answered{failed}")


class _Stdout:
    """Records to standard output."""

    num_records = 0
    num_failed = 0

    def write(self, record: Mapping[str, Any]) -> None:
        console.write(json.dumps(record, ensure_ascii=False) + "\n")

    def sync(self) -> None:
        return


def _answer_all(
    find_model: Callable[[], Path],
    loading: ModelOptions,
    options: BatchOptions,
    output: OutputFile | _Stdout,
    profiler: Profiler,
    total: int,
) -> None:
    path = find_model()
    with profiler.phase("model load"):
        llm = console.interruptible(lambda: _open(path, loading, options.parallel))
    with _progress(total, output.num_records) as advance:
        asyncio.run(_run(llm, options, output, profiler, advance))


def _open(path: Path, loading: ModelOptions, parallel: int) -> AsyncLLM:
    from onnx_genai.pipelines import AsyncLLM

    return AsyncLLM(path, **loading.arguments(), max_num_seqs=parallel)


async def _run(
    llm: AsyncLLM,
    options: BatchOptions,
    output: OutputFile | _Stdout,
    profiler: Profiler,
    advance: Callable[[int, int], None],
) -> None:
    synced = time.monotonic()
    async with llm:
        profiler.begin(cast("LLM", llm))  # what it reads is the same in both
        async with aclosing(_in_order(llm, options, skip=output.num_records)) as records:
            async for record, num_tokens in records:
                output.num_failed += "error" in record
                output.write(record)
                advance(num_tokens, output.num_failed)
                if time.monotonic() - synced > SYNC_SECONDS:
                    output.sync()
                    synced = time.monotonic()
        profiler.end()


async def _in_order(
    llm: AsyncLLM, options: BatchOptions, *, skip: int
) -> AsyncGenerator[tuple[dict[str, Any], int], None]:
    """Records and their numbers of tokens, in the order of the prompts; many are answered at a time."""
    free = asyncio.Semaphore(options.parallel)

    async def answered(line: InputLine) -> tuple[dict[str, Any], int]:
        async with free:
            return await _record(llm, line, options)

    lines = iter(line for line in read_lines(options.input) if line.place >= skip)
    running: deque[asyncio.Task[tuple[dict[str, Any], int]]] = deque()
    try:
        while True:
            while len(running) < WINDOW * options.parallel and (line := next(lines, None)) is not None:
                running.append(asyncio.create_task(answered(line)))
            if not running:
                return
            yield await running[0]
            running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _record(llm: AsyncLLM, line: InputLine, options: BatchOptions) -> tuple[dict[str, Any], int]:
    """The answer to a line, or what is wrong with it. Only a closed engine ends the batch."""
    head = line.head()
    try:
        fields = _fields(line)
        if "id" in fields:
            head["id"] = fields["id"]
        request = _request(llm, fields, line.place, options)
        result = await llm.generate(request.prompt_ids, request.params, **request.options())
        return {**head, **_result_object(result)}, result.usage.completion_tokens
    except AbortedError:
        raise
    except (GenAIError, click.UsageError, OSError) as error:
        text = error.message if isinstance(error, click.UsageError) else str(error)
        kind = "InvalidArgumentError" if isinstance(error, click.UsageError) else type(error).__name__
        return {**head, "error": {"type": kind, "message": text}}, 0


def _fields(line: InputLine) -> dict[str, Any]:
    """The line's object, with known keys only.

    Raises:
        InvalidArgumentError: No UTF-8, no JSON object, an unknown key, no prompt or two.
    """
    try:
        fields = json.loads(line.data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"line {line.number} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"line {line.number} is {type(fields).__name__}; allowed: a JSON object")
    if "max_tokens" in fields:
        fields.setdefault("max_new_tokens", fields.pop("max_tokens"))
    if "custom_id" in fields:
        fields.setdefault("id", fields.pop("custom_id"))
    known = (*_OWN_KEYS, *_SAMPLING_KEYS)
    for key in fields:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known)}"
            raise InvalidArgumentError(f"line {line.number} has the unknown key {key!r}; {hint}")
    if ("prompt" in fields) == ("messages" in fields):
        raise InvalidArgumentError(f"line {line.number} needs either prompt or messages")
    if "prompt" in fields and (not isinstance(fields["prompt"], str) or not fields["prompt"]):
        raise InvalidArgumentError(f"line {line.number}: prompt is {fields['prompt']!r:.80}; allowed: a text")
    return fields


def _request(llm: AsyncLLM, fields: dict[str, Any], place: int, options: BatchOptions) -> Request:
    sampling = _sampling(fields, place, options.sampling)
    params = sampling.params(package_temperature=llm.package.generation.temperature)
    own = grammar_from(
        schema=fields.get("schema"), regex=fields.get("regex"), lark=fields.get("lark"), choice=_choices(fields)
    )
    grammar = own if own is not None else options.grammar
    if "messages" in fields:
        if not isinstance(fields["messages"], list) or not all(isinstance(m, dict) for m in fields["messages"]):
            raise InvalidArgumentError("messages is no list of objects; allowed: [{'role': ..., 'content': ...}]")
        text, templated = llm.render(fields["messages"]), True
    else:
        raw = _flag(fields, "raw", default=options.raw)
        system = fields.get("system", None if raw else options.system)
        text, templated = plain_text(llm, fields["prompt"], system, raw=raw)
    return request_for(llm, text, params, grammar, templated=templated, quiet=place > 0)


def _sampling(fields: Mapping[str, Any], place: int, base: SamplingOptions) -> SamplingOptions:
    """The line's own options on top of those of the command line.

    A seed of the command line is counted up, so that equal prompts get different answers, and the same ones next time.
    """
    own = {key: fields[key] for key in _SAMPLING_KEYS if key in fields}
    if any(key in own for key in _MODE_KEYS):
        own = {"greedy": False, "no_greedy": False, **own}
    for key in ("greedy", "no_greedy"):
        _flag(own, key, default=False)
    stop = own.get("stop")
    if stop is not None:
        own["stop"] = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else stop
    if "seed" not in own and base.seed is not None:
        own["seed"] = (base.seed + place) % 2**64
    for key in ("temperature", "top_k", "min_p"):
        value = own.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise InvalidArgumentError(f"{key} is {value!r}; allowed: a number")
    return dataclasses.replace(base, **own)


def _flag(fields: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = fields.get(key, default)
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{key} is {value!r}; allowed: true or false")
    return value


def _choices(fields: Mapping[str, Any]) -> list[str]:
    value = fields.get("choice", [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidArgumentError(f"choice is {value!r:.80}; allowed: a list of texts")
    return value


def _result_object(result: Result) -> dict[str, Any]:
    """What depends on the request alone: no times, and nothing of the cache."""
    choices = [_choice_object(choice) for choice in result.choices]
    usage = usage_object(result.usage) or {}
    del usage["cached_tokens"]
    several = {"choices": choices} if len(choices) > 1 else {}
    return {**choices[0], **several, "usage": usage}


def _choice_object(choice: Choice) -> dict[str, Any]:
    value: dict[str, Any] = {"text": choice.text, "finish_reason": choice.finish_reason}
    if choice.stop_reason is not None:
        value["stop_reason"] = choice.stop_reason
    if choice.logprobs is not None:
        value["logprobs"] = [logprob_object(entry) for entry in choice.logprobs]
    return value


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, on a terminal only; the function takes new tokens and the number of errors so far."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("batch", total=total, completed=done, rate="")
    started, tokens = time.monotonic(), 0

    def advance(num_tokens: int, num_failed: int) -> None:
        nonlocal tokens
        tokens += num_tokens
        rate = f"{tokens / max(time.monotonic() - started, 1e-9):.0f} tok/s"
        bar.update(task, advance=1, rate=f"{rate}, {num_failed} failed" if num_failed else rate)

    with bar:
        yield advance
