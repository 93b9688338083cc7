"""Imported tiny models against transformers (golden) and a NumPy forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnxruntime
import pytest

from onnx_genai.convert import ARCHITECTURES, import_gguf
from onnx_genai.errors import InvalidArgumentError, PackageError, UnsupportedError
from tests.convert.reference import Reference
from tests.convert.run import Decoder
from tests.convert.tiny import TINY, Tiny, golden_ids, write_gguf

GOLDEN = Path(__file__).parents[1] / "golden" / "convert.npz"

NO_REFERENCE = ("qwen2-yarn", "phi3-long")
"""Written for transformers only: the NumPy forward pass knows neither yarn nor the long factors."""

ORT_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def tolerance(tiny: Tiny, logits: Any) -> float:
    """Rounding of float32 sums, which add up over the layers; eps is relative to the largest logit."""
    return float(8 * np.finfo(np.float32).eps * np.sqrt(tiny.hidden) * tiny.layers * np.abs(logits).max())


def imported(folder: Path, name: str) -> tuple[Path, Path]:
    tiny = TINY[name]
    if tiny.window and ORT_VERSION < (1, 24):
        pytest.skip("GroupQueryAttention before onnxruntime 1.24 lets a sliding window see one position more")
    source = write_gguf(folder / "model.gguf", tiny)
    out = folder / "package"
    report = import_gguf(source, out, max_context=tiny.context if name == "phi3-long" else None)
    assert report.max_relative_error == 0.0
    return source, out


@pytest.mark.parametrize("name", TINY)
def test_imported_model_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    _, package = imported(tmp_path, name)
    golden = np.load(GOLDEN)
    ids = golden_ids(name)
    assert ids == golden[f"{name}.ids"].tolist()

    logits = Decoder(package).logits(ids, [len(ids) - 8] + [1] * 8)

    np.testing.assert_allclose(logits, golden[name], rtol=0, atol=tolerance(TINY[name], golden[name]))


@pytest.mark.parametrize("name", [name for name in TINY if name not in NO_REFERENCE])
@pytest.mark.parametrize("pieces", ["whole", "chunks", "tokens"])
def test_imported_model_gives_the_logits_of_a_numpy_forward_pass(name: str, pieces: str, tmp_path: Path) -> None:
    source, package = imported(tmp_path, name)
    ids = golden_ids(name)
    steps = {"whole": [len(ids)], "chunks": [5, 7, len(ids) - 12], "tokens": [1] * len(ids)}[pieces]

    logits = Decoder(package).logits(ids, steps)

    expected = Reference(source).logits(ids)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance(TINY[name], expected))


def test_every_known_architecture_has_a_tiny_model() -> None:
    assert {tiny.arch for tiny in TINY.values()} == set(ARCHITECTURES)


def test_cache_shared_in_place_and_longer_than_the_sequence_gives_the_same_logits(tmp_path: Path) -> None:
    tiny = TINY["llama"]
    _, package = imported(tmp_path, "llama")
    ids = golden_ids("llama")
    expected = Decoder(package).logits(ids, [20, 1, 1, 1, 1])
    session = Decoder(package).session
    capacity = 40

    binding = session.io_binding()
    buffers = []  # older versions of onnxruntime do not keep the memory of a bound value alive
    for index in range(tiny.layers):
        for kind in ("key", "value"):
            rows = np.full((1, tiny.kv_heads, capacity, tiny.head_dim), np.nan, np.float32)
            buffer = onnxruntime.OrtValue.ortvalue_from_numpy(rows)
            buffers.append((rows, buffer))
            binding.bind_ortvalue_input(f"past_key_values.{index}.{kind}", buffer)
            binding.bind_ortvalue_output(f"present.{index}.{kind}", buffer)
    logits = []
    done = 0
    for size in (20, 1, 1, 1, 1):
        binding.bind_cpu_input("input_ids", np.array([ids[done : done + size]], np.int64))
        done += size
        binding.bind_cpu_input("attention_mask", np.ones((1, done), np.int64))
        binding.bind_output("logits", "cpu")
        session.run_with_iobinding(binding)
        logits.append(binding.copy_outputs_to_cpu()[-1][0])

    atol = tolerance(tiny, expected)
    assert len(buffers) == 2 * tiny.layers
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=0, atol=atol)


def test_rotary_tables_are_only_as_long_as_the_context(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", TINY["llama"])

    whole = import_gguf(source, tmp_path / "whole")
    short = import_gguf(source, tmp_path / "short", max_context=16)

    assert (whole.context, short.context) == (64, 16)
    assert whole.package_bytes > short.package_bytes


def test_context_beyond_the_models_own_is_not_granted(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", TINY["llama"])

    assert import_gguf(source, tmp_path / "out", max_context=1000).context == 64


def test_max_context_of_zero_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", TINY["llama"])

    with pytest.raises(InvalidArgumentError, match="max_context is 0; allowed: a whole number >= 1"):
        import_gguf(source, tmp_path / "out", max_context=0)


def test_longrope_model_says_that_its_context_is_the_short_one(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", TINY["phi3-longrope"])

    report = import_gguf(source, tmp_path / "out")

    assert report.context == 16
    assert any("max_context above 16" in warning for warning in report.warnings)


def test_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", Tiny(arch="mamba"))

    with pytest.raises(UnsupportedError, match="'mamba' cannot be imported; known: gemma2, gemma3, llama, phi3, qwen2"):
        import_gguf(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("keys", "kind", "said"),
    [
        ({"{arch}.expert_count": 8}, UnsupportedError, "mixture-of-experts"),
        ({"{arch}.rope.scaling.type": "su"}, UnsupportedError, "rope.scaling.type is 'su'; known: none, linear, yarn"),
        (
            {"{arch}.rope.scaling.type": "yarn", "{arch}.rope.scaling.yarn_log_multiplier": 0.1},
            UnsupportedError,
            "log multiplier",
        ),
        ({"{arch}.rope.scaling.type": "longrope"}, PackageError, "without the tensor 'rope_factors_short.weight'"),
        ({"{arch}.rope.scaling.type": 3}, PackageError, r"llama.rope.scaling.type is 3 \(int\); expected a string"),
        ({"{arch}.attention.sliding_window_pattern": [1]}, PackageError, r"has 1 entries; expected one a layer \(2\)"),
        ({"{arch}.rope.scaling.factor": -1.0}, PackageError, r"factor -1\.0, dimensions 16; expected positive numbers"),
        ({"split.count": 3}, UnsupportedError, "part 1 of 3 of a split model"),
    ],
)
def test_options_that_are_not_known_are_refused(
    keys: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    source = write_gguf(tmp_path / "model.gguf", Tiny(arch="llama", keys=keys))

    with pytest.raises(kind, match=said):
        import_gguf(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tiny", "said"),
    [
        (Tiny(arch="llama", context=1 << 25), r"context_length is 33554432; expected 1\.\.16777216"),
        (Tiny(arch="llama", heads=3, kv_heads=2), "3 heads cannot share 2 key/value heads evenly"),
        (Tiny(arch="llama", head_dim=12), "head size is 12; ONNX Runtime wants a multiple of 8"),
        (
            Tiny(arch="llama", factors={"rope_freqs": (1.0, 2.0)}),
            r"'rope_freqs.weight' has shape \(2,\); expected \(8,\)",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tiny: Tiny, said: str, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", tiny)

    with pytest.raises((PackageError, UnsupportedError), match=said):
        import_gguf(source, tmp_path / "out")


@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "output_norm.weight", "token_embd.weight"])
def test_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", TINY["llama"], skip=[name])

    with pytest.raises(PackageError, match=f"the tensor '{name}' is missing"):
        import_gguf(source, tmp_path / "out")


def test_tensor_without_a_place_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    tiny = Tiny(arch="llama", factors={"blk.0.ffn_norm_exps": (1.0,)})
    source = write_gguf(tmp_path / "model.gguf", tiny)

    with pytest.raises(UnsupportedError, match=r"1 tensors have no place in a llama model.*blk\.0\.ffn_norm_exps"):
        import_gguf(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_matrix_of_another_shape_than_the_metadata_is_named(tmp_path: Path) -> None:
    wrong = np.zeros((10, 64), np.float32)
    raw = {"blk.0.attn_k.weight": (wrong, gguf.GGMLQuantizationType.F32)}
    source = write_gguf(tmp_path / "model.gguf", TINY["qwen3"], raw=raw)  # type: ignore[arg-type]

    with pytest.raises(PackageError, match=r"'blk\.0\.attn_q\.weight' gives 202 rows; expected 256"):
        import_gguf(source, tmp_path / "out")
