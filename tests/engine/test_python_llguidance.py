"""Answers under grammars where llguidance exports no C functions: the same ones, by its Python interface."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from onnx_genai import LLM, AsyncLLM, Result, SamplingParams, _core, errors, grammar
from onnx_genai.engine import RequestOptions, grammars, python_llguidance
from onnx_genai.engine.grammars import GrammarCompiler
from onnx_genai.server import ModelSpec
from tests.engine.processors import settled
from tests.grammar.test_interfaces import RECORD, SPECS
from tests.pipelines.chats import GREEDY, HELLO, TOOLS_SHOWN, WEATHER
from tests.server.running import RunningServer

pytestmark = pytest.mark.boundary

PROMPT = "Say something."
OF_ANOTHER_VOCABULARY = ("lark with a special token", "tags", "reasoning")
WITHOUT_FUNCTIONS = Path(_core.__file__)
"""An extension module that has nothing of llguidance's."""


@pytest.fixture(scope="module")
def package(noise_package: Callable[..., Path]) -> Path:
    return noise_package(1, chat_template=TOOLS_SHOWN)


@pytest.fixture(scope="module")
def pair(package: Path) -> Iterator[tuple[LLM, LLM]]:
    """A model by C functions, and the same in Python."""
    with LLM(package, threads=1) as fast, LLM(package, threads=1) as slow:
        fast.engine.compile_grammar(grammar.json_object())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grammars, "find_llguidance", lambda: WITHOUT_FUNCTIONS)
            slow.engine.compile_grammar(grammar.json_object())
        assert (fast.info()["llguidance"], slow.info()["llguidance"]) == ("c", "python")
        yield fast, slow


@pytest.fixture
def python_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "find_llguidance", lambda: WITHOUT_FUNCTIONS)


def facts(result: Result) -> list[tuple[object, ...]]:
    return [(each.token_ids, each.text, each.finish_reason, each.stop_reason) for each in result.choices]


def sampled(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 120, "temperature": 1.0, "seed": seed, **more})


@pytest.mark.parametrize("name", [name for name in SPECS if name not in OF_ANOTHER_VOCABULARY])
def test_answers_are_equal(pair: tuple[LLM, LLM], name: str) -> None:
    params = [
        *(sampled(seed) for seed in range(3)),
        sampled(3, n=3),
        sampled(4, stop=['"', "a"]),
        sampled(5, max_new_tokens=12),
        sampled(6, logprobs=True, repetition_penalty=1.2, min_new_tokens=3),
        sampled(7, temperature=0, ignore_eos=True),
    ]
    fast, slow = (
        [facts(result) for result in model.generate([PROMPT] * len(params), params, grammar=SPECS[name])]
        for model in pair
    )
    assert fast == slow


def test_answers_of_many_grammars_side_by_side_are_equal(pair: tuple[LLM, LLM]) -> None:
    names = [name for name in SPECS if name.startswith("schema")]
    answers = []
    for model in pair:
        generations = [
            model.engine.submit(model.tokenizer.encode(PROMPT), sampled(seed, n=2), RequestOptions(grammar=SPECS[name]))
            for seed, name in enumerate(names * 2)
        ]
        answers.append([[choice.token_ids for choice in each.result().choices] for each in generations])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
def test_calls_are_equal(pair: tuple[LLM, LLM], choice: Any) -> None:
    for seed in range(4):
        fast, slow = (
            model.chat(HELLO, sampled(seed), tools=[WEATHER], tool_choice=choice, tool_format="hermes")
            for model in pair
        )
        assert facts(fast) == facts(slow)
        assert [(call.name, call.arguments) for call in fast.tool_calls] == [
            (call.name, call.arguments) for call in slow.tool_calls
        ]
        assert fast.tool_calls


def test_answers_that_are_preempted_are_equal(pair: tuple[LLM, LLM]) -> None:
    answers = []
    for model in pair:
        ids, options = model.tokenizer.encode(PROMPT), RequestOptions(grammar=grammar.json_schema(RECORD))
        generations = [model.engine.submit(ids, sampled(seed), options) for seed in range(6)]
        texts = []
        for generation in generations:
            text = ""
            for chunk in generation:
                text += chunk.text
                model.engine.preempt(generation)
            texts.append(text)
        answers.append(texts)
    assert answers[0] == answers[1]


def test_errors_are_equal(pair: tuple[LLM, LLM]) -> None:
    hard = grammar.lark('start: a "!"\na: "x" | a a | a b\nb: a a | b b\n')
    told = []
    for model in pair:
        never = sampled(1, max_new_tokens=3000, logit_bias={model.tokenizer.encode("!")[0]: -100})
        with pytest.raises(errors.InvalidArgumentError, match=r"the grammar cannot go on: .*items") as caught:
            model.generate(PROMPT, never, grammar=hard)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert settled(pair[1], lambda metrics: metrics["num_running"] == 0)


@pytest.mark.usefixtures("python_alone")
def test_the_slower_way_is_told_once(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    grammars._interface.cache_clear()
    with caplog.at_level(logging.WARNING, logger="onnx_genai"):
        for _ in range(2):
            with LLM(package, threads=1) as model:
                model.generate(PROMPT, GREEDY, grammar=grammar.choice(["a", "b"]))

    (record,) = [each for each in caplog.records if "Python interface" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert "it does not export llg_" in record.getMessage()


def test_c_functions_that_are_asked_for_must_be_there(pair: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "find_llguidance", lambda: WITHOUT_FUNCTIONS)
    with pytest.raises(errors.UnsupportedError, match="does not export"):
        GrammarCompiler(tokens=pair[0].engine._core_table, eos_token_ids=[2], interface="c")


@pytest.fixture
def other_package(tmp_path: Path) -> Path:
    """A folder with an llguidance whose module has its C functions under other names."""
    folder = grammars.find_llguidance().parent
    copy = tmp_path / "llguidance"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for info in folder.parent.glob("llguidance-*.dist-info"):
        shutil.copytree(info, tmp_path / info.name)
    (module,) = copy.glob("_lib*.so")
    data, count = re.subn(rb"\0llg_(?=[a-z0-9_]+\0)", rb"\0xxx_", module.read_bytes())
    assert count >= 15
    module.write_bytes(data)
    return tmp_path


def test_llguidance_without_c_functions_gives_the_same_answers(package: Path, other_package: Path) -> None:
    program = f"""
        import json, logging, sys
        from onnx_genai import LLM, SamplingParams, grammar
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        with LLM({str(package)!r}, threads=1) as model:
            params = [SamplingParams(max_new_tokens=120, temperature=1.0, seed=seed, n=2) for seed in range(6)]
            results = model.generate([{PROMPT!r}] * 6, params, grammar=grammar.json_schema({RECORD!r}))
            tokens = [choice.token_ids for result in results for choice in result.choices]
            module = sys.modules.get("llguidance")
            print(json.dumps([tokens, model.info()["llguidance"], getattr(module, "__file__", None)]))
    """

    def run(*folders: str) -> tuple[Any, str]:
        paths = os.pathsep.join([*folders, *(path for path in sys.path if path)])
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        return json.loads(done.stdout), done.stderr

    (fast, interface, module), told = run()
    assert (interface, module, told) == ("c", None, "")

    (slow, interface, module), told = run(str(other_package))
    assert (interface, Path(module).parent.parent) == ("python", other_package)
    assert slow == fast
    (line,) = told.splitlines()
    assert line.startswith("WARNING grammars are enforced by llguidance's Python interface, which is slower: ")


@pytest.mark.usefixtures("python_alone")
def test_a_folder_that_has_no_module_at_all_is_the_other_way(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "find_llguidance", lambda: Path("/nowhere/_lib.so"))
    with LLM(package, threads=1) as model:
        assert model.generate(PROMPT, GREEDY, grammar=grammar.choice(["a", "b"])).text in ("a", "b")
        assert model.info()["llguidance"] == "python"


def test_threads_that_wait_for_the_gil_hold_up_nobody(pair: tuple[LLM, LLM]) -> None:
    """Grammars are compiled, asked for and dropped while the engine's threads go by them."""
    model = pair[1]
    stop = threading.Event()

    def hold_the_gil() -> None:
        while not stop.is_set():
            sum(range(5000))
            model.info()
            model.metrics()

    def run(seed: int) -> list[bool]:
        right = []
        for turn in range(4):
            options = [f"first {seed} of {turn}", f"second {turn} of {seed}"]
            results = model.generate(
                [PROMPT] * 2, [sampled(seed, n=2)] * 2, grammar=grammar.choice([*options, f"third {seed}"])
            )
            right += [choice.text in (*options, f"third {seed}") for result in results for choice in result.choices]
        return right

    holders = [threading.Thread(target=hold_the_gil) for _ in range(2)]
    for holder in holders:
        holder.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(run, seed) for seed in range(16)]
            assert all(all(job.result(timeout=300)) for job in jobs)
    finally:
        stop.set()
        for holder in holders:
            holder.join()


@pytest.mark.usefixtures("python_alone")
def test_an_event_loop_with_many_grammars(package: Path) -> None:
    schema = grammar.json_schema(RECORD)

    async def main() -> list[str]:
        async with AsyncLLM(package, threads=1) as model:
            results = await asyncio.gather(
                *(model.generate(PROMPT, sampled(seed), grammar=schema) for seed in range(24)),
                *(
                    model.generate(PROMPT, sampled(seed), grammar=grammar.choice([f"{seed}", "b"]))
                    for seed in range(24)
                ),
            )
            assert model.info()["llguidance"] == "python"
            return [result.text for result in results if result.finish_reason == "stop"]

    texts = asyncio.run(asyncio.wait_for(main(), 300))
    assert len(texts) >= 40
    for text in texts[:12]:
        Draft202012Validator(RECORD).validate(json.loads(text))


@pytest.mark.usefixtures("python_alone")
def test_a_server_answers_many_at_once(package: Path) -> None:
    spec = ModelSpec(name="noise", load=lambda: AsyncLLM(package, threads=1))
    form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": RECORD}}
    with RunningServer([spec]) as server, ThreadPoolExecutor(6) as pool:
        server.wait_ready()
        jobs = [
            pool.submit(server.chat, model="noise", response_format=form, temperature=1.0, seed=seed, max_tokens=200)
            for seed in range(18)
        ]
        replies = [job.result(timeout=300).json() for job in jobs]
        server.wait_idle()
    for reply in replies:
        Draft202012Validator(RECORD).validate(json.loads(reply["choices"][0]["message"]["content"]))


@pytest.mark.usefixtures("python_alone")
def test_a_model_that_is_collected_amid_its_own_answer_goes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's collector runs on any thread, so also on the one for masks, for which the engine's thread waits."""
    computes_mask, is_stopped = python_llguidance._computes_mask, python_llguidance._Matcher.is_stopped
    others = {threading.get_ident()}
    collected_on: list[int] = []
    num_rounds = 0

    def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.01)
        return is_so()

    def notes(self: python_llguidance._Matcher) -> bool:
        others.add(threading.get_ident())  # the engine's thread
        return is_stopped(self)

    def collects(llg: Any, address: int, num_bytes: int) -> bool:
        if is_dropped.is_set() and threading.get_ident() not in others:
            collected_on.append(threading.get_ident())
            gc.collect()
        return computes_mask(llg, address, num_bytes)

    monkeypatch.setattr(python_llguidance._Matcher, "is_stopped", notes)
    monkeypatch.setattr(python_llguidance, "_computes_mask", collects)
    gc.disable()
    try:
        for _ in range(40):  # on a busy machine the engine's thread may compute all masks of an answer by itself
            is_dropped = threading.Event()
            others = {threading.get_ident()}
            num_before = len(collected_on)
            model = LLM(package, threads=1)
            stream = model.stream(PROMPT, sampled(1, n=8, max_new_tokens=3000), grammar=grammar.regex("[a-z]{2900,}"))
            next(stream)
            core = weakref.ref(model.engine._core)
            cycle = [model, stream]
            cycle.append(cycle)  # type: ignore[arg-type]
            del model, stream, cycle
            is_dropped.set()
            wait_until(lambda before=num_before: len(collected_on) > before, seconds=20)
            if len(collected_on) > num_before:
                num_rounds += 1
                assert wait_until(lambda core=core: core() is None, seconds=60)
            if num_rounds == 4:
                break
            gc.collect()
        assert num_rounds == 4
    finally:
        gc.enable()


@pytest.mark.usefixtures("python_alone")
@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "model.close()", "del model"])
def test_the_interpreter_ends_quietly_amid_an_answer(ending: str, package: Path) -> None:
    program = f"""
        import logging, sys
        from pathlib import Path
        from onnx_genai import LLM, SamplingParams, grammar
        from onnx_genai.engine import grammars
        logging.disable()
        grammars.find_llguidance = lambda: Path({str(WITHOUT_FUNCTIONS)!r})
        model = LLM({str(package)!r}, threads=1)
        params = SamplingParams(max_new_tokens=3000, temperature=1.0, seed=1)
        stream = model.stream("Hi", params, grammar=grammar.regex("[a-z]{{2900,}}"))
        next(stream)
        assert model.info()["llguidance"] == "python"
        {ending}
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
