"""Models that onnxruntime's own quantizer made: with products in integers, and with weights behind DequantizeLinear."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from onnx_genai import LLM, SamplingParams
from onnx_genai.convert import import_gguf
from onnx_genai.graph import CacheStyle, resolve
from onnx_genai.package import read
from tests.convert.tiny import TINY, write_gguf

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]]
PARAMS = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True, logprobs=True, top_logprobs=1)
STYLES = ["dynamic", "dynamic_columns", "dynamic_unsigned", "static_columns", "static"]
"""What is quantized: activations as the graph runs, or before; ``columns``: a scale for each column."""


class Inputs(CalibrationDataReader):  # type: ignore[misc]
    """Prompts without a past, for every input of the model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._feeds = iter([self._feed(model, np.array([prompt])) for prompt in PROMPTS])

    @staticmethod
    def _feed(model: onnx.ModelProto, ids: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        feed: dict[str, npt.NDArray[Any]] = {}
        for value in model.graph.input:
            dims = [
                dim.dim_value or (1 if place == 0 else 0) for place, dim in enumerate(value.type.tensor_type.shape.dim)
            ]
            feed[value.name] = np.zeros(dims, np.float32)
        feed["input_ids"] = ids
        feed["attention_mask"] = np.ones_like(ids)
        if "position_ids" in feed:
            feed["position_ids"] = np.arange(ids.shape[1])[None]
        return feed

    def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
        return next(self._feeds, None)


def quantize(source: Path, target: Path, style: str) -> None:
    columns = style.endswith("columns")
    if style.startswith("dynamic"):
        kind = QuantType.QUInt8 if style.endswith("unsigned") else QuantType.QInt8
        options: dict[str, Any] = {"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=columns,
            weight_type=kind,
            extra_options=options,
        )
        return
    quantize_static(
        source,
        target,
        Inputs(onnx.load(source, load_external_data=False)),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul"],
        per_channel=columns,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
    )


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``quantized(style)``: folder of a tiny random model; the style ``float`` is the model it was made of."""
    root = tmp_path_factory.mktemp("integers")
    import_gguf(write_gguf(root / "tiny.gguf", TINY["llama"]), root / "float", dtype="fp32")

    def get(style: str) -> Path:
        folder = root / style
        if not folder.exists():
            folder.mkdir()
            for path in (root / "float").iterdir():
                if not path.name.startswith("model.onnx"):
                    shutil.copy(path, folder)
            quantize(root / "float" / "model.onnx", folder / "model.onnx", style)
        return folder

    return get


def floats(source: Path, target: Path) -> Path:
    """The same model with its dequantized weights in float32."""
    shutil.copytree(source, target)
    model = onnx.load(source / "model.onnx")
    graph = model.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in constants:
            nodes.append(node)
            continue
        codes, scales, zeros = (constants[name].astype(np.float64) for name in node.input)
        graph.initializer.append(numpy_helper.from_array(((codes - zeros) * scales).astype(np.float32), node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, target / "model.onnx")
    return target


def first_logprobs(folder: Path, **options: Any) -> list[float]:
    """The log-probability of each prompt's first token. From the first near tie on, answers may differ."""
    with LLM(folder, threads=1, **options) as llm:
        return [(result.logprobs or ())[0].logprob for result in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("style", STYLES)
def test_every_product_runs_in_our_operator(quantized: Callable[[str], Path], style: str) -> None:
    contract = resolve(read(quantized(style)), backend="native")
    found = contract.products

    assert found.problems == ()
    assert found.nodes == found.replaced == 2 * 4 + 1  # four of each layer, and the last projection
    assert (found.joined, found.swiglu) == (9, 2)  # gate and up are packed
    assert found.kinds == ("8 bits, whole columns: 9",)
    assert {"MatMulInteger", "DynamicQuantizeLinear", "MatMul"}.isdisjoint(
        count.op_type for count in contract.operators
    )


@pytest.mark.parametrize("style", ["static", "static_columns"])
def test_weights_behind_dequantize_round_activations_as_onnxruntime_does(
    quantized: Callable[[str], Path], tmp_path: Path, style: str
) -> None:
    folder = quantized(style)
    wanted = first_logprobs(floats(folder, tmp_path / "floats"), backend="ort")

    assert first_logprobs(folder, backend="native") == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize("style", ["dynamic", "dynamic_columns", "dynamic_unsigned"])
def test_rounded_activations_change_little(
    quantized: Callable[[str], Path], style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = first_logprobs(quantized("float"), backend="ort")

    assert first_logprobs(quantized(style), backend="ort") == pytest.approx(wanted, abs=0.1)
    # Where the CPU can, attention of prompts rounds to bfloat16 as well.
    assert first_logprobs(quantized(style), backend="native") == pytest.approx(wanted, abs=0.1)
    monkeypatch.setenv("ONNX_GENAI_PROMPT_BF16", "0")
    assert first_logprobs(quantized(style), backend="native") == pytest.approx(wanted, abs=0.05)


def test_activations_without_one_scale_let_the_graph_be_paged(quantized: Callable[[str], Path]) -> None:
    package = read(quantized("dynamic"))

    assert resolve(package, backend="ort").cache is not CacheStyle.PAGED
    assert resolve(package, backend="native").cache is CacheStyle.PAGED


def test_answer_does_not_depend_on_its_company(quantized: Callable[[str], Path]) -> None:
    with LLM(quantized("dynamic_columns"), threads=2, backend="native", prefix_cache=False) as llm:
        together = llm.generate(PROMPTS, PARAMS)
        alone = [llm.generate(prompt, PARAMS) for prompt in PROMPTS]

    for a, b in zip(together, alone, strict=True):
        assert a.token_ids == b.token_ids
        assert [item.logprob for item in a.logprobs or ()] == [item.logprob for item in b.logprobs or ()]
