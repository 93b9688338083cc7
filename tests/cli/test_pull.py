"""Fetching: the command ``pull``, and models that ``generate`` fetches once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnx_genai import convert
from onnx_genai.errors import BackendError
from onnx_genai.package import hub
from tests.cli.conftest import Run
from tests.cli.fake_llm import Script


class FakeHub:
    """Remembers what was asked for; fetches into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pulled: list[str] = []
        self.options: dict[str, Any] = {}
        self.error: BaseException | None = None

    def resolve(self, name: str | Path) -> Path | None:
        path = Path(name)
        return path if path.exists() else self.folder if str(name) in self.pulled else None

    def pull(self, name: str, **options: Any) -> Path:
        options.pop("progress")(name, 1, 2)
        self.options = options
        if self.error is not None:
            raise self.error
        self.pulled.append(name)
        return self.folder


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, model: Path) -> FakeHub:
    fake = FakeHub(model)
    monkeypatch.setattr(hub, "resolve", fake.resolve)
    monkeypatch.setattr(hub, "pull", fake.pull)
    monkeypatch.setattr(hub, "list_local", lambda: ())
    return fake


def test_pull_prints_the_folder_and_hands_the_options_on(run: Run, fake_hub: FakeHub, tmp_path: Path) -> None:
    ran = run("pull", "owner/name", "--revision", "v1", "--variant", "q4", "--cache-dir", tmp_path, "--offline")

    assert (ran.code, ran.out, ran.err) == (0, f"{fake_hub.folder}\n", "")
    fake_hub.options.pop("importer")
    assert fake_hub.options == {"revision": "v1", "variant": "q4", "cache_dir": tmp_path, "offline": True}


def test_pull_given_a_gguf_file_imports_it(
    run: Run, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[Path, Path]] = []
    monkeypatch.setattr(convert, "import_gguf", lambda source, out, progress: seen.append((source, out)))
    run("pull", "smollm2")

    fake_hub.options["importer"](tmp_path / "a.gguf", tmp_path / "out")

    assert seen == [(tmp_path / "a.gguf", tmp_path / "out")]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BackendError("https://hub cannot be used: no route"), 1, "no route"),
        (KeyboardInterrupt(), 130, "^C interrupted"),
    ],
)
def test_pull_given_a_failure_says_so(
    run: Run, fake_hub: FakeHub, error: BaseException, code: int, message: str
) -> None:
    fake_hub.error = error

    ran = run("pull", "owner/name")

    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


@pytest.mark.parametrize("name", ["nosuch", "", "a/b/c", "../x"])
def test_pull_given_a_name_that_is_none_fails(run: Run, name: str, tmp_path: Path) -> None:
    ran = run("pull", name, "--cache-dir", tmp_path, "--offline")

    assert (ran.code, ran.out) == (1, "")
    assert "smollm2" in ran.err


@pytest.mark.parametrize("name", ["smollm2", "owner/name"])
def test_generate_given_a_name_that_is_not_here_pulls_it_once_after_saying_so(
    run: Run, script: Script, fake_hub: FakeHub, name: str
) -> None:
    first = run("generate", name, "-p", "Hi")
    second = run("generate", name, "-p", "Hi")

    assert (first.code, first.out, second.out) == (0, "Hello\n", "Hello\n")
    assert f"{name} is not on this machine yet" in first.err
    assert (second.err, fake_hub.pulled, script.path) == ("", [name], fake_hub.folder)


def test_generate_given_offline_does_not_say_that_it_pulls(run: Run, script: Script, fake_hub: FakeHub) -> None:
    ran = run("generate", "smollm2", "-p", "Hi", "--offline")

    assert ran.err == ""
    assert fake_hub.options["offline"] is True


def test_generate_given_a_variant_asks_for_that_one(run: Run, script: Script, fake_hub: FakeHub) -> None:
    run("generate", "owner/name", "-p", "Hi")

    run("generate", "owner/name", "-p", "Hi", "--variant", "q4")

    assert fake_hub.options["variant"] == "q4"
    assert script.options["variant"] == "q4"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2", "did you mean smollm2 "),
        ("zzzz", "known aliases: "),
        ("./model", "does not exist"),
        ("dir/model.onnx", "does not exist"),
        ("a/b/c", "does not exist"),
    ],
)
@pytest.mark.parametrize("command", [("generate", "-p", "Hi"), ("show",)])
def test_commands_given_a_name_that_cannot_be_pulled_fetch_nothing(
    run: Run, script: Script, fake_hub: FakeHub, command: tuple[str, ...], name: str, message: str
) -> None:
    ran = run(*command, name)

    assert (ran.code, ran.out, fake_hub.pulled) == (1, "", [])
    assert message in ran.err
