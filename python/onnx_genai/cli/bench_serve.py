"""``onnx-genai bench serve``: load on a server, and what its answers take."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.words import counted

if TYPE_CHECKING:
    from rich.progress import Progress

    from onnx_genai.load_test import Outcome, Report, Sample, Target

__all__ = ["bench_serve"]

API_KEYS = ("ONNX_GENAI_API_KEY", "OPENAI_API_KEY")
_FILE_OUTPUT_TOKENS = 256
_HELLO_TOKENS = 4


@click.command("serve")
@click.option("--base-url", default="http://127.0.0.1:8080", show_default=True, help="The server; /v1 may be left out.")
@click.option("--model", help="Model to ask for; default: the first that the server lists.")
@click.option("--endpoint", type=click.Choice(("chat", "completions")), default="chat", show_default=True)
@click.option(
    "--dataset",
    default="random",
    show_default=True,
    metavar="random|FILE",
    help="Random words; or a .jsonl file (prompt or messages, max_tokens); or a .json file of conversations.",
)
@click.option("--random-input-len", type=click.IntRange(1), default=256, show_default=True, help="Tokens of a prompt.")
@click.option("--random-output-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens to ask for.")
@click.option("--random-range-ratio", type=float, default=0.0, show_default=True, help="Lengths vary by this share.")
@click.option("--output-len", type=click.IntRange(1), help="Tokens to ask for with a file, where it does not say.")
@click.option("--tokenizer", metavar="PATH", help="tokenizer.json or its folder: prompts of the exact length.")
@click.option("--num-prompts", type=click.IntRange(1), default=100, show_default=True, help="Requests to send.")
@click.option("--request-rate", type=float, default=math.inf, show_default=True, help="A second; inf: all at once.")
@click.option(
    "--burstiness",
    type=float,
    default=1.0,
    show_default=True,
    help="Of the gaps; 1: Poisson, inf: equal, else gamma.",
)
@click.option("--max-concurrency", type=click.IntRange(1), help="Open requests at once; default: no bound.")
@click.option("--num-warmups", type=click.IntRange(0), default=0, show_default=True, help="Requests before.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and arrivals.")
@click.option("--goodput", multiple=True, metavar="NAME:MS", help="Limits of a good answer: ttft:MS tpot:MS e2el:MS.")
@click.argument("more_goals", nargs=-1, metavar="")
@click.option("--ignore-eos", is_flag=True, help="Ask the server to go on after an end token.")
@click.option("--extra-body", metavar="JSON", default="{}", help="More fields of each request.")
@click.option("--header", multiple=True, metavar="NAME:VALUE", help="A further header of each request.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True, help="Seconds.")
@click.option("--percentiles", default="50,90,95,99", show_default=True, help="Of the times, by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--save-result", is_flag=True, help="Write the figures to a file as JSON.")
@click.option("--save-detailed", is_flag=True, help="As --save-result, with the numbers of every request.")
@click.option("--result-filename", type=click.Path(path_type=Path), help="That file; default: a name with the date.")
def bench_serve(**values: Any) -> None:
    """Measure a server with OpenAI's interface under load.

    Requests are sent at their times, whether or not earlier ones were answered. The key is that of ONNX_GENAI_API_KEY
    or OPENAI_API_KEY, if one is set. Ctrl-C ends the load and reports what was done so far.
    """
    from onnx_genai.load_test import Goals, Load, NoAnswerError, Report

    goals = Goals.parse(_goals(values["goodput"], values["more_goals"]))
    report = Report(load=Load(), goals=goals, percentiles=_percentiles(values["percentiles"]))
    model = asyncio.run(_run(values, report))
    _show(values, report, model)
    if report.load.interrupted:
        raise KeyboardInterrupt
    if not report.completed:
        reason = next(iter(report.failures), "no request was sent")
        raise NoAnswerError(f"none of {counted(len(report.load.outcomes), 'request')} was answered: {reason}")


async def _run(values: dict[str, Any], report: Report) -> str:
    """Fills the report's load; returns the model that answered."""
    from onnx_genai.load_test import HttpClient, arrival_times, first_model, run_load

    times = arrival_times(
        values["num_prompts"], rate=values["request_rate"], burstiness=values["burstiness"], seed=values["seed"]
    )
    extra = _extra(values["extra_body"])
    samples = await asyncio.to_thread(_samples, values)
    client = HttpClient(values["base_url"], headers=_headers(values["header"]))
    try:
        model = values["model"] or await first_model(client)
        target = _target(values, client, model, extra)
        await _warm_up(target, samples, values["num_warmups"])
        stop = asyncio.Event()
        with _on_interrupt(stop), _progress(len(samples)) as on_end:
            await run_load(
                target,
                samples,
                times,
                load=report.load,
                max_concurrency=values["max_concurrency"],
                stop=stop,
                on_end=on_end,
            )
    finally:
        await client.close()
    return model


def _target(values: dict[str, Any], client: Any, model: str, extra: dict[str, Any]) -> Target:
    from onnx_genai.load_test import Target

    return Target(
        client=client,
        model=model,
        endpoint=values["endpoint"],
        ignore_eos=values["ignore_eos"],
        timeout=values["timeout"],
        extra=extra,
    )


async def _warm_up(target: Target, samples: Sequence[Sample], count: int) -> None:
    """One request that shows whether the server answers at all, then the ones that were asked for.

    Raises:
        NoAnswerError: It does not; the text says how.
    """
    from onnx_genai.load_test import NoAnswerError, Outcome, Sample

    hello = Sample(prompt="Hello", prompt_tokens=1, output_tokens=_HELLO_TOKENS)
    first = Outcome()
    await target.ask(hello, first, time.perf_counter())
    if first.error is not None and first.error != "the answer has no text":
        raise NoAnswerError(f"a first request to {target.client.base_url} failed: {first.error}")
    tasks = [target.ask(sample, Outcome(), time.perf_counter()) for sample in samples[:count]]
    await asyncio.gather(*tasks)


def _samples(values: dict[str, Any]) -> list[Sample]:
    from onnx_genai.load_test import jsonl_samples, open_tokenizer, random_samples, sharegpt_samples

    tokenizer = open_tokenizer(Path(values["tokenizer"]).expanduser()) if values["tokenizer"] else None
    count, seed, given = values["num_prompts"], values["seed"], values["dataset"]
    if given == "random":
        return random_samples(
            count,
            input_tokens=values["random_input_len"],
            output_tokens=values["random_output_len"],
            range_ratio=values["random_range_ratio"],
            seed=seed,
            tokenizer=tokenizer,
        )
    path, wanted = Path(given), values["output_len"]
    if path.suffix == ".jsonl":
        wanted = wanted or _FILE_OUTPUT_TOKENS
        return jsonl_samples(path, count, output_tokens=wanted, seed=seed, tokenizer=tokenizer)
    return sharegpt_samples(path, count, output_tokens=wanted, seed=seed, tokenizer=tokenizer)


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = {}
    key = next((os.environ[name].strip() for name in API_KEYS if os.environ.get(name, "").strip()), None)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    for each in given:
        name, colon, value = each.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header is {each!r}; write NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _goals(options: Sequence[str], rest: Sequence[str]) -> list[str]:
    """``--goodput ttft:500 tpot:50`` gives the first as the option's value and the others as arguments."""
    if rest and not options:
        raise click.UsageError(f"{rest[0]!r} is no option; limits of good answers stand behind --goodput")
    return [goal for each in (*options, *rest) for goal in each.replace(",", " ").split()]


def _percentiles(given: str) -> tuple[float, ...]:
    try:
        values = tuple(float(each) for each in given.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 100 for value in values):
        raise InvalidArgumentError(f"percentiles is {given!r}; write numbers from 0 to 100 with commas between them")
    return values


def _extra(given: str) -> dict[str, Any]:
    try:
        value = json.loads(given)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--extra-body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.UsageError(f"--extra-body is a JSON {type(value).__name__}; write an object")
    return value


class _OnInterrupt:
    """Inside, Ctrl-C sets an event instead of raising; a second one ends the program."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._before: Any = None

    def __enter__(self) -> None:
        # Not the loop's own handler: there is none on Windows.
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._loop.call_soon_threadsafe(self._stop.set)


def _on_interrupt(stop: asyncio.Event) -> AbstractContextManager[None]:
    return _OnInterrupt(stop) if threading.current_thread() is threading.main_thread() else nullcontext()


class _Bar:
    """Requests that have ended, on a terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("requests", total=total, failed=0)
        self._failed = 0

    def __enter__(self) -> Callable[[Outcome], None]:
        self._progress.start()
        return self._count

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _count(self, outcome: Outcome) -> None:
        self._failed += outcome.error is not None
        self._progress.update(self._task, advance=1, failed=self._failed)


def _progress(total: int) -> AbstractContextManager[Callable[[Outcome], None] | None]:
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"))
    return _Bar(Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True), total)


def _show(values: dict[str, Any], report: Report, model: str) -> None:
    record = _record(values, report, model)
    text = json.dumps(record, indent=1) if values["as_json"] else _heading(values, model) + report.table()
    console.write(text + "\n")
    if not (values["save_result"] or values["save_detailed"] or values["result_filename"]):
        return
    if values["save_detailed"]:
        record.update(report.details())
    name = re.sub(r"[^\w.-]", "-", f"{values['endpoint']}-{values['request_rate']:g}qps-{model}-{record['date']}.json")
    path = values["result_filename"] or Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.note(f"written to {path}")


def _heading(values: dict[str, Any], model: str) -> str:
    rate, shape = values["request_rate"], values["burstiness"]
    if math.isinf(rate):
        arrivals = "all at once"
    else:
        kind = "equal gaps" if math.isinf(shape) else "Poisson" if shape == 1 else f"gamma, burstiness {shape:g}"
        arrivals = f"{rate:g} a second ({kind})"
    bound = f", at most {values['max_concurrency']} at once" if values["max_concurrency"] else ""
    return f"{model}, {values['endpoint']}, {counted(values['num_prompts'], 'request')}, {arrivals}{bound}\n\n"


def _record(values: dict[str, Any], report: Report, model: str) -> dict[str, Any]:
    """The figures with the questions that they answer."""
    rate = values["request_rate"]
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if values["endpoint"] == "chat" else "openai",
        "model_id": model,
        "tokenizer_id": values["tokenizer"],
        "dataset": values["dataset"],
        "num_prompts": values["num_prompts"],
        # JSON has no infinity.
        "request_rate": rate if math.isfinite(rate) else "inf",
        "burstiness": values["burstiness"] if math.isfinite(values["burstiness"]) else "inf",
        "max_concurrency": values["max_concurrency"],
        "seed": values["seed"],
        **report.figures(),
    }
