"""Checkpoints of BERT and RoBERTa against transformers; see golden/PROVENANCE.md."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from onnx_genai import Embedder
from onnx_genai.convert import import_encoder
from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError, UnsupportedError
from tests.embedding.tiny_bert import CHECKPOINTS, HIDDEN, IDS, LAYERS, TYPES, checkpoint_tensors, write_checkpoint
from tests.models.encoder import write_safetensors

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "encoders.npz")

# Values of order 1 after a handful of float32 layers, summed in another order.
TOLERANCE = 1e-5


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if not name.endswith("score")])
def test_imported_encoder_gives_the_means_of_transformers(tmp_path: Path, name: str) -> None:
    report = import_encoder(write_checkpoint(tmp_path / "source", name), tmp_path / "package")
    with Embedder(tmp_path / "package") as embedder:
        vectors = embedder.embed([list(ids) for ids in IDS], normalize=False)

    assert (report.layers, report.hidden_size, report.output) == (LAYERS, HIDDEN, "last_hidden_state")
    assert "2 layers, vectors of 24" in str(report)
    for number, (ids, types) in enumerate(zip(IDS, TYPES, strict=True)):
        if not any(types) or name == "roberta":  # ids that are given have no types
            np.testing.assert_allclose(vectors[number], GOLDEN[f"{name}_{number}"].mean(axis=0), atol=TOLERANCE)
        assert len(ids) == len(types)


@pytest.mark.parametrize("name", ["bert_score", "roberta_score"])
def test_imported_reranker_gives_the_scores_of_transformers(tmp_path: Path, name: str) -> None:
    import_encoder(write_checkpoint(tmp_path / "source", name), tmp_path / "package")
    # The third text of the golden numbers is the pair ([7 7 8 4 21], [40 41]) with types; RoBERTa has none.
    with Embedder(tmp_path / "package") as embedder:
        ranked = embedder.rerank("w7 w7 w8 w4 w21", ["w40 w41"], raw_scores=True)

        assert embedder.kind == "reranker"
    np.testing.assert_allclose(ranked[0].score, GOLDEN[f"{name}_2"][0], atol=TOLERANCE)


def test_files_of_sentence_transformers_come_along(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}', encoding="utf-8")
    modules = [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]
    (source / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (source / "pytorch_model.bin").write_bytes(b"not wanted")

    import_encoder(source, tmp_path / "package")

    with Embedder(tmp_path / "package") as embedder:
        np.testing.assert_allclose(embedder.embed([list(IDS[0])])[0], GOLDEN["bert_0"][0], atol=TOLERANCE)
    assert not (tmp_path / "package" / "pytorch_model.bin").exists()


def test_other_model_types_are_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (source / "config.json").write_text(json.dumps({**config, "model_type": "t5"}), encoding="utf-8")

    with pytest.raises(UnsupportedError, match=r"config\.json: model_type is 't5'; this version imports bert, roberta"):
        import_encoder(source, tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    more = {**checkpoint_tensors("bert"), "encoder.layer.0.adapter.weight": np.zeros((2, 2), np.float32)}
    write_safetensors(source / "model.safetensors", more)

    with pytest.raises(UnsupportedError, match=r"1 tensors have no place in a bert encoder .*adapter\.weight"):
        import_encoder(source, tmp_path / "package")
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    (source / missing).unlink()

    with pytest.raises(PackageError, match=f"has no {missing}"):
        import_encoder(source, tmp_path / "package")


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    with pytest.raises(NotFoundError, match="no such folder"):
        import_encoder(tmp_path / "nothing", tmp_path / "package")
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        import_encoder(source, source)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"\xff" * 64, "is no complete safetensors file"),
        (b'\x07\0\0\0\0\0\0\0{"a": 1', "is not valid JSON"),
        (b"\x02\0\0\0\0\0\0\0[]", "its header is no object"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_broken_weights_are_an_error_that_names_the_file(tmp_path: Path, content: bytes, text: str) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    (source / "model.safetensors").write_bytes(content)

    with pytest.raises(PackageError, match=rf"model\.safetensors.*{text}"):
        import_encoder(source, tmp_path / "package")


def test_weights_that_are_cut_off_are_an_error(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[:-100])

    with pytest.raises(PackageError, match=r"the bytes of .* do not fit its shape or the file"):
        import_encoder(source, tmp_path / "package")
