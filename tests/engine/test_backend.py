"""The option ``backend``: whose kernels compute quantized products, with the same answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnx_genai import LLM, SamplingParams, compat, errors
from onnx_genai.convert import import_gguf
from onnx_genai.engine import EngineOptions, model_engine
from onnx_genai.engine.providers import ChosenProviders, Provider
from onnx_genai.graph import GraphContract, InputPort, resolve
from onnx_genai.package import read
from tests.convert.tiny import TINY, write_gguf

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]]
PARAMS = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=1)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``quantized(arch, dtype, **options)``: folder of a tiny random model of quantized products."""
    root = tmp_path_factory.mktemp("quantized")
    made: dict[str, Path] = {}

    def get(arch: str, dtype: str, **options: Any) -> Path:
        key = "_".join(map(str, (arch, dtype, *options.values())))
        if key not in made:
            source = write_gguf(root / f"{key}.gguf", TINY[arch])
            import_gguf(source, root / key, dtype=dtype, **options)
            made[key] = root / key
        return made[key]

    return get


def answers(folder: Path, **options: Any) -> tuple[list[list[int]], list[float], dict[str, object]]:
    """Tokens and their log-probabilities of all prompts at once, and facts."""
    with LLM(folder, threads=1, **options) as llm:
        results = llm.generate(PROMPTS, PARAMS)
        found = [list(result.token_ids) for result in results]
        return found, [item.logprob for result in results for item in result.logprobs or ()], llm.info()


@pytest.mark.parametrize("decoder", ["paged", "slot"])
@pytest.mark.parametrize("dtype", ["int4", "int8"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_exact_kernels_give_the_answers_of_onnxruntime(
    quantized: Callable[..., Path], arch: str, dtype: str, decoder: str
) -> None:
    folder = quantized(arch, dtype, accuracy_level=1)

    tokens, logprobs, facts = answers(folder, backend="ort", decoder=decoder)
    ours, our_logprobs, our_facts = answers(folder, backend="native", decoder=decoder)

    assert (facts["backend"], facts["native_products"]) == ("ort", 0)
    assert our_facts["backend"] == "native"
    assert our_facts["native_products"]
    assert ours == tokens
    assert our_logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("block_size", [16, 64])
def test_rounded_activations_change_little(quantized: Callable[..., Path], block_size: int) -> None:
    """The first step only: from the first near tie on, answers may differ."""
    exact = quantized("llama", "int4", accuracy_level=1, block_size=block_size)
    rounded = quantized("llama", "int4", accuracy_level=4, block_size=block_size)

    _, wanted, _ = answers(exact, backend="ort")
    _, found, _ = answers(rounded, backend="native")

    for first in range(0, len(wanted), PARAMS.max_new_tokens or 0):
        assert found[first] == pytest.approx(wanted[first], abs=0.05)


def test_answer_does_not_depend_on_its_company(quantized: Callable[..., Path]) -> None:
    with LLM(quantized("llama", "int4"), threads=2, backend="native", prefix_cache=False) as llm:
        together = llm.generate(PROMPTS, PARAMS)
        alone = [llm.generate(prompt, PARAMS) for prompt in PROMPTS]

    for a, b in zip(together, alone, strict=True):
        assert a.token_ids == b.token_ids
        assert [item.logprob for item in a.logprobs or ()] == [item.logprob for item in b.logprobs or ()]


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 5}, {"prefix_cache": False}, {"threads": 1}])
def test_answer_does_not_depend_on_chunks_or_on_what_is_cached(
    quantized: Callable[..., Path], options: dict[str, Any]
) -> None:
    """Rows of prompts may be computed in tiles; that a cached prompt has few rows left changes no bit."""
    prompts = [[number % 90 + 3 for number in range(first, first + 45)] for first in (0, 11)]
    folder = quantized("llama", "int4")
    with LLM(folder, threads=2, backend="native") as llm:
        wanted = llm.generate(prompts, PARAMS)
    with LLM(folder, backend="native", **{"threads": 2, **options}) as llm:
        rounds = [llm.generate([prompt], PARAMS)[0] for _ in range(2) for prompt in prompts]

    for found, first in zip(rounds, wanted + wanted, strict=True):
        assert found.token_ids == first.token_ids
        assert [item.logprob for item in found.logprobs or ()] == [item.logprob for item in first.logprobs or ()]


def test_only_graphs_that_round_activations_mark_prompts(quantized: Callable[..., Path]) -> None:
    def nodes(level: int) -> tuple[InputPort | None, list[onnx.NodeProto]]:
        contract = resolve(read(quantized("llama", "int4", accuracy_level=level)), backend="native")
        graph = onnx.ModelProto.FromString(contract.model_bytes).graph
        ours = [node for node in graph.node if node.domain == "genai.runtime"]
        return contract.prompt_rows, [node for node in ours if "genai.prompt_rows" in node.input]

    port, marked = nodes(4)
    assert port is not None
    assert (port.name, port.dtype.value, port.rank) == ("genai.prompt_rows", "int32", 1)
    # All products but the last one, whose rows were chosen, and attention.
    assert {(node.op_type, list(node.input).index(port.name)) for node in marked} == {
        ("MatMulNBits", 13),
        ("PagedAttention", 17),
    }
    assert all("logits" not in node.output for node in marked)
    assert nodes(1) == (None, [])


def test_gated_products_give_rows_of_prompts_in_tiles_to_the_one_behind(quantized: Callable[..., Path]) -> None:
    contract = resolve(read(quantized("llama", "int4", accuracy_level=4)), backend="native")
    nodes = onnx.ModelProto.FromString(contract.model_bytes).graph.node
    gated = [node for node in nodes if any(attribute.name == "swiglu" for attribute in node.attribute)]
    assert gated
    for node in gated:
        assert node.output[1:3] == ["", ""]
        (reader,) = (other for other in nodes if node.output[0] in other.input)
        assert (reader.input[0], reader.input[14]) == (node.output[0], node.output[3])


def test_auto_takes_our_kernels(quantized: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNX_GENAI_BACKEND", raising=False)
    assert answers(quantized("llama", "int4"))[2]["backend"] == "native"


def test_variable_decides_where_nothing_is_said(
    quantized: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantized("llama", "int4")
    monkeypatch.setenv("ONNX_GENAI_BACKEND", "ort")

    assert answers(folder)[2]["backend"] == "ort"
    assert answers(folder, backend="native")[2]["backend"] == "native"


@pytest.mark.parametrize(
    ("options", "variable", "on_cpu", "graph_backend"),
    [
        ({}, None, True, "auto"),
        ({}, "", True, "auto"),
        ({}, "native", True, "native"),
        ({"backend": "ort"}, "native", True, "ort"),
        ({}, None, False, "ort"),
        ({}, "ort", False, "ort"),
        ({"ep": "cuda"}, None, True, "auto"),  # cuda is not here
        ({"ep": "cuda", "backend": "native", "ep_strict": False}, None, True, "native"),
    ],
)
def test_backend_of_the_graph_comes_from_option_variable_and_provider_in_use(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], variable: str | None, on_cpu: bool, graph_backend: str
) -> None:
    monkeypatch.delenv("ONNX_GENAI_BACKEND", raising=False)
    if variable is not None:
        monkeypatch.setenv("ONNX_GENAI_BACKEND", variable)

    assert EngineOptions(**options).graph_backend(on_cpu=on_cpu) == graph_backend


@pytest.mark.parametrize("variable", [None, "native"])
def test_our_kernels_off_the_cpu_are_refused_when_the_provider_can_be_used(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.delenv("ONNX_GENAI_BACKEND", raising=False)
    options = EngineOptions(ep="cuda", ep_strict=False, backend="auto" if variable else "native")
    if variable is not None:
        monkeypatch.setenv("ONNX_GENAI_BACKEND", variable)

    with pytest.raises(errors.InvalidArgumentError, match="is 'native' and ep is 'cuda'"):
        options.graph_backend(on_cpu=False)


@pytest.mark.parametrize("backend", ["auto", "native"])
@pytest.mark.parametrize("ep", ["nosuch", "nosuch,cpu", "plugin", "metal", "plugin:/nosuch/lib.so|device=GPU"])
def test_provider_that_is_not_here_changes_no_kernel(
    quantized: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, ep: str, backend: str
) -> None:
    for name in ("ONNX_GENAI_BACKEND", "ONNX_GENAI_EP_LIBRARY", "ONNX_GENAI_METAL_EP_LIB", "ONNX_GENAI_MLX_EP_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    folder = quantized("llama", "int4")
    wanted, wanted_logprobs, _ = answers(folder)

    found, logprobs, facts = answers(folder, ep=ep, ep_strict=False, backend=backend)

    assert (facts["backend"], facts["execution_provider"]) == ("native", "cpu")
    assert (found, logprobs) == (wanted, wanted_logprobs)


@pytest.mark.parametrize(("on_cpu", "kernels"), [(False, "ort"), (True, "native")])
def test_provider_that_cannot_load_the_model_leaves_the_kernels_of_the_cpu(
    quantized: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, on_cpu: bool, kernels: str
) -> None:
    monkeypatch.delenv("ONNX_GENAI_BACKEND", raising=False)
    tried: list[tuple[str, str]] = []
    opened = model_engine._open_core

    def open_core(package: Any, options: Any, contract: GraphContract, library: Any, chosen: Any, table: Any) -> Any:
        tried.append((chosen.effective, contract.products.backend))
        if chosen.providers:
            raise errors.BackendError("it has no such kernel")
        return opened(package, options, contract, library, chosen, table)

    provider = Provider(entry="mine", name="mine", device="CPU" if on_cpu else "GPU")
    monkeypatch.setattr(model_engine, "_open_core", open_core)
    monkeypatch.setattr(model_engine, "usable_providers", lambda *_, **__: ChosenProviders(providers=(provider,)))

    found, logprobs, facts = answers(quantized("llama", "int4"), ep="mine", ep_strict=False)

    assert tried == [("mine,cpu", kernels), ("cpu", "native")]
    assert facts["backend"] == "native"
    monkeypatch.undo()
    assert (found, logprobs) == answers(quantized("llama", "int4"))[:2]


@pytest.mark.parametrize(
    ("options", "variable", "text"),
    [
        ({"backend": "fast"}, None, "backend is 'fast'; allowed: auto, ort, native"),
        ({"backend": None}, None, "backend is None"),
        ({}, "fast", "ONNX_GENAI_BACKEND is 'fast'; allowed: auto, ort, native"),
        ({"backend": "native", "ep": "cuda"}, None, "backend is 'native' and ep is 'cuda'"),
        ({"ep": "cuda"}, "native", "ONNX_GENAI_BACKEND is 'native' and ep is 'cuda'"),
    ],
)
def test_wrong_backend_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], variable: str | None, text: str
) -> None:
    monkeypatch.delenv("ONNX_GENAI_BACKEND", raising=False)
    if variable is not None:
        monkeypatch.setenv("ONNX_GENAI_BACKEND", variable)

    with pytest.raises(errors.InvalidArgumentError, match=text):
        EngineOptions(**options)


@pytest.mark.parametrize("backend", ["ort", "native"])
def test_compat_takes_the_backend_as_an_option_of_the_cpu(quantized: Callable[..., Path], backend: str) -> None:
    config = compat.Config(quantized("llama", "int4"))
    config.set_provider_option("cpu", "backend", backend)

    with compat.Model(config) as model:
        assert model.engine.info()["backend"] == backend
