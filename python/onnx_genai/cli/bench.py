"""``onnx-genai bench``: prompt and decoding speed of a model, in the terms of llama-bench."""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.models import MODEL, fetched_model
from onnx_genai.cli.options import ModelOptions, model_options, take
from onnx_genai.cli.profile import ProfileOptions, Profiler, profile_options
from onnx_genai.errors import ContextOverflowError
from onnx_genai.types import SamplingParams

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM

__all__ = ["Test", "bench", "prefill_seconds", "tests_for"]

_SEED = 20240607
_PAIRS = 3
"""Of a short and a long run, whose difference is what is measured."""
_PIECES = 16
"""Arrivals of a sequence that are enough to time it by, where several tokens arrive at once."""
_UNKNOWN = "not measurable"


if TYPE_CHECKING:
    _ParamType = click.ParamType[tuple[int, ...]]
else:
    _ParamType = click.ParamType


class _Numbers(_ParamType):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers, such as 512 or 128,512", param, ctx)
        if any(number < 0 for number in numbers):
            self.fail(f"{value!r} has a number below 0", param, ctx)
        return numbers


_NUMBERS = _Numbers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One row: a prompt that is computed (``pp``), or tokens that are generated (``tg``)."""

    kind: str
    num_tokens: int
    """Of each sequence."""
    depth: int
    """Tokens before, which are not timed."""
    batch: int

    @property
    def name(self) -> str:
        """As llama-bench writes it: ``pp512``, ``tg128 @ d1024``."""
        depth = f" @ d{self.depth}" if self.depth else ""
        batch = f" b{self.batch}" if self.batch > 1 else ""
        return f"{self.kind}{self.num_tokens}{depth}{batch}"


@click.command()
@click.argument("model", type=MODEL)
@click.option(
    "-p", "--n-prompt", type=_NUMBERS, default="512", show_default=True, help="Prompt tokens; 0 is no such test."
)
@click.option(
    "-n", "--n-gen", type=_NUMBERS, default="128", show_default=True, help="Generated tokens; 0 is no such test."
)
@click.option("-d", "--n-depth", type=_NUMBERS, default="0", show_default=True, help="Tokens in the context before.")
@click.option("-b", "--batch", type=_NUMBERS, default="1", show_default=True, help="Sequences at once.")
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True, metavar="N")
@click.option("--vs", type=MODEL, metavar="MODEL", help="A second model, measured in turns with the first.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with every sample.")
@profile_options
@model_options
def bench(model: str, **values: Any) -> None:
    """Measure how fast MODEL reads prompts (pp) and generates (tg), in tokens a second.

    Each test runs once to warm up and then -r times; the table has mean and standard deviation. Numbers with commas
    between them give all combinations. Prompts are random token ids, and no end token stops an answer.
    """
    loading = take(ModelOptions, values)
    tests = tests_for(values["n_prompt"], values["n_gen"], values["n_depth"], values["batch"])
    profiler = Profiler(ProfileOptions.take(values))
    if profiler.wanted and values["vs"] is not None:
        raise click.UsageError("--profile and its like record one model; leave --vs out")
    names = [model] if values["vs"] is None else [model, values["vs"]]
    paths = [fetched_model(name, variant=loading.variant, offline=loading.offline) for name in names]
    most = max(values["batch"])
    subjects = [
        _Subject(name, path, console.interruptible(lambda path=path: loading.open(path, max_num_seqs=most)))  # type: ignore[misc]
        for name, path in zip(names, paths, strict=True)
    ]
    try:
        for subject in subjects:  # before anything takes time
            _check_room(tests, subject)
        profiler.begin(subjects[0].llm)
        rows = (_measured(test, subjects, values["repetitions"]) for test in tests)
        if values["as_json"]:
            console.write(json.dumps(_report_object(subjects, rows), ensure_ascii=False) + "\n")
        else:
            for line in _table(subjects, rows):  # each row as soon as it is measured
                console.write(f"{line}\n")
        profiler.end()
    finally:
        profiler.close()
        for subject in subjects:
            subject.llm.close()


def tests_for(
    prompts: Sequence[int], generated: Sequence[int], depths: Sequence[int], batches: Sequence[int]
) -> list[Test]:
    """All combinations, prompts first.

    Raises:
        click.UsageError: There is nothing to measure.
    """
    if 0 in batches:
        raise click.UsageError("-b is 0; allowed: 1 and more")
    kinds = [("pp", number) for number in prompts if number] + [("tg", number) for number in generated if number]
    if not kinds:
        raise click.UsageError("-p and -n are both 0, so there is nothing to measure")
    return [
        Test(kind=kind, num_tokens=number, depth=depth, batch=batch)
        for batch in dict.fromkeys(batches)
        for depth in dict.fromkeys(depths)
        for kind, number in dict.fromkeys(kinds)
    ]


@dataclass(frozen=True, slots=True)
class _Subject:
    """A model that is measured."""

    name: str
    path: Path
    llm: LLM


@dataclass(slots=True)
class _Row:
    test: Test
    samples: list[list[float | None]]
    """[subject][repetition] tokens a second; None where they could not be measured."""


def _measured(test: Test, subjects: Sequence[_Subject], repetitions: int) -> _Row:
    row = _Row(test, [[] for _ in subjects])
    for subject in subjects:
        rate_of(subject.llm, test)  # warms up: buffers grow to their size, and memory is touched
    for repetition in range(repetitions):
        # In turns and in changing order, so that a machine that slows down does so for both.
        order = list(enumerate(subjects))
        for place, subject in order if repetition % 2 == 0 else reversed(order):
            row.samples[place].append(rate_of(subject.llm, test))
    if any(None in samples for samples in row.samples):
        console.note(
            f"{test.name}: {_UNKNOWN}; it takes too little beside what is computed before it, and that time varies by "
            "more; use more tokens, or less depth"
        )
    return row


def _check_room(tests: Sequence[Test], subject: _Subject) -> None:
    limit = subject.llm.context_limit
    test = max(tests, key=lambda test: test.depth + test.num_tokens)
    needed = test.depth + test.num_tokens + 1
    if limit is not None and needed > limit:
        raise ContextOverflowError(
            f"{test.name} needs {needed} tokens ({needed}/{limit}; limit from {subject.llm.context_source}); use "
            "smaller -p, -n or -d"
        )


def rate_of(llm: LLM, test: Test) -> float | None:
    """Runs a test once and returns tokens a second, of all its sequences together; None if they cannot be measured."""
    llm.engine.clear_prefix_cache()
    if test.kind == "tg":
        return _decode_rate(llm, test)
    seconds = prefill_seconds(llm, test.depth, test.num_tokens, test.batch)
    return None if seconds is None else test.num_tokens * test.batch / seconds


def prefill_seconds(llm: LLM, depth: int, num_tokens: int, batch: int) -> float | None:
    """Seconds for prompts of ``num_tokens`` behind ``depth`` tokens.

    The tokens before are computed first and found again in the prefix cache. A decoder that shares nothing computes
    them again; then their own time is taken off, and None tells that what is left cannot be told from the noise.
    """
    prompts = [_random_ids(llm, depth + num_tokens, row) for row in range(batch)]
    if not depth:
        return _timed(llm, prompts, 1)[0]
    before = [ids[:depth] for ids in prompts]
    first, _ = _timed(llm, before, 1)
    seconds, cached = _timed(llm, prompts, 1)
    block = _whole(llm.info().get("block_size")) or 1
    if cached >= batch * (depth - block):
        return seconds
    return _difference(
        lambda: _timed(llm, before, 1, anew=True)[0],
        lambda: _timed(llm, prompts, 1, anew=True)[0],
        known=[] if cached else [seconds - first],
    )


def _difference(less: Callable[[], float], more: Callable[[], float], *, known: Sequence[float] = ()) -> float | None:
    """By how many seconds ``more`` takes longer: the median of several pairs, which may be partly ``known``.

    None if the pairs differ by more than that.
    """
    found = list(known)
    while len(found) < _PAIRS:
        start = less()
        found.append(more() - start)
    middle = statistics.median(found)
    return middle if middle > max(found) - min(found) else None


def _timed(llm: LLM, prompts: Sequence[list[int]], num_tokens: int, *, anew: bool = False) -> tuple[float, int]:
    """Answers prompts together; the seconds, and the tokens that were found in the cache, which ``anew`` empties."""
    if anew:
        llm.engine.clear_prefix_cache()
    start = time.perf_counter()
    results = llm.generate(prompts, _params(num_tokens))
    seconds = time.perf_counter() - start
    return seconds, sum(result.usage.cached_tokens for result in results)


def _decode_rate(llm: LLM, test: Test) -> float | None:
    """Tokens a second from the moment when all sequences have their first token."""
    prompts = [_random_ids(llm, max(test.depth, 1), row) for row in range(test.batch)]
    times = _token_times(llm, prompts, test.num_tokens + 1)
    start = max(own[0] for own in times)
    after = [[moment for moment in own if moment > start] for own in times]
    if all(len(set(own)) >= min(test.num_tokens / 2, _PIECES) for own in after):
        return sum(map(len, after)) / (max(map(max, after)) - start)
    # So fast that tokens came in pieces of many: then the time of one token is taken off that of all.
    seconds = _difference(
        lambda: _timed(llm, prompts, 1, anew=True)[0],
        lambda: _timed(llm, prompts, test.num_tokens + 1, anew=True)[0],
    )
    return None if seconds is None else test.num_tokens * test.batch / seconds


def _token_times(llm: LLM, prompts: Sequence[list[int]], num_tokens: int) -> list[list[float]]:
    """When each token of each sequence came."""
    times: list[list[float]] = [[] for _ in prompts]
    failures: list[BaseException] = []

    def read(row: int) -> None:
        try:
            for chunk in llm.stream(prompts[row], _params(num_tokens)):
                times[row] += [time.perf_counter()] * len(chunk.token_ids)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    if len(prompts) == 1:
        read(0)
    else:
        threads = [threading.Thread(target=read, args=(row,), daemon=True) for row in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # short waits, so that Ctrl-C is seen
                thread.join(0.1)
    if failures:
        raise failures[0]
    return times


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=num_tokens, temperature=0.0, ignore_eos=True)


def _random_ids(llm: LLM, count: int, row: int) -> list[int]:
    """The same ids each time; another sequence for each row, so that nothing is shared."""
    draw = random.Random(_SEED + row)
    vocab = max(llm.engine.vocab_size, 2)
    return [draw.randrange(vocab) for _ in range(count)]


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _weight_bytes(path: Path) -> int:
    """Size of a package's graph and weights."""
    folder = path if path.is_dir() else path.parent
    names = ("*.onnx", "*.onnx_data*", "*.onnx.data", "*.data", "*.bin")
    return sum(file.stat().st_size for file in {file for name in names for file in folder.rglob(name)})


def _mean_sd(samples: Sequence[float | None]) -> tuple[float, float] | None:
    """None if a sample could not be measured: a mean of the others would be one of a choice."""
    known = [sample for sample in samples if sample is not None]
    if len(known) < len(samples):
        return None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0


def _ratio(second: tuple[float, float] | None, first: tuple[float, float] | None) -> float | None:
    return None if first is None or second is None else second[0] / first[0]


def _label(subject: _Subject) -> str:
    place = Path(subject.name)
    return (place if place.is_dir() else place.parent).resolve().name if place.exists() else subject.name


def _table(subjects: Sequence[_Subject], rows: Iterable[_Row]) -> Iterable[str]:
    """A Markdown table."""
    ratio = ["ratio"] if len(subjects) > 1 else []
    head = ["model", "size", "backend", "threads", "test", "t/s", *ratio]
    yield f"| {' | '.join(head)} |"
    right = {"size", "threads", "test", "t/s", "ratio"}
    yield f"| {' | '.join('---:' if name in right else '---' for name in head)} |"
    for row in rows:
        first = _mean_sd(row.samples[0])
        for place, subject in enumerate(subjects):
            info = subject.llm.info()
            own = _mean_sd(row.samples[place])
            times = _ratio(own, first)
            cells = [
                _label(subject),
                f"{_weight_bytes(subject.path) / 2**20:.1f} MiB",
                f"{info.get('execution_provider')} ({info.get('decoder')}, {info.get('backend')})",
                str(info.get("intra_op_threads")),
                row.test.name,
                _UNKNOWN if own is None else f"{own[0]:.2f} ± {own[1]:.2f}",
                *(["-" if times is None else f"{times:.2f}"] if ratio else []),
            ]
            yield f"| {' | '.join(cells)} |"


def _report_object(subjects: Sequence[_Subject], rows: Iterable[_Row]) -> dict[str, Any]:
    models = []
    for subject in subjects:
        info = subject.llm.info()
        models.append(
            {
                "model": subject.name,
                "path": str(subject.path),
                "size_bytes": _weight_bytes(subject.path),
                "execution_provider": info.get("execution_provider"),
                "decoder": info.get("decoder"),
                "backend": info.get("backend"),
                "threads": info.get("intra_op_threads"),
                "ort_version": info.get("ort_version"),
            }
        )
    return {"models": models, "tests": [_row_object(row) for row in rows]}


def _row_object(row: _Row) -> dict[str, Any]:
    found = [_mean_sd(samples) for samples in row.samples]
    results: list[dict[str, Any]] = []
    for samples, own in zip(row.samples, found, strict=True):
        mean, deviation = (None, None) if own is None else own
        results.append({"mean": mean, "stddev": deviation, "samples": samples})
    value: dict[str, Any] = {"name": row.test.name, **dataclasses.asdict(row.test), "tokens_per_second": results}
    if len(results) > 1:
        value["ratio"] = _ratio(found[1], found[0])
    return value
