"""The command ``import``: a GGUF file to a package; the conversion itself has its own tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import onnx_genai.convert
from onnx_genai.cli.import_ import DTYPES
from onnx_genai.convert import ImportReport, TensorReport
from tests.cli.conftest import Run

TENSOR = TensorReport(
    name="w", shape=(2, 2), source_type="Q8_0", target="int8 block 32", carried=True, relative_error=0.0, max_error=0.0
)


def report(path: Path) -> ImportReport:
    return ImportReport(
        source=Path("x.gguf"),
        path=path,
        architecture="llama",
        name="tiny",
        layers=1,
        context=64,
        tensors=(TENSOR,),
        warnings=("odd",),
        source_bytes=10,
        package_bytes=20,
        seconds=0.5,
    )


def test_import_given_options_hands_them_on_and_prints_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def convert(source: Path, out: Path, **options: Any) -> ImportReport:
        options.pop("progress")("w", 5, 10)
        seen.update(options, source=source, out=out)
        return report(out)

    monkeypatch.setattr(onnx_genai.convert, "import_gguf", convert)
    arguments = (
        "import",
        "x.gguf",
        tmp_path,
        "--bits",
        "4",
        "--block-size",
        "64",
        "--max-context",
        "128",
        "--overwrite",
    )

    ran = run(*arguments)

    assert (ran.code, ran.out, ran.err) == (0, str(report(tmp_path)), "")
    assert seen == {
        "source": Path("x.gguf"),
        "out": tmp_path,
        "bits": 4,
        "dtype": None,
        "block_size": 64,
        "max_context": 128,
        "overwrite": True,
    }
    value = json.loads(run(*arguments, "--json").out)
    assert value["tensors"][0]["target"] == "int8 block 32"
    assert (value["path"], value["max_relative_error"]) == (str(tmp_path), 0.0)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, (), "x.gguf"),
        (b"no gguf", (), "x.gguf"),
        (b"no gguf", ("--block-size", "7"), "block_size"),
    ],
)
def test_import_given_a_bad_file_or_option_fails_and_makes_nothing(
    run: Run, tmp_path: Path, content: bytes | None, options: tuple[str, ...], message: str
) -> None:
    source = tmp_path / "x.gguf"
    if content is not None:
        source.write_bytes(content)

    ran = run("import", source, tmp_path / "out", *options)

    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [("--bits", "5"), ("--dtype", "fp8"), ("--block-size", "x")])
def test_import_given_wrong_usage_exits_with_2(run: Run, tmp_path: Path, options: tuple[str, str]) -> None:
    ran = run("import", tmp_path / "x.gguf", tmp_path / "out", *options)

    assert (ran.code, ran.out) == (2, "")
    assert options[0] in ran.err


def test_dtypes_are_those_of_the_converter() -> None:
    assert DTYPES == onnx_genai.convert.DTYPES
