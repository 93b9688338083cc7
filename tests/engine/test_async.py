"""AsyncLLM: the answers of LLM, cancellation, many requests, event loops that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from onnx_genai import LLM, AsyncLLM, Chunk, SamplingParams, errors, grammar
from tests.engine.processors import Slow, settled
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary

T = TypeVar("T")


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[AsyncLLM]:
    model = AsyncLLM(checksum_package("gqa"), threads=1)
    yield model
    asyncio.run(model.close())


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 120))


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)


def slow(count: int = 4000) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True, logits_processors=(Slow(),))


def is_idle(metrics: dict[str, float]) -> bool:
    return not metrics["num_running"] and not metrics["num_waiting"] and not metrics["kv_hot_used_blocks"]


async def collect(stream: AsyncIterator[Chunk]) -> list[int]:
    return [token async for chunk in stream for token in chunk.token_ids]


def test_generate_gives_what_llm_gives(llm: AsyncLLM, checksum_package: Callable[..., Path]) -> None:
    params = SamplingParams(max_new_tokens=20, temperature=1.5, seed=3, n=3, logprobs=True, top_logprobs=2)
    with LLM(checksum_package("gqa"), threads=1) as sync:
        expected = sync.generate([1, 2, 3], params)

    result = run(llm.generate([1, 2, 3], params))

    assert result.choices == expected.choices
    assert result.prompt_token_ids == expected.prompt_token_ids
    assert result.usage.completion_tokens == expected.usage.completion_tokens


def test_list_in_list_out_keeps_the_order(llm: AsyncLLM) -> None:
    prompts = [[i, 1] for i in range(20)]

    results = run(llm.generate(prompts, [greedy(1 + i) for i in range(20)]))

    assert [list(each.token_ids) for each in results] == [checksum_generate([i, 1], 1 + i) for i in range(20)]
    assert run(llm.generate([])) == []


def test_stream_pieces_join_to_the_result(llm: AsyncLLM) -> None:
    async def main() -> list[Chunk]:
        return [chunk async for chunk in llm.stream([5, 6], greedy(30))]

    chunks = run(main())

    assert [token for chunk in chunks for token in chunk.token_ids] == checksum_generate([5, 6], 30)
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1].finish_reason, chunks[-1].usage and chunks[-1].usage.completion_tokens) == ("length", 30)


def test_chat_uses_the_template(scripted_package: Callable[..., Path]) -> None:
    async def main() -> str:
        async with AsyncLLM(scripted_package("hello there"), threads=1) as model:
            result = await model.chat([{"role": "user", "content": "hi"}], SamplingParams(temperature=0))
            return result.text

    assert run(main()) == "hello there"


def test_two_hundred_requests_at_once_each_get_their_own_answer(llm: AsyncLLM) -> None:
    async def one(i: int) -> bool:
        prompt, count = [i % 97, i // 97, 7], 1 + i % 23
        if i % 2:
            tokens = await collect(llm.stream(prompt, greedy(count)))
        else:
            tokens = list((await llm.generate(prompt, greedy(count))).token_ids)
        return tokens == checksum_generate(prompt, count)

    async def main() -> list[bool]:
        return await asyncio.gather(*(one(i) for i in range(200)))

    assert all(run(main()))
    assert settled(llm, is_idle)


def test_one_thread_reads_for_all_requests(llm: AsyncLLM) -> None:
    async def main() -> int:
        streams = [llm.stream([i], greedy(50)) for i in range(30)]
        for stream in streams:
            await anext(stream)
        return sum(thread.name == "onnx-genai-events" for thread in threading.enumerate())

    assert run(main()) <= 2  # a thread of an earlier model may be on its way out


@pytest.mark.parametrize("until_end", [True, False])
def test_cancelled_task_frees_its_request_at_once(llm: AsyncLLM, until_end: bool) -> None:
    async def main() -> bool:
        before = llm.metrics()["num_aborted_requests"]
        work = llm.generate([1, 2], slow()) if until_end else collect(llm.stream([1, 2], slow()))
        task = asyncio.ensure_future(work)
        while not await asyncio.to_thread(settled, llm, lambda metrics: metrics["num_running"] == 1, 0.1):
            pass
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        return await asyncio.to_thread(
            settled, llm, lambda metrics: is_idle(metrics) and metrics["num_aborted_requests"] > before
        )

    assert run(main())


def test_leaving_the_loop_frees_the_request_at_once(llm: AsyncLLM) -> None:
    async def main() -> bool:
        async for _ in llm.stream([1, 2], slow()):
            break
        return await asyncio.to_thread(settled, llm, is_idle)

    assert run(main())


def test_aclosing_and_an_exception_in_the_body_free_the_request(llm: AsyncLLM) -> None:
    async def main() -> bool:
        async def fail() -> None:
            async for _ in llm.stream([1, 2], slow()):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with contextlib.aclosing(llm.stream([1, 2], slow())) as stream:
            await anext(stream)
        assert [chunk async for chunk in stream] == []
        return await asyncio.to_thread(settled, llm, is_idle)

    assert run(main())


def test_timeout_of_asyncio_aborts_the_request(llm: AsyncLLM) -> None:
    async def main() -> bool:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.generate([1, 2], slow()), 0.05)
        return await asyncio.to_thread(settled, llm, is_idle)

    assert run(main())


def test_timeout_of_the_request_is_a_deadline_error(llm: AsyncLLM) -> None:
    async def main() -> int:
        pieces = 0

        async def read() -> None:
            nonlocal pieces
            async for _ in llm.stream([1, 2], slow(), timeout=0.05):
                pieces += 1

        with pytest.raises(errors.DeadlineError):
            await read()
        with pytest.raises(errors.DeadlineError):
            await llm.generate([1, 2], slow(), timeout=0.05)
        return pieces

    assert run(main()) > 0
    assert settled(llm, is_idle)


def test_bad_input_is_raised_at_the_call(llm: AsyncLLM) -> None:
    async def main() -> None:
        with pytest.raises(errors.InvalidArgumentError, match="prompt is empty"):
            await llm.generate([[]])
        with pytest.raises(errors.InvalidArgumentError, match=r"allowed: 0\.\.96"):
            llm.stream([1000])
        with pytest.raises(errors.InvalidArgumentError, match="priority is 'high'"):
            await llm.generate([1], priority="high")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(llm.stream, [1])

    run(main())


def test_error_of_a_user_processor_ends_its_request_only(llm: AsyncLLM) -> None:
    class Raises:
        def process(self, token_ids: Any, logits: Any) -> None:
            raise KeyError("user code")

    async def main() -> list[int]:
        good = asyncio.ensure_future(llm.generate([3], greedy(40)))
        with pytest.raises(errors.InvalidArgumentError, match="user code"):
            await llm.generate([1], SamplingParams(max_new_tokens=5, logits_processors=(Raises(),)))
        return list((await good).token_ids)

    assert run(main()) == checksum_generate([3], 40)


def test_two_readers_of_one_stream_are_told_and_the_first_goes_on(llm: AsyncLLM) -> None:
    async def main() -> int:
        stream = llm.stream([1, 2], slow(30))
        first = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0)
        with pytest.raises(errors.InvalidArgumentError, match="two tasks read one stream"):
            await anext(stream)
        return len(await first)

    assert run(main()) == 30


@pytest.mark.parametrize("seconds", [0.0, 0.2], ids=["nothing is there", "chunks are there"])
def test_stream_read_in_another_loop_is_told(llm: AsyncLLM, seconds: float) -> None:
    async def main() -> list[int]:
        stream = llm.stream([1, 2], slow(30))

        async def read() -> None:
            with pytest.raises(errors.InvalidArgumentError, match="another event loop"):
                await anext(stream)

        await asyncio.sleep(seconds)
        await asyncio.to_thread(asyncio.run, read())
        return await collect(stream)

    assert run(main()) == checksum_generate([1, 2], 30), "the mistake takes nothing from the stream"


def test_many_loops_in_many_threads_share_a_model(llm: AsyncLLM) -> None:
    async def main(thread: int) -> bool:
        results = await asyncio.gather(*(llm.generate([thread, i], greedy(10)) for i in range(10)))
        return [list(each.token_ids) for each in results] == [checksum_generate([thread, i], 10) for i in range(10)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda thread: run(main(thread)), range(16)))


def test_loop_that_ends_early_takes_its_requests_with_it(llm: AsyncLLM) -> None:
    kept: list[AsyncIterator[Chunk]] = []

    async def main() -> None:
        kept.append(llm.stream([1, 2], slow()))
        await anext(kept[0])

    run(main())

    # The stream is still held, so only the reader, which finds the loop closed, can end the request.
    assert settled(llm, is_idle)
    kept.clear()
    gc.collect()
    assert list(run(llm.generate([1, 2], greedy(5))).token_ids) == checksum_generate([1, 2], 5)


def test_close_ends_waiting_tasks_with_an_error(checksum_package: Callable[..., Path]) -> None:
    async def main() -> None:
        model = AsyncLLM(checksum_package("gqa"), threads=1)
        tasks = [asyncio.ensure_future(model.generate([i], slow())) for i in range(5)]
        stream = model.stream([9], slow())
        await anext(stream)
        await model.close()
        await model.close()
        for task in tasks:
            with pytest.raises(errors.AbortedError, match="closed"):
                await task
        with pytest.raises(errors.AbortedError, match="closed"):
            await collect(stream)
        with pytest.raises(errors.AbortedError, match="closed"):
            await model.generate([1], greedy(1))

    run(main())
    assert not [each for each in threading.enumerate() if each.name == "onnx-genai-events" and not each.daemon]


def test_model_that_is_dropped_without_close_frees_its_thread(checksum_package: Callable[..., Path]) -> None:
    model = AsyncLLM(checksum_package("gqa"), threads=1)
    run(model.generate([1], greedy(2)))
    del model
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_is_refused(llm: AsyncLLM) -> None:
    run(llm.generate([1, 2], greedy(2)))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(llm.generate([1, 2], greedy(2)))
            answer = b"no error"
        except errors.AbortedError as error:
            answer = str(error).encode()
        except BaseException as error:  # noqa: BLE001 (the child must report whatever happens)
            answer = repr(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(child, 0)

    assert "after a fork" in answer
    assert list(run(llm.generate([1, 2], greedy(2))).token_ids) == checksum_generate([1, 2], 2)


@pytest.mark.parametrize(
    "ending",
    ["await stream.__anext__()", "sys.exit(0)", "del stream; del model", "await model.close()", "loop.stop()"],
)
def test_interpreter_ends_quietly_with_requests_open(ending: str, checksum_package: Callable[..., Path]) -> None:
    program = f"""
        import asyncio, contextlib, sys
        from onnx_genai import AsyncLLM, SamplingParams

        model = AsyncLLM({str(checksum_package("gqa"))!r}, threads=1)

        async def main():
            global model
            loop = asyncio.get_running_loop()
            stream = model.stream([1, 2], SamplingParams(max_new_tokens=4000, temperature=0, ignore_eos=True))
            await stream.__anext__()
            {ending}

        with contextlib.suppress(RuntimeError):
            asyncio.run(main())
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_stream_compiles_its_grammar_beside_the_loop(
    noise_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AsyncLLM(noise_package(1), threads=1)
    kind = type(model.engine)
    compile_grammar, seen, may_end = kind.compile_grammar, [threading.current_thread()], threading.Event()

    def held(self: Any, spec: Any) -> Any:
        if len(seen) == 1:
            seen.append(threading.current_thread())
            assert may_end.wait(60)
        return compile_grammar(self, spec)

    monkeypatch.setattr(kind, "compile_grammar", held)

    async def main() -> tuple[str, str]:
        stream = model.stream("Say", greedy(50), grammar=grammar.choice(["alpha", "beta"]))
        first = asyncio.ensure_future(anext(stream))
        while len(seen) == 1:
            await asyncio.sleep(0.001)
        meanwhile = await model.generate("Say", greedy(3))
        assert not first.done()
        may_end.set()
        texts = [(await first).text] + [chunk.text async for chunk in stream]
        closed = model.stream("Say", greedy(50), grammar=grammar.choice(["alpha"]))
        await closed.aclose()
        assert [chunk async for chunk in closed] == []
        with pytest.raises(errors.InvalidArgumentError, match="closed before it began"):
            await closed.result()
        whole = await model.stream("Say", greedy(50), grammar=grammar.choice(["alpha", "beta"])).result()
        await model.close()
        assert len(meanwhile.token_ids) == 3
        return "".join(texts), whole.text

    streamed, whole = run(main())
    assert streamed == whole
    assert whole in ("alpha", "beta")
    assert seen[1] is not seen[0]
