"""LoRA adapters by request, against onnxruntime with merged weights."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnx_genai import LLM, AsyncLLM, SamplingParams
from onnx_genai.engine import RequestOptions
from onnx_genai.errors import (
    AbortedError,
    BackendError,
    InvalidArgumentError,
    NotFoundError,
    PackageError,
    UnsupportedError,
)
from tests.graph.tiny import save
from tests.graph.tiny_attention import VOCAB, Form, Tiny, build
from tests.models import encoder_decoder
from tests.models.lora import Greedy, Stepper, add_lora, draw_adapter, lora_names, merge, write_adapter

TARGETS = ("wq.0", "wv.1", "wo.0")
NEW_TOKENS = 10
GREEDY = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
PROMPTS = [[(5 * row + 3 * column) % VOCAB for column in range(length)] for row, length in enumerate((1, 4, 9, 17))]
NAMES = (None, "red", "green", "blue")
SEEDS = {"red": 1, "green": 2, "blue": 3}
STYLES = dict.fromkeys(get_args(Form), "auto") | {
    "gqa on slots": "slot",
    "gqa copied": "copy",
    "mha copied": "copy",
}


def tiny(form: Form) -> onnx.ModelProto:
    """A decoder whose attention looks back only."""
    causal = {"gqa": "", "mha": "unidirectional"}.get(form[:3], "is_causal")
    return build(Tiny(form=form, attributes={causal: 1} if causal else {}))


@dataclass(frozen=True)
class Case:
    """A model with LoRA inputs, its adapters and what they generate."""

    llm: LLM
    files: dict[str, Path]
    expected: dict[str | None, Greedy]
    graph: onnx.ModelProto

    def check(self, name: str | None, prompt: list[int], ids: tuple[int, ...]) -> None:
        assert list(ids) == self.expected[name].generate(prompt, len(ids)), name


def make_case(folder: Path, graph: onnx.ModelProto, llm: LLM) -> Case:
    files: dict[str, Path] = {}
    expected: dict[str | None, Greedy] = {None: Greedy(graph)}
    for name, seed in SEEDS.items():
        adapter = draw_adapter(graph, TARGETS, seed, rank=seed + 1)
        files[name] = write_adapter(folder / f"{name}.onnx_adapter", adapter)
        expected[name] = Greedy(merge(graph, adapter))
        llm.load_adapter(files[name], name)
    return Case(llm, files, expected, graph)


@pytest.fixture(scope="module", params=sorted(STYLES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("lora")
    graph = tiny(request.param.split(" ")[0])
    package = save(add_lora(graph, TARGETS), folder / "model")
    with LLM(package, threads=1, decoder=STYLES[request.param]) as llm:
        yield make_case(folder, graph, llm)


@pytest.fixture
def paged(tmp_path: Path) -> Iterator[Case]:
    graph = build(Tiny(form="gqa"))
    with LLM(save(add_lora(graph, TARGETS), tmp_path / "model"), threads=1) as llm:
        assert llm.info()["decoder"] == "paged"
        yield make_case(tmp_path, graph, llm)


def test_each_adapter_alone_equals_merged_weights(case: Case) -> None:
    for name in NAMES:
        for prompt in PROMPTS:
            case.check(name, prompt, case.llm.generate(prompt, GREEDY, adapter=name).token_ids)
    assert len({tuple(case.expected[name].generate(PROMPTS[2], NEW_TOKENS)) for name in NAMES}) == len(NAMES)


def test_three_adapters_and_none_side_by_side_equal_each_alone(case: Case) -> None:
    requests = [(name, prompt) for prompt in PROMPTS for name in NAMES]

    engine = case.llm.engine
    started = [(name, prompt, case.llm.stream(prompt, GREEDY, adapter=name)) for name, prompt in requests]
    found = [
        (name, prompt, [token for chunk in chunks for token in chunk.token_ids]) for name, prompt, chunks in started
    ]

    for name, prompt, ids in found:
        case.check(name, prompt, tuple(ids))
    assert not engine.closed


def test_adapters_that_change_within_prompt_and_answer_run_their_own_tokens(case: Case) -> None:
    if any(value.name == "write_indices" for value in case.graph.graph.input):
        pytest.skip("the reference goes on with KV that grows")
    prompt = PROMPTS[3]
    tensors = {name: draw_adapter(case.graph, TARGETS, seed, rank=seed + 1) for name, seed in SEEDS.items()}
    places = ((5, "red"), (9, "green"), (len(prompt) + 3, "blue"))
    adapters = tuple((place, case.llm.engine.adapters.get(name)) for place, name in places)

    running = case.llm.engine.submit(prompt, GREEDY, RequestOptions(adapters=adapters))
    beside = case.llm.engine.submit(prompt, GREEDY)
    found = running.result().token_ids

    reference = Stepper(add_lora(case.graph, TARGETS))
    reference.run(prompt[:5])
    reference.run(prompt[5:9], tensors["red"])
    ids = [reference.run(prompt[9:], tensors["green"])]
    for step in range(1, NEW_TOKENS):
        ids.append(reference.run(ids[-1:], tensors["green" if step <= 3 else "blue"]))
    assert list(found) == ids
    case.check(None, prompt, beside.result().token_ids)


def test_choices_and_beams_keep_the_adapter(case: Case) -> None:
    prompt = PROMPTS[2]
    choices = case.llm.generate(prompt, SamplingParams(n=3, max_new_tokens=4, temperature=0), adapter="red").choices
    beams = SamplingParams(num_beams=3, max_new_tokens=1, temperature=0, ignore_eos=True)
    best = case.llm.generate(prompt, beams, adapter="green").token_ids

    assert {choice.token_ids for choice in choices} == {tuple(case.expected["red"].generate(prompt, 4))}
    case.check("green", prompt, best)


def test_logprobs_are_those_of_merged_weights(case: Case) -> None:
    params = SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=VOCAB)

    found = case.llm.generate(PROMPTS[2], params, adapter="blue").choices[0].logprobs

    assert found is not None
    logits = case.expected["blue"].logits(PROMPTS[2]).astype(np.float64)
    wanted = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    near = 256 * np.finfo(np.float32).eps * np.abs(logits).max()  # sums of at most 64 terms, in five products
    for top in found[0].top:
        assert top.logprob == pytest.approx(wanted[top.token_id], abs=near)


def test_adapters_share_no_prefix_and_each_its_own(paged: Case) -> None:
    prompt = [(7 * place) % VOCAB for place in range(33)]
    cached = []
    for name in (None, "red", "green", None, "red", "green"):
        result = paged.llm.generate(prompt, GREEDY, adapter=name)
        paged.check(name, prompt, result.token_ids)
        cached.append(result.usage.cached_tokens)

    assert cached == [0, 0, 0, 32, 32, 32]


def test_name_reloaded_with_other_content_is_computed_anew(paged: Case) -> None:
    prompt = [(7 * place) % VOCAB for place in range(33)]
    paged.llm.generate(prompt, GREEDY, adapter="red")

    paged.llm.unload_adapter("red")
    paged.llm.load_adapter(paged.files["blue"], "red")
    result = paged.llm.generate(prompt, GREEDY, adapter="red")

    paged.check("blue", prompt, result.token_ids)
    assert result.usage.cached_tokens == 0
    assert paged.llm.adapters == ("green", "blue", "red")


def test_unloaded_adapter_stays_with_what_runs_with_it(paged: Case) -> None:
    chunks = paged.llm.stream(
        PROMPTS[1], SamplingParams(max_new_tokens=60, temperature=0, ignore_eos=True), adapter="red"
    )
    ids = list(next(chunks).token_ids)
    session = paged.llm.session(adapter="red")
    session.append(PROMPTS[2])

    paged.llm.unload_adapter("red")
    gc.collect()
    for chunk in chunks:
        ids += chunk.token_ids
    turn = session.generate(GREEDY)

    paged.check("red", PROMPTS[1], tuple(ids))
    paged.check("red", PROMPTS[2], turn.token_ids)
    with pytest.raises(NotFoundError, match=r"no adapter 'red'; loaded are: green, blue"):
        paged.llm.generate(PROMPTS[1], GREEDY, adapter="red")


def test_file_may_be_replaced_while_its_adapter_runs(paged: Case) -> None:
    paged.files["red"].write_bytes(b"")

    paged.check("red", PROMPTS[3], paged.llm.generate(PROMPTS[3], GREEDY, adapter="red").token_ids)


def test_sessions_and_their_forks_keep_the_adapter(paged: Case) -> None:
    session = paged.llm.session(adapter="green")
    session.append(PROMPTS[2])
    first = session.generate(GREEDY)
    fork = session.fork()
    second = fork.generate(GREEDY)

    assert (session.adapter, fork.adapter, paged.llm.session().adapter) == ("green", "green", None)
    paged.check("green", PROMPTS[2], first.token_ids)
    paged.check("green", [*PROMPTS[2], *first.token_ids], second.token_ids)


def test_saved_session_knows_its_adapter(paged: Case, tmp_path: Path) -> None:
    prompt = [(7 * place) % VOCAB for place in range(33)]
    session = paged.llm.session(adapter="green")
    session.append(prompt)
    session.generate(SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True))
    session.save(tmp_path / "a.session")
    paged.llm.engine.clear_prefix_cache()

    loaded = paged.llm.load_session(tmp_path / "a.session", adapter="green")
    turn = loaded.generate(GREEDY)

    paged.check("green", list(session.tokens), turn.token_ids)
    assert turn.usage.cached_tokens == 32
    for other in (None, "red"):
        with pytest.raises(PackageError, match="adapter is "):
            paged.llm.load_session(tmp_path / "a.session", adapter=other)
        again = paged.llm.load_session(tmp_path / "a.session", adapter=other, allow_recompute=True)
        paged.check(other, list(session.tokens), again.generate(GREEDY).token_ids)


def test_many_requests_in_a_small_memory_equal_each_alone(tmp_path: Path) -> None:
    graph = build(Tiny(form="gqa"))
    package = save(add_lora(graph, TARGETS), tmp_path / "model")
    with LLM(package, threads=1, vram_limit=160 * 1024, max_num_seqs=6, max_num_batched_tokens=24) as llm:
        case = make_case(tmp_path, graph, llm)
        requests = [(NAMES[row % 4], [(row * 5 + 3 * place) % VOCAB for place in range(3 + row)]) for row in range(20)]
        started = [llm.stream(prompt, GREEDY, adapter=name) for name, prompt in requests]
        for (name, prompt), chunks in zip(requests, started, strict=True):
            case.check(name, prompt, tuple(token for chunk in chunks for token in chunk.token_ids))


def test_async_twin(paged: Case, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLLM(tmp_path / "model", threads=1) as llm:
            await llm.load_adapter(paged.files["red"], "red")
            results = await asyncio.gather(
                llm.generate(PROMPTS[1], GREEDY, adapter="red"), llm.generate(PROMPTS[1], GREEDY)
            )
            session = llm.session(adapter="red")
            session.append(PROMPTS[1])
            turn = await session.generate(GREEDY)
            paged.check("red", PROMPTS[1], results[0].token_ids)
            paged.check(None, PROMPTS[1], results[1].token_ids)
            paged.check("red", PROMPTS[1], turn.token_ids)

    asyncio.run(run())


@pytest.mark.parametrize("decoder", ["auto", "slot", "copy"])
def test_inputs_without_a_value_need_an_adapter(tmp_path: Path, decoder: str) -> None:
    graph = build(Tiny(form="gqa"))
    adapter = draw_adapter(graph, TARGETS, 1)
    file = write_adapter(tmp_path / "a.onnx_adapter", adapter)
    part = write_adapter(tmp_path / "b.onnx_adapter", {name: adapter[name] for name in lora_names("wq.0")})
    package = save(add_lora(graph, TARGETS, has_default=False), tmp_path / "model")
    with LLM(package, threads=1, decoder=decoder) as llm:  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r'needs one: .* "w[qvo]\.\d\.lora_[AB]"'):
            llm.generate(PROMPTS[1], GREEDY)
        with pytest.raises(PackageError, match="lacks the parameter"):
            llm.load_adapter(part, "part")
        llm.load_adapter(file, "whole")
        ids = llm.generate(PROMPTS[1], GREEDY, adapter="whole").token_ids

    assert list(ids) == Greedy(merge(graph, adapter)).generate(PROMPTS[1], NEW_TOKENS)


def test_adapter_of_some_of_the_weights_leaves_the_others(paged: Case, tmp_path: Path) -> None:
    graph = build(Tiny(form="gqa"))
    adapter = draw_adapter(graph, ["wv.1"], 5)
    paged.llm.load_adapter(write_adapter(tmp_path / "one.onnx_adapter", adapter), "one")

    ids = paged.llm.generate(PROMPTS[2], GREEDY, adapter="one").token_ids

    assert list(ids) == Greedy(merge(graph, adapter)).generate(PROMPTS[2], NEW_TOKENS)


def test_old_graphs_that_list_all_weights_as_inputs_take_adapters(tmp_path: Path) -> None:
    graph = build(Tiny(form="gqa"))
    listed = add_lora(graph, TARGETS)
    known = {value.name for value in listed.graph.input}
    for tensor in listed.graph.initializer:
        if tensor.name not in known:
            listed.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    with LLM(save(listed, tmp_path / "model"), threads=1) as llm:
        assert llm.info()["decoder"] == "paged"
        case = make_case(tmp_path, graph, llm)
        case.check("red", PROMPTS[2], llm.generate(PROMPTS[2], GREEDY, adapter="red").token_ids)


def test_show_tells_how_many_inputs_adapters_feed(paged: Case) -> None:
    notes = paged.llm.description["notes"]

    assert isinstance(notes, list)
    assert "adapters can feed 6 inputs" in notes


def wrong_files(folder: Path, graph: onnx.ModelProto) -> dict[str, tuple[Path, str]]:
    good = dict(draw_adapter(graph, TARGETS, 1))
    whole = write_adapter(folder / "good.onnx_adapter", good).read_bytes()
    a, b = lora_names("wq.0")

    def made(name: str, **changes: np.ndarray) -> Path:
        return write_adapter(folder / f"{name}.onnx_adapter", {**good, **changes})

    def written(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return {
        "text": (written("text", b"no adapter at all"), "no adapter in ONNX Runtime's format"),
        "empty": (written("empty", b""), "no adapter in ONNX Runtime's format"),
        "pointer": (written("pointer", b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
        "cut": (written("cut", whole[:200]), "damaged or cut off"),
        "head": (written("head", whole[:8]), "damaged or cut off"),
        "unknown": (made("unknown", **{"w9.lora_A": good[a]}), r'"w9\.lora_A", which the model does not take'),
        "ids": (made("ids", input_ids=good[a]), '"input_ids", which the model does not take'),
        "shape": (made("shape", **{a: good[a].T.copy()}), r"has the shape \[4, 16\]; the model takes \[16, \?\]"),
        "rank": (made("rank", **{b: good[b].reshape(-1)}), r"has the shape \[256\]"),
        "type": (made("type", **{a: good[a].astype(np.float16)}), "is float16; the model takes float32"),
        "nothing": (write_adapter(folder / "nothing.onnx_adapter", {}), "has no parameters"),
    }


@pytest.mark.parametrize(
    "what", ["text", "empty", "pointer", "cut", "head", "unknown", "ids", "shape", "rank", "type", "nothing"]
)
def test_wrong_file_is_refused_by_name(paged: Case, tmp_path: Path, what: str) -> None:
    path, words = wrong_files(tmp_path, build(Tiny(form="gqa")))[what]

    with pytest.raises(PackageError, match=words) as caught:
        paged.llm.load_adapter(path, "wrong")

    assert str(path) in str(caught.value)
    assert "wrong" not in paged.llm.adapters


def test_every_cut_and_many_changed_bytes_of_a_file_load_or_are_refused(paged: Case, tmp_path: Path) -> None:
    whole = paged.files["red"].read_bytes()
    rng = np.random.default_rng(1)
    path = tmp_path / "broken"
    for number in range(400):
        data = bytearray(whole)
        if number % 2:
            data = data[: int(rng.integers(len(data)))]
        for _ in range(3):
            if data:
                data[int(rng.integers(min(len(data), 600)))] = int(rng.integers(256))
        path.write_bytes(data)
        try:
            paged.llm.load_adapter(path, "broken")
        except PackageError:
            continue
        paged.llm.unload_adapter("broken")
    paged.check(None, PROMPTS[1], paged.llm.generate(PROMPTS[1], GREEDY).token_ids)


def test_wrong_calls_are_refused(paged: Case, tmp_path: Path) -> None:
    load = paged.llm.load_adapter
    with pytest.raises(NotFoundError, match="no such adapter file"):
        load(tmp_path / "missing.onnx_adapter", "a")
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        load(tmp_path, "a")
    with pytest.raises(InvalidArgumentError, match="'red' is loaded already, from "):
        load(paged.files["red"], "red")
    with pytest.raises(InvalidArgumentError, match="name is ''"):
        load(paged.files["red"], "")
    with pytest.raises(InvalidArgumentError, match="path is"):
        load(7, "a")  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="no adapter 'x'"):
        paged.llm.unload_adapter("x")
    with pytest.raises(InvalidArgumentError, match="adapter is 7"):
        paged.llm.generate(PROMPTS[1], GREEDY, adapter=7)  # type: ignore[call-overload]
    assert paged.llm.adapters == ("red", "green", "blue")


def test_model_without_adapter_inputs_says_so(paged: Case, tmp_path: Path) -> None:
    with (
        LLM(save(build(Tiny(form="gqa")), tmp_path / "plain"), threads=1) as llm,
        pytest.raises(UnsupportedError, match=r"takes no adapters: .* has no inputs for LoRA weights"),
    ):
        llm.load_adapter(paged.files["red"], "red")


def test_adapter_that_fails_in_the_model_ends_its_own_requests_only(paged: Case, tmp_path: Path) -> None:
    graph = build(Tiny(form="gqa"))
    _, b = lora_names("wq.0")
    adapter = {**draw_adapter(graph, TARGETS, 1), b: np.ones((7, 64), np.float32)}  # rank 4 and 7
    paged.llm.load_adapter(write_adapter(tmp_path / "odd.onnx_adapter", adapter), "odd")

    started = [paged.llm.stream(PROMPTS[2], GREEDY, adapter=name) for name in (None, "odd", "red")]
    with pytest.raises(BackendError, match=r"\(with the adapter .*odd\.onnx_adapter\)"):
        list(started[1])
    for name, chunks in ((None, started[0]), ("red", started[2])):
        paged.check(name, PROMPTS[2], tuple(token for chunk in chunks for token in chunk.token_ids))


def test_onnxruntime_itself_agrees_with_the_merged_weights(tmp_path: Path) -> None:
    graph = build(Tiny(form="gqa"))
    adapter = draw_adapter(graph, TARGETS, 1)
    session = ort.InferenceSession(add_lora(graph, TARGETS).SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = ort.LoraAdapter()
    loaded.Load(str(write_adapter(tmp_path / "a.onnx_adapter", adapter)))
    options = ort.RunOptions()
    options.add_active_adapter(loaded)
    feeds = {"input_ids": np.array([PROMPTS[2]]), "attention_mask": np.ones((1, len(PROMPTS[2])), np.int64)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)

    logits = session.run(["logits"], feeds, options)[0][0, -1]

    assert np.allclose(logits, Greedy(merge(graph, adapter)).logits(PROMPTS[2]), atol=1e-4)


@pytest.mark.parametrize("style", ["cross_kv", "plain", "merged"])
def test_decoder_of_an_encoder_decoder_takes_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: encoder_decoder.Style
) -> None:
    package = encoder_decoder.write_encoder_decoder(tmp_path / "model", style)
    path = next(path for path in package.glob("decoder*.onnx"))
    graph = onnx.load(path)
    last = next(node for node in graph.graph.node if node.output[0] == "logits")
    target = last.input[1]
    adapter = draw_adapter(graph, [target], 3)
    onnx.save(add_lora(graph, [target]), path)
    source, count = [6, 3, 5, encoder_decoder.EOS], 12
    plain = encoder_decoder.greedy_answer(style, source, count)
    change = adapter[lora_names(target)[0]] @ adapter[lora_names(target)[1]]
    monkeypatch.setitem(encoder_decoder.TABLES, "out", encoder_decoder.TABLES["out"] + change)
    wanted = encoder_decoder.greedy_answer(style, source, count)
    params = SamplingParams(max_new_tokens=count, temperature=0)
    with LLM(package, threads=1) as llm:
        llm.load_adapter(write_adapter(tmp_path / "a.onnx_adapter", adapter), "a")
        started = [llm.stream(source, params, adapter=name) for name in (None, "a", None)]
        found = [[token for chunk in chunks for token in chunk.token_ids] for chunks in started]

    assert found == [plain, wanted, plain]
    assert plain != wanted


def test_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    example = page.split("<!-- norun: run by tests/engine/test_adapters.py -->\n```python\n")[1].split("```")[0]
    graph = build(Tiny(form="gqa"))
    save(add_lora(graph, TARGETS), tmp_path / "model")
    for name in ("red", "blue"):
        write_adapter(tmp_path / f"{name}.onnx_adapter", draw_adapter(graph, TARGETS, SEEDS[name]))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}

    exec(example, names)

    found = [tuple(names[name].token_ids) for name in ("plain", "red", "blue")]  # type: ignore[attr-defined]
    assert len(set(found)) == 3


def test_name_that_is_loaded_again_and_again_while_requests_run_is_one_of_its_contents(paged: Case) -> None:
    prompt = [(7 * place) % VOCAB for place in range(20)]
    wanted = {tuple(paged.expected[name].generate(prompt, 4)) for name in ("red", "blue")}
    params = SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True)
    found: list[tuple[int, ...]] = []
    missed = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                found.append(paged.llm.generate(prompt, params, adapter="x").token_ids)
            except NotFoundError:
                missed.append(1)

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        for number in range(60):
            paged.llm.load_adapter(paged.files[("red", "blue")[number % 2]], "x")
            before = len(found)
            while len(found) == before and not any(each.done() for each in asking):
                stop.wait(0.001)
            paged.llm.unload_adapter("x")
        stop.set()
        for each in asking:
            each.result()

    assert set(found) == wanted


def test_closing_ends_what_runs_with_an_adapter(tmp_path: Path) -> None:
    graph = build(Tiny(form="gqa"))
    package = save(add_lora(graph, TARGETS), tmp_path / "model")
    file = write_adapter(tmp_path / "a.onnx_adapter", draw_adapter(graph, TARGETS, 1))
    for _ in range(5):
        with LLM(package, threads=1) as llm:
            llm.load_adapter(file, "a")
            chunks = llm.stream(PROMPTS[1], SamplingParams(max_new_tokens=100_000, ignore_eos=True), adapter="a")
            next(chunks)
        with contextlib.suppress(AbortedError):
            for chunk in chunks:
                assert chunk.finish_reason in (None, "abort")
        with pytest.raises(AbortedError):
            llm.load_adapter(file, "b")
