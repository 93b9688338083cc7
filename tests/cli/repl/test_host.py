"""Loading another model in the place of one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnx_genai.cli.repl.host import ModelHost
from onnx_genai.cli.repl.interrupts import Interrupts
from onnx_genai.errors import AbortedError, InvalidArgumentError, PackageError


class _Model(SimpleNamespace):
    closed = False

    def close(self) -> None:
        self.closed = True


@dataclass
class _Options:
    """Stands in for ModelOptions: hands out what a test lets it load."""

    load: Any = None
    ep: str = "cpu"
    backend: str = "auto"
    variant: str | None = None
    offline: bool = True

    def open(self, path: Path, **_: Any) -> Any:
        return self.load(path)


class _Pressed(Interrupts):
    """Ctrl-C as soon as somebody asks."""

    def take(self) -> bool:
        return True


@pytest.fixture
def host(tmp_path: Path) -> ModelHost:
    return ModelHost(str(tmp_path), tmp_path, _Options(), _Model())  # type: ignore[arg-type]


def test_use_model_takes_the_new_one_and_closes_the_old(host: ModelHost, tmp_path: Path) -> None:
    old, new = host.llm, _Model()
    host.options.load = lambda _: new  # type: ignore[attr-defined]

    host.use_model(str(tmp_path), Interrupts())

    assert host.llm is new
    assert (old.closed, new.closed) == (True, False)  # type: ignore[attr-defined]


def test_use_model_given_a_broken_one_keeps_the_old(host: ModelHost, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise PackageError("broken")

    old = host.llm
    host.options.load = fail  # type: ignore[attr-defined]

    with pytest.raises(PackageError, match="broken"):
        host.use_model(str(tmp_path), Interrupts())

    assert host.llm is old
    assert not old.closed  # type: ignore[attr-defined]


def test_use_model_given_ctrl_c_keeps_the_old_and_closes_the_late_one(host: ModelHost, tmp_path: Path) -> None:
    go_on, late = threading.Event(), _Model()
    closed = threading.Event()
    late.close = closed.set

    def slowly(_: Path) -> _Model:
        go_on.wait(60)
        return late

    old = host.llm
    host.options.load = slowly  # type: ignore[attr-defined]

    with pytest.raises(AbortedError, match="the model from before is still there"):
        host.use_model(str(tmp_path), _Pressed())

    assert host.llm is old
    go_on.set()
    assert closed.wait(60)


def test_use_model_given_ctrl_c_while_it_is_fetched_keeps_the_old(
    host: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnx_genai.cli.repl.host.fetched_model", pressed)
    old = host.llm

    with pytest.raises(AbortedError, match="fetching was stopped; the model from before is still there"):
        host.use_model("other", Interrupts())

    assert host.llm is old


def test_use_provider_given_an_unknown_one_loads_nothing(host: ModelHost) -> None:
    host.options.load = lambda _: pytest.fail("loaded")  # type: ignore[attr-defined]

    with pytest.raises(InvalidArgumentError, match="no execution provider 'nosuch'; choose one of auto, cpu"):
        host.use_provider("cpu,NOSUCH", Interrupts())
    with pytest.raises(InvalidArgumentError, match="choose auto, ort, or native"):
        host.use_backend("rust", Interrupts())


def test_use_provider_given_auto_takes_that_of_the_environment(
    host: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.options.load = lambda _: _Model()  # type: ignore[attr-defined]
    monkeypatch.delenv("ONNX_GENAI_RUN_EP", raising=False)
    monkeypatch.delenv("ONNX_GENAI_EP", raising=False)

    host.use_provider("auto", Interrupts())
    assert host.options.ep == "cpu"

    monkeypatch.setenv("ONNX_GENAI_EP", "cuda,cpu")
    host.use_provider("AUTO", Interrupts())
    assert host.options.ep == "cuda,cpu"


def test_label_is_the_folder_or_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"")
    options: Any = _Options()
    model: Any = _Model()

    assert ModelHost(str(folder), folder, options, model).label == "my-model"
    assert ModelHost(str(folder / "model.onnx"), folder / "model.onnx", options, model).label == "my-model"
    assert ModelHost("smollm2", folder, options, model).label == "smollm2"
