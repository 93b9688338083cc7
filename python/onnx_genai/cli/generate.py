"""``onnx-genai generate``: one prompt, one answer; or a file of prompts, a file of answers."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.absent import absent_options
from onnx_genai.cli.answer import Answer, Output
from onnx_genai.cli.models import MODEL, fetched_model
from onnx_genai.cli.options import ModelOptions, SamplingOptions, model_options, sampling_options, take, take_sampling
from onnx_genai.cli.profile import AnswerTimes, ProfileOptions, Profiler, profile_options
from onnx_genai.cli.profile_report import KvPages
from onnx_genai.cli.prompts import Request, SavedTurns, given_prompt, grammar_from, plain_text, request_for
from onnx_genai.cli.settings import COMMAND_LINE, source_rank
from onnx_genai.cli.stats import (
    Stats,
    backend_name,
    block_lines,
    compact_line,
    finish_word,
    page_counts,
    resident_bytes,
)
from onnx_genai.errors import InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM, GrammarSpec

__all__ = ["generate"]

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_ADAPTER = "adapter"
"""What an adapter is called where there is one."""


@click.command()
@click.argument("model", type=MODEL)
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt; what is piped in follows it. - is stdin alone.")
@click.option("--system", metavar="TEXT", help="System message, before the prompt.")
@click.option("--raw", is_flag=True, help="Do not apply the chat template.")
@click.option(
    "--session", type=click.Path(path_type=Path, dir_okay=False), help="Go on with, and keep, the turns in this file."
)
@click.option(
    "--stream/--no-stream", default=None, help="Print the answer as it comes; the default on a terminal for one answer."
)
@click.option(
    "--json", "--json-output", "json_output", is_flag=True, help="Print a JSON object (with --stream: one a piece)."
)
@click.option("--schema", type=_FILE, metavar="FILE", help="The answer is JSON that fits this JSON schema.")
@click.option("--regex", metavar="PATTERN", help="The answer matches this regular expression.")
@click.option("--lark", type=_FILE, metavar="FILE", help="The answer follows this Lark grammar.")
@click.option("--choice", multiple=True, metavar="TEXT", help="The answer is one of these; give it for each.")
@click.option("--adapter", type=_FILE, metavar="FILE", help="Answer with this LoRA adapter.")
@click.option("--batch", type=_FILE, metavar="FILE", help="JSONL file of prompts, one a line.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="JSONL file of answers, for --batch.",
)
@click.option("--overwrite", is_flag=True, help="Begin --output anew; else an interrupted --batch goes on.")
@click.option(
    "--parallel", type=click.IntRange(1, 1024), default=16, show_default=True, help="Prompts of --batch at once."
)
@click.option("--no-stats", is_flag=True, help="Do not print the numbers.")
@sampling_options
@profile_options
@model_options
@absent_options
@click.pass_context
def generate(context: click.Context, /, model: str, **values: Any) -> None:
    """Print the answer of MODEL to a prompt.

    The model's chat template is applied when it has one. Decoding is greedy unless a sampling option is given.

    With --batch each line of a file is a prompt: {"prompt": ...} or {"messages": [...]}, with sampling options of its
    own. Answers are written in the same order; the same command line goes on with what is missing.
    """
    sampling = take_sampling(context, values)
    loading = take(ModelOptions, values)
    # Wrong usage is found before the model is fetched and loaded.
    sampling.params()
    try:
        grammar = grammar_from(
            schema=values["schema"], regex=values["regex"], lark=values["lark"], choice=values["choice"]
        )
    except InvalidArgumentError as error:
        raise click.UsageError(str(error)) from error
    if values["raw"] and values["system"] is not None:
        raise click.UsageError("--system needs the chat template; drop --raw or put the text into the prompt")
    profiler = Profiler(ProfileOptions.take(values))
    if values["batch"] is not None:
        try:
            _batch(model, values, loading, sampling, grammar, profiler)
        finally:
            profiler.close()
        return
    if values["output"] is not None or values["overwrite"]:
        raise click.UsageError("--output and --overwrite belong to --batch; an answer goes to standard output")
    if source_rank(context, "parallel") == COMMAND_LINE:
        raise click.UsageError("--parallel belongs to --batch; one prompt is answered at a time")
    output = _output(values, sampling)
    prompt = given_prompt(values["prompt"])
    path = fetched_model(model, variant=loading.variant, offline=loading.offline)
    with profiler.phase("model load"):
        opened = console.interruptible(lambda: loading.open(path))
    with opened as llm:
        try:
            _answer(llm, prompt, values, sampling, grammar, output, profiler)
        finally:
            profiler.close()


def _batch(
    model: str,
    values: dict[str, Any],
    loading: ModelOptions,
    sampling: SamplingOptions,
    grammar: GrammarSpec | None,
    profiler: Profiler,
) -> None:
    from onnx_genai.cli.batch import BatchOptions, run_batch
    from onnx_genai.cli.batch_line import LineDefaults

    for name in ("prompt", "session", "stream", "json_output", "adapter"):
        if values[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} and --batch exclude each other")
    options = BatchOptions(
        input=values["batch"],
        output=None if values["output"] == Path("-") else values["output"],
        overwrite=values["overwrite"],
        parallel=values["parallel"],
        defaults=LineDefaults(system=values["system"], raw=values["raw"], sampling=sampling, grammar=grammar),
    )
    run_batch(
        lambda: fetched_model(model, variant=loading.variant, offline=loading.offline), loading, options, profiler
    )


def _output(values: dict[str, Any], sampling: SamplingOptions) -> Output:
    as_json = values["json_output"]
    stream = values["stream"]
    if stream is None:
        # Nobody should look at an empty screen while a long answer is made. The bytes on stdout are the same.
        stream = sys.stdout.isatty() and sampling.n == 1 and not as_json
    if sampling.n > 1 and stream and not as_json:
        raise click.UsageError("--stream prints one answer; use --n 1, or --json to tell answers apart")
    if sampling.n > 1 and values["session"] is not None:
        raise click.UsageError("--session goes on with one answer; use --n 1")
    return Output(stream=stream, as_json=as_json, logprobs=sampling.logprobs is not None)


def _answer(
    llm: LLM,
    prompt: str,
    values: dict[str, Any],
    sampling: SamplingOptions,
    grammar: GrammarSpec | None,
    output: Output,
    profiler: Profiler,
) -> None:
    params = sampling.params(package_temperature=llm.package.generation.temperature)
    adapter = None if values["adapter"] is None else _ADAPTER
    if adapter is not None:
        llm.load_adapter(values["adapter"], adapter)
    turns = None if values["session"] is None else SavedTurns(llm, values["session"], adapter=adapter)
    if turns is None:
        text, templated = plain_text(llm, prompt, values["system"], raw=values["raw"])
        request = request_for(llm, text, params, grammar, templated=templated)
    else:
        text, templated = turns.next_text(prompt, values["system"], raw=values["raw"])
        request = request_for(llm, text, params, grammar, templated=templated, before=turns.tokens)
    request = dataclasses.replace(request, adapter=adapter)
    if request.form is not None:
        output.dim_reasoning(request.form)
    provider = str(llm.info().get("execution_provider", "cpu"))
    output.provider = provider
    if provider != "cpu":
        console.note(f"execution provider: {provider}, and cpu for what it does not take")
    pages_before = page_counts(llm)
    answer = _streamed(llm, request, output, profiler)
    if turns is not None:
        turns.keep(request.prompt_ids, answer.choices[0].token_ids)
    hidden = values["no_stats"] or output.as_json or profiler.shows_report
    asked_length = sampling.max_new_tokens is not None
    _report(llm, answer, pages_before, asked_length=asked_length, show_stats=not hidden)


def _streamed(llm: LLM, request: Request, output: Output, profiler: Profiler) -> Answer:
    profiler.begin(llm)
    times = AnswerTimes()
    answer = Answer(started=time.perf_counter())
    for chunk in llm.stream(request.prompt_ids, request.params, **request.options()):
        answer.add(chunk)
        times.add(chunk)
        output.piece(chunk)
    answer.finished = time.perf_counter()
    output.end(answer)
    profiler.end(times)
    return answer


def _report(
    llm: LLM, answer: Answer, pages_before: Mapping[str, float], *, asked_length: bool, show_stats: bool
) -> None:
    if answer.budget_cap is not None:
        asked, granted = answer.budget_cap
        console.note(f"the memory budget allows {granted} of the {asked} new tokens that were asked for")
    if not show_stats or answer.usage is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    info = llm.info()
    first = answer.choices.get(0)
    stats = Stats(
        prompt_tokens=answer.usage.prompt_tokens,
        completion_tokens=answer.usage.completion_tokens,
        cached_tokens=answer.usage.cached_tokens,
        context_limit=llm.context_limit,
        backend=backend_name(info),
        started=answer.started,
        first_token=answer.first_token,
        last_token=answer.last_token,
        finished=answer.finished,
        finish=None
        if first is None
        else finish_word(first.finish_reason, first.stop_reason, asked_length=asked_length),
        budget_cap=answer.budget_cap,
        resident=resident_bytes(),
        pages=KvPages.between(pages_before, page_counts(llm)),
    )
    if sys.stderr.isatty():
        for line in block_lines(stats, shutil.get_terminal_size().columns):
            console.note(line)
    else:
        console.note(compact_line(stats))
