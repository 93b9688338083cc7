"""Which ONNX Runtime library is taken, and what is said about one that cannot be."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_genai.engine import find_ort_library
from onnx_genai.engine.runtime import FOLDER_VARIABLE, LIBRARY_VARIABLE, LOADER_VARIABLES, PREFIX_VARIABLES
from onnx_genai.errors import BackendError, NotFoundError

Place = Callable[[str], Path]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library in the installed package; no variable says anything."""
    for variable in (LIBRARY_VARIABLE, FOLDER_VARIABLE, *PREFIX_VARIABLES, *LOADER_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    library = find_ort_library()
    assert library.reason == "inside the installed onnxruntime package"
    return library.path


@pytest.fixture
def place(installed: Path, tmp_path: Path) -> Place:
    """``place("folder/name")``: puts the library there, as a link; returns its path."""

    def put(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(installed)
        return path

    return put


def test_search_takes_the_first_of_its_places(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # From the weakest to the strongest, so that each must win against all before it.
    place("system/libonnxruntime.so")
    place("venv/lib/libonnxruntime.so.1")
    place("conda/lib/libonnxruntime.so.1.25.0")
    place("folder/libonnxruntime.dylib")
    place("named/anything")
    reasons = [find_ort_library().reason]
    for variable, value in (
        ("LD_LIBRARY_PATH", "system"),
        ("VIRTUAL_ENV", "venv"),
        ("CONDA_PREFIX", "conda"),
        ("ONNX_GENAI_ORT_LIB_DIR", "folder"),
        ("ONNX_GENAI_ORT_LIB", "named/anything"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / value))
        reasons.append(find_ort_library().reason)

    assert reasons == [
        "inside the installed onnxruntime package",
        "inside the installed onnxruntime package",
        "in the lib folder of the active virtual environment (VIRTUAL_ENV)",
        "in the lib folder of the active conda environment (CONDA_PREFIX)",
        "in the folder named by ONNX_GENAI_ORT_LIB_DIR",
        "named by ONNX_GENAI_ORT_LIB",
    ]


@pytest.mark.parametrize("form", ["libonnxruntime.so.{}", "libonnxruntime.{}.dylib"])
def test_of_several_versions_the_newest_is_taken(place: Place, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    folder = place(f"folder/{form.format('1.22.0.1')}").parent
    for older in ("1.22.0", "1.9.0", "1.3"):
        (folder / form.format(older)).write_bytes(b"no library")
    monkeypatch.setenv("ONNX_GENAI_ORT_LIB_DIR", str(folder))

    assert find_ort_library().reason == "in the folder named by ONNX_GENAI_ORT_LIB_DIR"


def test_environments_without_a_library_are_passed_over(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conda" / "lib").mkdir(parents=True)
    (tmp_path / "conda" / "lib" / "libonnxruntime_providers_shared.so").write_bytes(b"")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "nosuch"))

    assert find_ort_library().path == installed


def test_system_folders_are_the_last(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place("second/libonnxruntime.so")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else real(name, *rest)
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")

    assert find_ort_library().reason == (f"in a folder that the system searches for libraries ({tmp_path / 'second'})")


def test_library_named_by_a_relative_path_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place("lib/libonnxruntime.so")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONNX_GENAI_ORT_LIB", "lib/libonnxruntime.so")

    library = find_ort_library()

    assert library.path.is_absolute()
    assert library.version.startswith("1.")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ONNX_GENAI_ORT_LIB", "nosuch.so", "ONNX_GENAI_ORT_LIB is 'nosuch.so', which is not a file"),
        ("ONNX_GENAI_ORT_LIB", ".", "is a folder; name the file libonnxruntime in it, or set ONNX_GENAI_ORT_LIB_DIR"),
        ("ONNX_GENAI_ORT_LIB_DIR", "nosuch", "ONNX_GENAI_ORT_LIB_DIR is 'nosuch', where no libonnxruntime is"),
        ("ONNX_GENAI_ORT_LIB_DIR", ".", "where no libonnxruntime is"),
    ],
)
def test_place_that_was_named_and_has_none_is_an_error(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)

    with pytest.raises(NotFoundError) as caught:
        find_ort_library()

    assert said in str(caught.value)


def test_library_that_is_none_is_told_with_why_it_was_taken(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "lib" / "libonnxruntime.so"
    text.parent.mkdir()
    text.write_text("not a library", encoding="utf-8")
    other = next(path for path in Path(sys.base_prefix).rglob("*.so") if path.is_file())
    conda = "it is in the lib folder of the active conda environment (CONDA_PREFIX); ONNX_GENAI_ORT_LIB names another"
    for variable, value, reason in (
        ("ONNX_GENAI_ORT_LIB", text, "it is named by ONNX_GENAI_ORT_LIB"),
        ("ONNX_GENAI_ORT_LIB", other, "this is not ONNX Runtime"),
        ("CONDA_PREFIX", tmp_path, conda),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, str(value))
            with pytest.raises(BackendError) as caught:
                find_ort_library()

        assert str(value) in str(caught.value)
        assert reason in str(caught.value)
