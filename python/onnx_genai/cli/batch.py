"""``onnx-genai generate --batch``: many prompts from a file, answered together, written in order."""

from __future__ import annotations

import asyncio
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
from onnx_genai.cli.batch_file import InputFile, InputLine, OutputFile
from onnx_genai.cli.batch_line import LineDefaults, check_fields, line_request, parse_fields
from onnx_genai.cli.options import ModelOptions
from onnx_genai.errors import AbortedError, GenAIError, InvalidArgumentError
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.cli.profile import Profiler
    from onnx_genai.pipelines import LLM, AsyncLLM
    from onnx_genai.types import Choice, Result

__all__ = ["BatchOptions", "run_batch"]

SYNC_SECONDS = 1.0
"""How often what was written is brought to the disk; a loss of power costs this much."""
WINDOW = 4
"""Answers that may wait for an earlier one, as a multiple of the prompts at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What the command line says about a batch."""

    input: Path
    output: Path | None
    """None is standard output, which cannot be gone on with."""
    overwrite: bool
    parallel: int
    defaults: LineDefaults


def run_batch(find_model: Callable[[], Path], loading: ModelOptions, options: BatchOptions, profiler: Profiler) -> None:
    """Answers what is missing in the output, and says how it went.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was answered in order up to there is in the output.
        InvalidArgumentError: The output belongs to other prompts.
    """
    if options.output is None and options.overwrite:
        raise click.UsageError("--overwrite needs --output FILE")
    with InputFile(options.input) as prompts:
        total = prompts.count()
        if not total:
            raise InvalidArgumentError(f"{options.input}: has no prompt; write one JSON object a line")
        if options.output is None:
            _answer_all(find_model, loading, options, prompts, _Stdout(), profiler, total)
            return
        with OutputFile(options.output, prompts, overwrite=options.overwrite) as output:
            before = output.num_records
            if before == total:
                output.begin()
            else:
                _go_on(find_model, loading, options, prompts, output, profiler, total)
            failed = f", {output.num_failed} of them with an error" if output.num_failed else ""
            console.note(f"{options.output}: {counted(total, 'prompt')} answered{failed}")


def _go_on(
    find_model: Callable[[], Path],
    loading: ModelOptions,
    options: BatchOptions,
    prompts: InputFile,
    output: OutputFile,
    profiler: Profiler,
    total: int,
) -> None:
    """:func:`_answer_all` into a file, whose user is told what was there and what is missing."""
    if output.num_records:
        console.note(f"{options.output}: {_part(output, total, 'answer')} there; going on")
    try:
        _answer_all(find_model, loading, options, prompts, output, profiler, total)
    except KeyboardInterrupt:
        how = "without --overwrite " if options.overwrite and output.num_records else ""
        console.note(f"{_part(output, total, 'prompt')} answered; the same command line {how}goes on with the rest")
        raise


def _part(output: OutputFile, total: int, noun: str) -> str:
    verb = "is" if output.num_records == 1 else "are"
    return f"{output.num_records} of {counted(total, noun)} {verb}"


class _Stdout:
    """Records to standard output."""

    num_records = 0
    num_failed = 0

    def begin(self) -> None:
        return

    def write(self, record: Mapping[str, Any]) -> None:
        console.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.num_records += 1

    def sync(self) -> None:
        return


def _answer_all(
    find_model: Callable[[], Path],
    loading: ModelOptions,
    options: BatchOptions,
    prompts: InputFile,
    output: OutputFile | _Stdout,
    profiler: Profiler,
    total: int,
) -> None:
    """Answers the prompts that have no record yet.

    Raises:
        InvalidArgumentError: There are not ``total`` prompts any more.
    """
    path = find_model()
    with profiler.phase("model load"):
        llm = console.interruptible(lambda: _open(path, loading, options.parallel))
    output.begin()
    with _progress(total, output.num_records) as advance:
        asyncio.run(_run(llm, options, prompts, output, profiler, advance))
    if output.num_records != total:
        raise InvalidArgumentError(
            f"{prompts.path}: had {counted(total, 'prompt')} at the start and {output.num_records} at the end; leave "
            "the file as it is while its prompts are answered, and run the command again"
        )


def _open(path: Path, loading: ModelOptions, parallel: int) -> AsyncLLM:
    from onnx_genai.pipelines import AsyncLLM

    return AsyncLLM(path, **loading.arguments(), max_num_seqs=parallel)


async def _run(
    llm: AsyncLLM,
    options: BatchOptions,
    prompts: InputFile,
    output: OutputFile | _Stdout,
    profiler: Profiler,
    advance: Callable[[int, int], None],
) -> None:
    synced = time.monotonic()
    async with llm:
        profiler.begin(cast("LLM", llm))  # what it reads is the same in both
        async with aclosing(_in_order(llm, options, prompts, skip=output.num_records)) as records:
            async for record, num_tokens in records:
                output.num_failed += "error" in record
                output.write(record)
                advance(num_tokens, output.num_failed)
                if time.monotonic() - synced > SYNC_SECONDS:
                    output.sync()
                    synced = time.monotonic()
        profiler.end()


async def _in_order(
    llm: AsyncLLM, options: BatchOptions, prompts: InputFile, *, skip: int
) -> AsyncGenerator[tuple[dict[str, Any], int], None]:
    """Records and their numbers of tokens, in the order of the prompts; many are answered at a time."""
    free = asyncio.Semaphore(options.parallel)

    async def answered(line: InputLine) -> tuple[dict[str, Any], int]:
        async with free:
            return await _record(llm, line, options)

    lines = iter(line for line in prompts.lines() if line.place >= skip)
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
        fields = parse_fields(line.data, line.number)
        if "id" in fields:
            head["id"] = fields["id"]
        check_fields(fields, line.number)
        request = line_request(llm, fields, line.place, options.defaults)
        result = await llm.generate(request.prompt_ids, request.params, **request.options())
        return {**head, **_result_object(result)}, result.usage.completion_tokens
    except AbortedError:
        raise
    except (GenAIError, click.UsageError, OSError) as error:
        text = error.message if isinstance(error, click.UsageError) else str(error)
        kind = "InvalidArgumentError" if isinstance(error, click.UsageError) else type(error).__name__
        return {**head, "error": {"type": kind, "message": text}}, 0


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
        seconds = time.monotonic() - started
        rate = f"{tokens / seconds:.0f} tok/s" if seconds > 0 else ""
        bar.update(task, advance=1, rate=", ".join(filter(None, (rate, f"{num_failed} failed" if num_failed else ""))))

    with bar:
        yield advance
