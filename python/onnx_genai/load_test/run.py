"""The load itself: sends requests when they are due, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onnx_genai.errors import InternalError
from onnx_genai.load_test.answer import Outcome, Target
from onnx_genai.load_test.dataset import Sample
from onnx_genai.load_test.http import HttpClient, NoAnswerError

__all__ = ["Load", "first_model", "run_load"]

_LIST_SECONDS = 30.0


@dataclass(slots=True)
class Load:
    """What was asked, and what came of it so far."""

    outcomes: list[Outcome] = field(default_factory=list)
    """Of the requests that were sent, in that order."""
    duration: float = 0.0
    """Seconds from the first request to the end of the last."""
    interrupted: bool = False


async def first_model(client: HttpClient) -> str:
    """The first model that the server lists.

    Raises:
        NoAnswerError: Nobody answers.
        NoAnswerError: It lists none.
    """
    try:
        body = await asyncio.wait_for(_models(client), _LIST_SECONDS)
    except asyncio.TimeoutError as error:
        raise NoAnswerError(
            f"{client.base_url} does not list its models within {_LIST_SECONDS:g} s; name one with --model, or check "
            "the address"
        ) from error
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise NoAnswerError(f"{client.base_url} answers in no form of HTTP; check the address") from error
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise NoAnswerError(f"{client.base_url} lists no model; name one with --model") from error


async def _models(client: HttpClient) -> bytes:
    async with client.request("GET", "/models") as response:
        body = await response.read()
        if response.status != 200:
            raise NoAnswerError(
                f"{client.base_url} answers {response.status} when asked for its models; name one with --model, and "
                "check the address and the API key"
            )
        return body


async def run_load(
    target: Target,
    samples: Sequence[Sample],
    times: Sequence[float],
    *,
    load: Load,
    max_concurrency: int | None = None,
    stop: asyncio.Event | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> None:
    """Sends each sample at its time and waits for all answers.

    Args:
        target: Whom to ask.
        samples: What to ask.
        times: Seconds from the start, ascending, one for each sample.
        load: Filled while it runs.
        max_concurrency: Requests that are open at once; one that is due waits, and its time counts from when it is
            sent. None is no bound.
        stop: When it is set, what is still open is given up.
        on_end: Called when a request has ended.
    """
    start = time.perf_counter()
    places = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()

    async def one(sample: Sample) -> None:
        async with places:
            outcome = Outcome()
            load.outcomes.append(outcome)
            await target.ask(sample, outcome, start)
            if on_end is not None:
                on_end(outcome)

    async def all_of_them() -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            for sample, due in zip(samples, times, strict=True):
                wait = due - (time.perf_counter() - start)
                if wait > 0:
                    await asyncio.sleep(wait)
                tasks.append(asyncio.ensure_future(one(sample)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    work = asyncio.ensure_future(all_of_them())
    stopped = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        load.interrupted = not work.done()
    finally:
        for each in (work, stopped):
            each.cancel()
        results = await asyncio.gather(work, stopped, return_exceptions=True)
        load.duration = time.perf_counter() - start
    if isinstance(results[0], Exception):
        raise InternalError(f"the load failed: {results[0]}") from results[0]
