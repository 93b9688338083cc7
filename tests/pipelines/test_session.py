"""Sessions: the same answers as one-shot requests, whatever was appended, forked, rewound, saved and loaded."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import LLM, AsyncLLM, SamplingParams, Session, errors
from tests.engine.processors import Slow, settled
from tests.models.checksum import checksum_generate

pytestmark = pytest.mark.boundary


@pytest.fixture(scope="module")
def llm(checksum_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(checksum_package("gqa", context_length=512), threads=1) as model:
        yield model


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)


def slow() -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, logits_processors=(Slow(),))


def grown(llm: LLM, length: int = 40, seed: int = 1) -> Session:
    draw = random.Random(seed)
    session = llm.session()
    session.append([draw.randrange(97) for _ in range(length)])
    return session


def test_turns_are_those_of_one_shot_requests(llm: LLM) -> None:
    session = llm.session()
    text: list[int] = []

    for turn in range(5):
        new = [(turn * 31 + i) % 97 for i in range(7)]
        assert session.append(new) == 7
        text += new
        result = session.generate(greedy(10))
        assert list(result.token_ids) == checksum_generate(text, 10)
        assert result.prompt_token_ids == tuple(text)
        text += result.token_ids
        assert session.tokens == tuple(text)
        assert session.num_tokens == len(text)


def test_later_turn_computes_only_what_is_new(llm: LLM) -> None:
    session = grown(llm, length=100, seed=77)
    session.generate(greedy(30))
    before = llm.metrics()["num_prompt_tokens"]

    session.append([1, 2, 3])
    usage = session.generate(greedy(2)).usage

    assert usage.cached_tokens == 128
    assert llm.metrics()["num_prompt_tokens"] - before <= 133 - 128


def test_append_takes_text_ids_and_nothing_else(scripted_package: Callable[..., Path]) -> None:
    with LLM(scripted_package("hello there"), threads=1) as model:
        session = model.session()

        assert session.append("") == 0
        session.append("x")
        assert session.tokens == tuple(model.tokenizer.encode("x"))
        assert session.generate(SamplingParams(temperature=0)).text == "hello there"
        for wrong in (None, 5, b"x", [1.5], [True], [-1], [10**6]):
            with pytest.raises(errors.InvalidArgumentError):
                session.append(wrong)  # type: ignore[arg-type]


def test_stream_appends_when_the_last_piece_is_delivered(llm: LLM) -> None:
    session = grown(llm)
    start = list(session.tokens)

    seen = 0
    for chunk in session.stream(greedy(10)):
        seen += len(chunk.token_ids)
        assert session.num_tokens == len(start) + (10 if chunk.usage is not None else 0)

    assert seen == 10
    assert list(session.tokens) == [*start, *checksum_generate(start, 10)]


def test_stream_left_early_leaves_the_session_and_frees_the_request(llm: LLM) -> None:
    session = grown(llm)
    start = session.tokens

    for _ in session.stream(slow()):
        break
    stream = session.stream(slow())
    stream.close()
    session.stream(slow())  # nobody reads it

    assert session.tokens == start
    assert list(session.generate(greedy(3)).token_ids) == checksum_generate(start, 3)
    assert settled(llm, lambda metrics: not metrics["num_running"] and not metrics["kv_hot_used_blocks"])


def test_turn_that_fails_leaves_the_session(llm: LLM) -> None:
    class Raises:
        def process(self, token_ids: Any, logits: Any) -> None:
            if len(token_ids[0]) > 43:
                raise KeyError("user code")

    session = grown(llm)
    start = session.tokens

    with pytest.raises(errors.InvalidArgumentError, match="user code"):
        session.generate(SamplingParams(max_new_tokens=10, logits_processors=(Raises(),)))
    with pytest.raises(errors.InvalidArgumentError, match="user code"):
        list(session.stream(SamplingParams(max_new_tokens=10, logits_processors=(Raises(),))))
    with pytest.raises(errors.DeadlineError):
        session.generate(slow(), timeout=0.05)
    with pytest.raises(errors.InvalidArgumentError, match="n is 2"):
        session.generate(SamplingParams(n=2))
    with pytest.raises(errors.InvalidArgumentError, match="priority"):
        session.generate(greedy(1), priority="x")  # type: ignore[arg-type]

    assert session.tokens == start
    assert list(session.generate(greedy(3)).token_ids) == checksum_generate(start, 3)


def test_fork_goes_its_own_way(llm: LLM) -> None:
    session = grown(llm)
    session.generate(greedy(5))
    start = list(session.tokens)

    child = session.fork()
    child.append([1, 2])
    session.append([3])

    assert list(child.generate(greedy(6)).token_ids) == checksum_generate([*start, 1, 2], 6)
    assert list(session.generate(greedy(6)).token_ids) == checksum_generate([*start, 3], 6)


def test_fork_of_a_long_session_takes_less_than_a_millisecond(checksum_package: Callable[..., Path]) -> None:
    with LLM(checksum_package("gqa", context_length=8192), threads=1) as model:
        session = grown(model, length=4096)
        session.generate(greedy(1))  # computes the KV that a fork must not copy
        before = model.metrics()
        assert before["kv_hot_cached_blocks"] + before["kv_hot_used_blocks"] >= 4096 // 16

        seconds = []
        for _ in range(9):
            start = time.perf_counter()
            session.fork()
            seconds.append(time.perf_counter() - start)

        assert sorted(seconds)[4] < 1e-3
        after = model.metrics()
        for name in ("kv_copied_blocks", "kv_allocated_blocks", "kv_hot_used_blocks"):
            assert after[name] == before[name]
        child = session.fork()
        child.append([5])
        answer = child.generate(greedy(3))
        assert answer.usage.cached_tokens >= 4096
        assert list(answer.token_ids) == checksum_generate([*session.tokens, 5], 3)


def test_rewind_keeps_the_first_tokens(llm: LLM) -> None:
    session = grown(llm, length=50)
    session.generate(greedy(20))
    text = list(session.tokens)

    for length in (69, 48, 33, 17, 16, 1):
        session.rewind(length)
        assert list(session.tokens) == text[:length]
        assert list(session.generate(greedy(4)).token_ids) == checksum_generate(text[:length], 4)
        session.rewind(length)
    session.rewind(0)
    with pytest.raises(errors.InvalidArgumentError, match="session is empty"):
        session.generate()


@pytest.mark.parametrize("length", [-1, 41, 1.0, True, None, "3"])
def test_rewind_to_a_wrong_length_is_refused(llm: LLM, length: Any) -> None:
    session = grown(llm)

    with pytest.raises(errors.InvalidArgumentError, match=r"n_tokens is .*; allowed"):
        session.rewind(length)

    assert session.num_tokens == 40


def test_context_that_is_full_is_told_and_leaves_the_session(llm: LLM) -> None:
    session = grown(llm, length=500)
    start = session.tokens

    with pytest.raises(errors.ContextOverflowError, match=r"513 tokens \(513/512\); the limit is 512 tokens, from"):
        session.append([1] * 13)
    assert session.tokens == start
    session.append([1] * 12)
    with pytest.raises(errors.ContextOverflowError, match="512/512"):
        session.generate(greedy(1))
    session.rewind(511)
    assert session.generate(greedy(10)).finish_reason == "length"
    assert session.num_tokens == 512


def test_closed_session_says_so(llm: LLM, tmp_path: Path) -> None:
    session = grown(llm)
    with session:
        pass
    session.close()

    for call in (
        lambda: session.append([1]),
        lambda: session.generate(),
        lambda: session.stream(),
        lambda: session.rewind(0),
        lambda: session.fork(),
        lambda: session.save(tmp_path / "s"),
    ):
        with pytest.raises(errors.AbortedError, match="session is closed"):
            call()
    assert session.num_tokens == 0


def test_second_turn_at_once_is_refused(llm: LLM) -> None:
    session = grown(llm)
    stream = session.stream(slow())
    next(stream)

    for call in (
        lambda: session.append([1]),
        lambda: session.generate(greedy(1)),
        lambda: session.rewind(3),
    ):
        with pytest.raises(errors.InvalidArgumentError, match="while a turn of this session runs"):
            call()
    assert session.fork().num_tokens == 40
    stream.close()
    session.append([1])


def test_sessions_of_many_threads_do_not_mix(llm: LLM) -> None:
    wrong: list[int] = []

    def talk(number: int) -> None:
        session = grown(llm, length=30, seed=number % 3)
        for turn in range(4):
            session.append([number, turn])
            text = list(session.tokens)
            if list(session.generate(greedy(8)).token_ids) != checksum_generate(text, 8):
                wrong.append(number)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_session_of_another_salt_shares_nothing(llm: LLM) -> None:
    ids = list(grown(llm, length=40, seed=99).tokens)
    one, other = llm.session(cache_salt="one"), llm.session(cache_salt="other")
    for session in (one, other):
        session.append(ids)

    assert one.generate(greedy(1)).usage.cached_tokens == 0
    assert other.generate(greedy(1)).usage.cached_tokens == 0
    assert one.generate(greedy(1)).usage.cached_tokens == 32
    assert one.fork().cache_salt == "one"


def test_saved_session_goes_on_in_another_process(
    llm: LLM, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    session = grown(llm, length=100, seed=5)
    session.generate(greedy(30))
    text = list(session.tokens)
    session.save(tmp_path / "s.kv")

    with LLM(checksum_package("gqa", context_length=512), threads=1) as other:
        loaded = other.load_session(tmp_path / "s.kv")
        result = loaded.generate(greedy(10))

        assert list(result.prompt_token_ids) == text
        assert list(result.token_ids) == checksum_generate(text, 10)
        assert result.usage.cached_tokens == 128
        assert other.metrics()["num_prompt_tokens"] <= 130 - 128


def test_saved_session_without_cached_kv_is_its_tokens(llm: LLM, tmp_path: Path) -> None:
    session = grown(llm, length=60, seed=6)
    session.save(tmp_path / "fresh")
    session.generate(greedy(5))
    llm.engine.clear_prefix_cache()
    session.save(tmp_path / "evicted")
    llm.session().save(tmp_path / "empty")

    for name in ("fresh", "evicted"):
        loaded = llm.load_session(tmp_path / name)
        text = list(loaded.tokens)
        assert list(loaded.generate(greedy(4)).token_ids) == checksum_generate(text, 4)
    assert llm.load_session(tmp_path / "empty").num_tokens == 0


def test_session_of_another_model_is_refused_and_gives_its_tokens_on_demand(
    llm: LLM, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    session = grown(llm, length=50, seed=8)
    session.generate(greedy(5))
    session.save(tmp_path / "s")
    text = list(session.tokens)

    for style, options, name in [
        ("gqa_positions", {}, "model is"),
        ("gqa", {"kv_dtype": "float16"}, "kv_dtype is float32, here float16"),
        ("gqa", {"decoder": "copy"}, "decoder is paged, here copy"),
    ]:
        with LLM(checksum_package(style, context_length=512), threads=1, **options) as other:  # type: ignore[arg-type]
            with pytest.raises(errors.PackageError, match=rf"{name}.*allow_recompute=True"):
                other.load_session(tmp_path / "s")
            loaded = other.load_session(tmp_path / "s", allow_recompute=True)
            result = loaded.generate(greedy(5))
            assert list(result.token_ids) == checksum_generate(text, 5)
            assert result.usage.cached_tokens == 0


def test_session_with_unknown_ids_or_too_long_is_refused(
    llm: LLM, checksum_package: Callable[..., Path], scripted_package: Callable[..., Path], tmp_path: Path
) -> None:
    grown(llm, length=100).save(tmp_path / "long")
    with LLM(scripted_package("x"), threads=1) as other:
        session = other.session()
        session.append([200])
        session.save(tmp_path / "unknown")

    with pytest.raises(errors.PackageError, match=r"token id 200, but this model knows 0\.\.96"):
        llm.load_session(tmp_path / "unknown", allow_recompute=True)
    with (
        LLM(checksum_package("gqa", context_length=64), threads=1) as small,
        pytest.raises(errors.ContextOverflowError, match="100/64"),
    ):
        small.load_session(tmp_path / "long", allow_recompute=True)


def test_damaged_session_is_refused_and_its_sound_part_is_taken_on_demand(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "s"
    session = grown(llm, length=100, seed=9)
    session.generate(greedy(5))
    text = list(session.tokens)
    session.save(path)
    whole = path.read_bytes()

    for changed in (whole[:-1], whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:], whole + b"x"):
        path.write_bytes(changed)
        with pytest.raises(errors.PackageError, match=r"damaged.*allow_recompute=True"):
            llm.load_session(path)
        llm.engine.clear_prefix_cache()
        result = llm.load_session(path, allow_recompute=True).generate(greedy(5))
        assert list(result.token_ids) == checksum_generate(text, 5)
        assert result.usage.cached_tokens == (96 if changed[: len(whole)] == whole else 80)
    path.write_bytes(whole[:40])
    for allow in (False, True):
        with pytest.raises(errors.PackageError, match="is damaged"):
            llm.load_session(path, allow_recompute=allow)


@pytest.mark.parametrize(
    ("seed", "decoder"), [(0, "paged"), (1, "paged"), (2, "paged"), (3, "paged"), (4, "slot"), (5, "copy")]
)
def test_random_walk_answers_as_one_shot_requests(
    seed: int, decoder: Any, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    limits: dict[str, Any] = {"vram_limit": "128KiB", "host_ram_limit": "256KiB"}
    if seed % 2:
        limits |= {"disk_limit": "1MiB", "disk_folder": tmp_path / "kv"}
    package = checksum_package("gqa", context_length=400)
    model = LLM(package, threads=1, decoder=decoder, **limits)
    texts: list[list[int]] = [[1]]
    sessions = [model.session()]
    sessions[0].append([1])

    for step in range(150):
        place = draw.randrange(len(sessions))
        session, text = sessions[place], texts[place]
        match draw.choice(["append", "generate", "generate", "stream", "fork", "rewind", "save", "load", "clear"]):
            case "append" if len(text) < 300:
                new = [draw.randrange(97) for _ in range(draw.randrange(60))]
                session.append(new)
                text += new
            case "generate" if len(text) < 350:
                count = draw.randrange(1, 30)
                params = greedy(count)
                assert list(session.generate(params).token_ids) == checksum_generate(text, count)
                text += checksum_generate(text, count)
            case "stream" if len(text) < 350:
                tokens = [token for chunk in session.stream(greedy(9)) for token in chunk.token_ids]
                assert tokens == checksum_generate(text, 9)
                text += tokens
            case "fork" if len(sessions) < 8:
                sessions.append(session.fork())
                texts.append(list(text))
            case "rewind":
                length = draw.randrange(1, len(text) + 1)
                session.rewind(length)
                del text[length:]
            case "save":
                session.save(tmp_path / f"{place}")
                (tmp_path / f"{place}.ids").write_text(" ".join(map(str, text)), encoding="utf-8")
            case "load" if (tmp_path / f"{place}").exists():
                sessions[place] = model.load_session(tmp_path / f"{place}")
                texts[place] = [int(word) for word in (tmp_path / f"{place}.ids").read_text(encoding="utf-8").split()]
            case "clear":
                if step % 3 == 0:
                    model.engine.clear_prefix_cache()
        assert [list(each.tokens) for each in sessions] == texts

    assert model.metrics()["kv_hot_used_blocks"] == 0
    model.close()


def test_async_session_is_the_same(llm: LLM, checksum_package: Callable[..., Path], tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(checksum_package("gqa", context_length=512), threads=1) as model:
            async with model.session() as session:
                session.append([1, 2, 3] * 10)
                text = list(session.tokens)
                assert list((await session.generate(greedy(5))).token_ids) == checksum_generate(text, 5)
                text += checksum_generate(text, 5)
                tokens = [token async for chunk in session.stream(greedy(5)) for token in chunk.token_ids]
                assert tokens == checksum_generate(text, 5)
                text += tokens
                child = session.fork()
                child.rewind(20)
                assert list((await child.generate(greedy(5))).token_ids) == checksum_generate(text[:20], 5)
                await session.save(tmp_path / "s")
                loaded = await model.load_session(tmp_path / "s")
                assert list(loaded.tokens) == text

                task = asyncio.ensure_future(session.generate(slow()))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async for _ in session.stream(slow()):
                    break
                assert list(session.tokens) == text
                assert await asyncio.to_thread(settled, model, lambda metrics: not metrics["num_running"])
                assert list((await session.generate(greedy(2))).token_ids) == checksum_generate(text, 2)
            with pytest.raises(errors.AbortedError, match="session is closed"):
                await session.generate()

    asyncio.run(asyncio.wait_for(main(), 120))
    assert list(llm.load_session(tmp_path / "s").generate(greedy(1)).token_ids)


def test_model_without_prefix_cache_saves_and_loads_the_tokens(
    llm: LLM, checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    session = grown(llm, length=60, seed=21)
    session.generate(greedy(4))
    session.save(tmp_path / "with_kv")
    text = list(session.tokens)

    with LLM(checksum_package("gqa", context_length=512), threads=1, prefix_cache=False) as plain:
        loaded = plain.load_session(tmp_path / "with_kv")
        assert list(loaded.generate(greedy(4)).token_ids) == checksum_generate(text, 4)
        loaded.save(tmp_path / "without_kv")

    again = llm.load_session(tmp_path / "without_kv")
    assert list(again.tokens) == [*text, *checksum_generate(text, 4)]


def test_session_larger_than_the_hot_tier_is_saved_and_loaded_through_the_tiers(
    checksum_package: Callable[..., Path], tmp_path: Path
) -> None:
    package = checksum_package("gqa", context_length=512)
    with LLM(package, threads=1, vram_limit="96KiB", host_ram_limit="512KiB") as model:
        sessions = [grown(model, length=300, seed=30 + i) for i in range(4)]
        for number, session in enumerate(sessions):
            session.generate(greedy(5))
            session.save(tmp_path / f"{number}")
        texts = [list(session.tokens) for session in sessions]
        model.engine.clear_prefix_cache()
        for number in range(4):
            loaded = model.load_session(tmp_path / f"{number}")
            assert list(loaded.generate(greedy(5)).token_ids) == checksum_generate(texts[number], 5)
