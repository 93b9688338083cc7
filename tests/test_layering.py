"""The floors of docs/design/structure.md hold, and the check itself finds what breaks them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.layering import Floors, cpp_violations, python_violations, read_floors

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {
    "pyproject.toml",
    "CMakeLists.txt",
    "cpp",
    "python",
    "tests",
    "benchmarks",
    "docs",
    "third_party",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
}


@pytest.fixture(scope="module")
def floors() -> Floors:
    return read_floors(ROOT / "docs" / "design" / "structure.md")


def test_floors_are_acyclic_and_named(floors: Floors) -> None:
    for table in (floors.cpp, floors.python):
        known: set[str] = {"_core"}
        for floor, below in table.items():
            assert below <= known, f"{floor} uses {sorted(below - known)}, which stand below it in the page"
            known.add(floor)


def test_cpp_includes_keep_the_floors(floors: Floors) -> None:
    assert cpp_violations(ROOT, floors) == []


def test_python_imports_keep_the_floors(floors: Floors) -> None:
    assert python_violations(ROOT, floors) == []


def test_cmake_links_the_same_floors(floors: Floors) -> None:
    text = (ROOT / "cpp" / "CMakeLists.txt").read_text(encoding="utf-8")
    calls = re.findall(r"^genai_floor\((\w+)([\w ]*)\)$", text, re.MULTILINE)

    linked = {name: frozenset(below.split()) for name, below in calls}

    assert linked == {name: below for name, below in floors.cpp.items() if name != "bindings"}


def test_top_level_holds_only_agreed_names() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so build products cannot be told from files")
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    names = {line.split("/")[0] for line in listing.splitlines()}

    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


CPP_CASES = [
    ("genai/core/a.h", '#include "genai/base/error.h"', None),
    ("genai/core/a.h", '#include "genai/core/b.h"', None),
    ("genai/core/a.h", "#include <vector>", None),
    ("genai/core/a.h", '#include "genai/ort/env.h"', "core may not use ort"),
    ("genai/core/a_test.cc", '#  include "genai/engine/engine.h"', "core may not use engine"),
    ("genai/sched/a.cc", '#include "genai/runner/model_runner.h"', "sched may not use runner"),
    ("genai/runner/a.cc", '#include "genai/sampling/pipeline.h"', "runner may not use sampling"),
    ("genai/core/a.h", '#include "genai/nowhere/b.h"', "belongs to no floor"),
    ("genai/core/a.h", '#include "b.h"', "is relative"),
    ("genai/core/a.h", '#include "../base/b.h"', "is relative"),
    ("genai/core/a.h", "#include <genai/base/error.h>", "not <genai/base/error.h>"),
    ("genai/fresh/a.h", "", "is no floor"),
    ("genai/a.h", "", "is no floor"),
    ("genai/ort/a.cc", '#include "onnxruntime/ort_abi.h"', None),
    ("genai/runner/a.cc", '#include "onnxruntime/ort_abi.h"', "may be included only in cpp/genai/ort/*"),
    ("genai/runner/a.cc", "#include <onnxruntime_c_api.h>", "may be included only in cpp/genai/ort/*"),
    ("bindings/a.cc", "#include <pybind11/pybind11.h>", None),
    ("bindings/a.cc", '#include "genai/runner/model_runner.h"', "bindings may not use runner"),
    ("genai/engine/a.cc", "#include <pybind11/pybind11.h>", "may be included only in cpp/bindings/*"),
    ("genai/kernels/a.cc", "#include <immintrin.h>", None),
    ("genai/sampling/kernels.cc", "#include <immintrin.h>", None),
    ("genai/sampling/top_p.cc", "#include <immintrin.h>", "may be included only in cpp/genai/kernels/*"),
    ("genai/tensor/a.cc", "#include <arm_neon.h>", "may be included only in cpp/genai/kernels/*"),
    ("genai/engine/a.cc", '#include "llguidance/llguidance.h"', "may be included only in cpp/genai/grammar/*"),
    ("genai/core/a_test.cc", "#include <doctest/doctest.h>", None),
    ("genai/core/test_a.h", "#include <doctest/doctest.h>", None),
    ("genai/core/a.cc", "#include <doctest/doctest.h>", "may be included only in"),
]


@pytest.mark.parametrize(("file", "line", "fault"), CPP_CASES)
def test_cpp_check_given_a_planted_line_says_what_is_wrong(
    tmp_path: Path, floors: Floors, file: str, line: str, fault: str | None
) -> None:
    path = tmp_path / "cpp" / file
    path.parent.mkdir(parents=True)
    path.write_text(f"#pragma once\n{line}\n", encoding="utf-8")

    found = cpp_violations(tmp_path, floors)

    _assert_fault(found, fault)


PYTHON_CASES = [
    ("package/reader.py", "from onnx_genai.errors import PackageError", None),
    ("package/reader.py", "from onnx_genai.package.model import ModelPackage", None),
    ("package/reader.py", "from .model import ModelPackage", None),
    ("package/reader.py", "from ..errors import PackageError", None),
    ("package/reader.py", "from .. import errors", None),
    ("package/reader.py", "import yaml", None),
    ("package/reader.py", "from onnx_genai.engine import Engine", "package may not import engine"),
    ("package/reader.py", "from ..engine import Engine", "package may not import engine"),
    ("package/reader.py", "from .. import engine", "package may not import engine"),
    ("package/deep/reader.py", "from ...engine import Engine", "package may not import engine"),
    ("package/reader.py", "import onnx_genai.cli.show as show", "package may not import cli"),
    ("package/reader.py", "from onnx_genai import LLM", "not from onnx_genai itself"),
    ("package/reader.py", "import onnx_genai", "not from onnx_genai itself"),
    ("types.py", "if TYPE_CHECKING:\n    from onnx_genai.engine import Engine", "types may not import engine"),
    ("types.py", "def f():\n    from onnx_genai.engine import Engine", "types may not import engine"),
    ("types.py", "importlib.import_module('onnx_genai.engine')", "types may not import engine"),
    ("fresh.py", "", "is no floor"),
    ("engine/core.py", "from onnx_genai import _core", None),
    ("engine/core.py", "from onnx_genai._core import Engine", None),
    ("pipelines/llm.py", "from onnx_genai import _core", "pipelines may not import _core"),
    ("engine/core.py", "import onnxruntime", "may be imported only in no module"),
    ("engine/core.py", "importlib.import_module('onnxruntime')", "may be imported only in no module"),
    ("graph/io.py", "import onnx_ir as ir", None),
    ("graph/io.py", "from onnx import helper", None),
    ("package/reader.py", "import onnx.helper", "onnx may be imported only in graph, convert"),
    ("package/reader.py", "import gguf", "gguf may be imported only in convert"),
    ("package/hub.py", "from huggingface_hub import hf_hub_download", None),
    ("package/reader.py", "import huggingface_hub", "huggingface_hub may be imported only in package/hub.py"),
    ("template/chat.py", "import minijinja, jinja2.sandbox", None),
    ("pipelines/llm.py", "import jinja2", "jinja2 may be imported only in template"),
    ("pipelines/llm.py", "from tokenizers import Tokenizer", "tokenizers may be imported only in tokenizer"),
    ("cli/show.py", "import click, rich.table", None),
    ("engine/core.py", "import rich", "rich may be imported only in cli"),
    ("engine/python_llguidance.py", "def f():\n    from llguidance import LLMatcher", None),
    ("engine/core.py", "import llguidance", "may be imported only in engine/python_llguidance.py"),
]


@pytest.mark.parametrize(("file", "line", "fault"), PYTHON_CASES)
def test_python_check_given_a_planted_line_says_what_is_wrong(
    tmp_path: Path, floors: Floors, file: str, line: str, fault: str | None
) -> None:
    path = tmp_path / "python" / "onnx_genai" / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n", encoding="utf-8")

    found = python_violations(tmp_path, floors)

    _assert_fault(found, fault)


def _assert_fault(found: list[str], fault: str | None) -> None:
    if fault is None:
        assert found == []
    else:
        assert len(found) == 1
        assert fault in found[0]
