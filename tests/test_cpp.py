"""Builds the C++ tests and runs each floor's executable as one test.

``ONNX_GENAI_CPP_PRESET`` chooses the CMake preset (default ``debug``), so that a build which exists already, such as
``asan``, is used instead. Tests that need ONNX Runtime or a model find them by ``GENAI_ORT_LIBRARY`` and
``GENAI_TEST_MODELS``, which are set here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.models.__main__ import write_all
from tests.tokenizer.cases_for_cpp import write_cases

ROOT = Path(__file__).resolve().parents[1]
FLOORS = sorted({path.parent.name for path in (ROOT / "cpp" / "genai").glob("*/*_test.cc")})


@pytest.fixture(scope="module")
def build_folder() -> Path:
    """The build folder with all test executables up to date."""
    if _find_doctest() is None:
        pytest.skip("doctest was not found, so the C++ tests cannot be built (Debian: apt-get install doctest-dev)")
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("cmake and ninja are needed to build the C++ tests: pip install 'onnx-genai[test]'")
    preset = os.environ.get("ONNX_GENAI_CPP_PRESET", "debug")
    folder = ROOT / "build" / preset
    _run([cmake, "-S", "cpp", "--preset", preset, f"-DCMAKE_MAKE_PROGRAM={ninja}"])
    _run([cmake, "--build", str(folder)])
    return folder


def _find_doctest() -> Path | None:
    prefixes = [*os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep), "/usr", "/usr/local", "/opt/homebrew"]
    for prefix in filter(None, prefixes):
        header = Path(prefix) / "include" / "doctest" / "doctest.h"
        if header.is_file():
            return header
    return None


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    models = tmp_path_factory.mktemp("models")
    write_all(models)
    return {"GENAI_TEST_MODELS": str(models), "GENAI_ORT_LIBRARY": str(_ort_library())}


def _ort_library() -> Path:
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (library,) = (Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")
    return library


@pytest.mark.parametrize("floor", FLOORS)
def test_cpp_floor(build_folder: Path, environment: Mapping[str, str], floor: str) -> None:
    _run([str(next(build_folder.rglob(f"genai_{floor}_test")))], environment)


def test_cpp_detokenizer_says_what_tokenizers_decodes(build_folder: Path, tmp_path: Path) -> None:
    cases = tmp_path / "detokenizer.txt"
    write_cases(cases)

    _run(
        [str(next(build_folder.rglob("genai_sampling_test"))), "--test-case=Detokenizer_RandomTexts_*"],
        {"GENAI_DETOKENIZER_CASES": str(cases)},
    )


@pytest.mark.slow
def test_ort_abi_matches_a_real_header(build_folder: Path) -> None:
    folder = os.environ.get("ONNX_GENAI_ORT_INCLUDE_DIR")
    if not folder:
        pytest.skip("set ONNX_GENAI_ORT_INCLUDE_DIR to the folder of onnxruntime_c_api.h; no package ships that header")
    checked = build_folder.parent / "abi_check"
    _run(["cmake", "-S", "cpp", "-B", str(checked), "-G", "Ninja", f"-DGENAI_ORT_INCLUDE_DIR={folder}"])
    _run(["cmake", "--build", str(checked), "--target", "genai_ort_abi_check"])
