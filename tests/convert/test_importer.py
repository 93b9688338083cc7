"""The package folder as a whole: whole or absent, and the report."""

from __future__ import annotations

import errno
import json
import os
import pathlib
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import yaml
from gguf import GGMLQuantizationType as Ggml

from onnx_genai import convert
from onnx_genai.convert import import_gguf
from onnx_genai.errors import InvalidArgumentError, PackageError, ResourceExhaustedError
from tests.convert.tiny import TINY, write_gguf

FILES = {
    "config.json",
    "generation_config.json",
    "inference_metadata.yaml",
    "model.onnx",
    "model.onnx.data",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def types(name: str) -> Ggml:
        return Ggml.Q8_0 if "token_embd" in name else Ggml.Q4_1

    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", TINY["llama"], types=types)


def test_folder_has_all_files_and_nothing_is_left_beside_it(source: Path, tmp_path: Path) -> None:
    report = import_gguf(source, tmp_path / "deep" / "out")

    assert {path.name for path in (tmp_path / "deep" / "out").iterdir()} == FILES
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert report.package_bytes == sum(path.stat().st_size for path in (tmp_path / "deep" / "out").iterdir())


def test_metadata_names_the_ports_and_limits_of_the_graph(source: Path, tmp_path: Path) -> None:
    tiny = TINY["llama"]

    import_gguf(source, tmp_path / "out")

    metadata = yaml.safe_load((tmp_path / "out" / "inference_metadata.yaml").read_text(encoding="utf-8"))
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    model = metadata["model"]
    assert metadata["schema_version"] == "v1"
    assert model["max_sequence_length"] == tiny.context
    assert model["attention"] == {
        "type": "gqa",
        "num_attention_heads": tiny.heads,
        "num_kv_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
    }
    io = model["io"]
    inputs = [io["token_input"], io["attention_mask_input"], *io["kv_inputs"]]
    assert inputs == [value.name for value in graph.input]
    assert [io["logits_output"], *io["kv_outputs"]] == [value.name for value in graph.output]
    assert metadata["kv_cache"] == {"native_dtype": "float32"}
    assert metadata["quantization"] == {"default": "int4"}
    assert metadata["tokens"] == {"bos_token_id": tiny.vocab - 2, "eos_token_id": [tiny.vocab - 1, tiny.vocab - 2]}


def test_graph_has_the_opset_and_static_sizes_that_it_should(source: Path, tmp_path: Path) -> None:
    import_gguf(source, tmp_path / "out")

    model = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    opsets = {item.domain: item.version for item in model.opset_import}
    assert opsets == {"": 21, "com.microsoft": 1}
    past = next(value for value in model.graph.input if value.name == "past_key_values.0.key")
    dims = [dim.dim_param or dim.dim_value for dim in past.type.tensor_type.shape.dim]
    assert dims == ["batch_size", 2, "past_sequence_length", 16]
    names = [node.name for node in model.graph.node]
    assert len(names) == len(set(names))


def test_accuracy_level_is_that_of_every_quantised_product(source: Path, tmp_path: Path) -> None:
    for level in (4, 1):
        import_gguf(source, tmp_path / f"out{level}", accuracy_level=level)

        model = ir.load(tmp_path / f"out{level}" / "model.onnx")
        products = [node for node in model.graph if node.op_type == "MatMulNBits"]
        assert products
        assert {node.attributes["accuracy_level"].as_int() for node in products} == {level}


def test_report_tells_what_became_of_every_tensor(source: Path, tmp_path: Path) -> None:
    report = import_gguf(source, tmp_path / "out")

    by_name = {tensor.name: tensor for tensor in report.tensors}
    assert len(by_name) == len(report.tensors) == 3 + 9 * TINY["llama"].layers
    assert by_name["output_norm.weight"].target == "float32"
    assert by_name["token_embd.weight"].carried
    assert by_name["token_embd.weight"].relative_error == 0
    gate = by_name["blk.0.ffn_gate.weight"]
    assert (gate.source_type, gate.target, gate.carried) == ("Q4_1", "int4 block 32 + block means", True)
    assert gate.shape == (96, 64)
    assert report.max_relative_error == max(tensor.relative_error for tensor in report.tensors) > 0
    text = str(report)
    assert "tiny llama: llama, 2 layers, context 64" in text
    assert "Q8_0 -> int8 block 32: carried over, exact" in text


def test_progress_grows_to_the_size_of_the_matrices(source: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []

    import_gguf(source, tmp_path / "out", progress=lambda *call: calls.append(call))

    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert {call[2] for call in calls} == {calls[0][2]}
    assert 0 < done[0] <= done[-1] <= calls[0][2]
    assert calls[0][0] == "token_embd.weight"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 3}, "bits is 3; allowed: 4 or 8"),
        ({"dtype": "int3"}, "dtype is 'int3'; allowed: auto, fp32, fp16, int4, int8"),
        ({"bits": 4, "dtype": "int8"}, "bits is 4 but dtype is 'int8'; give only one of them"),
        ({"bits": 8, "dtype": "fp32"}, "bits is 8 but dtype is 'fp32'"),
        ({"block_size": 48}, r"block_size is 48; allowed: a power of two in 16\.\.256"),
        ({"block_size": 8}, "block_size is 8"),
        ({"accuracy_level": 2}, "accuracy_level is 2; allowed: 0, 1 or 4"),
    ],
)
def test_wrong_argument_is_named_with_what_is_allowed(
    options: dict[str, Any], said: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        import_gguf(source, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_existing_empty_folder_is_filled(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    import_gguf(source, tmp_path / "out")

    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_folder_that_is_not_empty_is_kept(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x", encoding="utf-8")

    with pytest.raises(InvalidArgumentError, match="out is not empty; give a new folder, or overwrite=True"):
        import_gguf(source, tmp_path / "out")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_overwrite_replaces_the_folder(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("x", encoding="utf-8")

    import_gguf(source, tmp_path / "out", overwrite=True)

    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_failed_overwrite_keeps_the_old_folder(tmp_path: Path) -> None:
    bad = write_gguf(tmp_path / "bad.gguf", TINY["llama"], skip=["output_norm.weight"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("x", encoding="utf-8")

    with pytest.raises(PackageError, match=r"'output_norm\.weight' is missing"):
        import_gguf(bad, tmp_path / "out", overwrite=True)

    assert {path.name for path in tmp_path.iterdir()} == {"bad.gguf", "out"}
    assert (tmp_path / "out" / "old.txt").exists()


def test_out_that_is_a_file_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x", encoding="utf-8")

    with pytest.raises(InvalidArgumentError, match="out is a file; give a folder"):
        import_gguf(source, tmp_path / "out", overwrite=True)


def test_full_disk_is_told_and_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: Any, **options: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(pathlib.Path, "write_text", full)

    with pytest.raises(ResourceExhaustedError, match=r"the disk is full \(\d+ bytes are free\)"):
        import_gguf(source, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_may_not_be_written_is_told(source: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PackageError, match="out: cannot be made: Permission denied"):
            import_gguf(source, tmp_path / "out")
    finally:
        tmp_path.chmod(0o700)


def test_interrupt_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(source, tmp_path / "out", progress=stop)

    assert not list(tmp_path.iterdir())


def test_same_file_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    import_gguf(source, tmp_path / "a")
    import_gguf(source, tmp_path / "b")

    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_json_files_are_readable_text(source: Path, tmp_path: Path) -> None:
    import_gguf(source, tmp_path / "out")

    for path in (tmp_path / "out").glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))


def test_public_names() -> None:
    assert sorted(convert.__all__) == [
        "ARCHITECTURES",
        "DTYPES",
        "EncoderReport",
        "ImportReport",
        "Progress",
        "TensorReport",
        "import_encoder",
        "import_gguf",
    ]
