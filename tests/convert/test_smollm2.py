"""The real SmolLM2: import of its GGUF file against transformers on the decoded checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from onnx_genai.convert import ImportReport, import_gguf
from onnx_genai.errors import GenAIError
from onnx_genai.package import hub
from tests.convert.run import Decoder

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8"))["cases"]

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return hub.pull_gguf("smollm2")
    except GenAIError as error:
        pytest.skip(f"the GGUF file of smollm2 cannot be had here: {error}")


@pytest.fixture(scope="module")
def exact(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, ImportReport]:
    folder = tmp_path_factory.mktemp("fp32") / "package"
    report = import_gguf(source, folder, dtype="fp32")
    return Decoder(folder), report


@pytest.fixture(scope="module")
def default(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, ImportReport, Path]:
    folder = tmp_path_factory.mktemp("default") / "package"
    report = import_gguf(source, folder)
    return Decoder(folder), report, folder


@pytest.mark.slow
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_fp32_import_gives_the_greedy_tokens_of_transformers(
    case: dict[str, Any], exact: tuple[Decoder, ImportReport]
) -> None:
    decoder, report = exact

    assert report.max_relative_error == 0
    assert decoder.greedy(case["prompt_ids"], len(case["new_ids"])) == case["new_ids"]


def test_default_import_takes_every_matrix_over(default: tuple[Decoder, ImportReport, Path]) -> None:
    _, report, _ = default

    matrices = [tensor for tensor in report.tensors if len(tensor.shape) == 2]
    assert len(matrices) == 211
    assert all(tensor.carried for tensor in matrices)
    assert {tensor.target for tensor in matrices} == {"int4 block 32 + block means", "int8 block 32"}
    # A second rounding of these weights to int4 would cost 0.07 (see tests/convert/test_formats.py).
    assert report.max_relative_error < 0.0075
    assert report.warnings == ()


def test_default_import_counts_to_ten(default: tuple[Decoder, ImportReport, Path]) -> None:
    decoder, _, folder = default
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (case,) = [case for case in GOLDEN if case["name"] == "count"]

    text = tokenizer.decode(decoder.greedy(case["prompt_ids"], 51))

    assert text == "\n".join(f"{number}. {number}" for number in range(1, 11))


@pytest.mark.slow
def test_default_import_stays_near_the_float_model(
    default: tuple[Decoder, ImportReport, Path], exact: tuple[Decoder, ImportReport]
) -> None:
    divergences, same = [], []
    for case in GOLDEN:
        ids = case["prompt_ids"] + case["new_ids"][:-1]
        start = len(case["prompt_ids"]) - 1
        rows = [decoder.logits(ids, [len(ids)])[start:].astype(np.float64) for decoder in (exact[0], default[0])]
        shifted = [row - row.max(-1, keepdims=True) for row in rows]
        logs = [row - np.log(np.exp(row).sum(-1, keepdims=True)) for row in shifted]
        divergences.append((np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1))
        same.append(rows[0].argmax(-1) == rows[1].argmax(-1))

    # Kullback-Leibler divergence of the next token. The kernels round activations to 8 bits, which alone costs about
    # 0.003 here; round-to-nearest int4 of the same weights is above 0.3.
    assert np.concatenate(divergences).mean() < 0.01
    assert np.concatenate(same).mean() > 0.93


def test_tokenizer_gives_the_prompt_ids_of_the_golden_file(default: tuple[Decoder, ImportReport, Path]) -> None:
    _, _, folder = default
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    for case in GOLDEN:
        text = tokenizer.decode(case["prompt_ids"], skip_special_tokens=False)
        assert tokenizer.encode(text).ids == case["prompt_ids"]
        assert case["prompt"] in text
