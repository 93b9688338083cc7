"""Fetching models: from a fake hub on the loopback interface, from a wheel in a local folder, and from the cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.errors import (
    BackendError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    PackageError,
    ResourceExhaustedError,
)
from onnx_genai.package import aliases, cache, hub, wheel
from onnx_genai.package.aliases import ALIASES, Alias, WheelModel
from tests.package.fake_hub import COMMIT, FakeHub, serving

REPO = "owner/model"
FILES = {
    "README.md": b"read me",
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": b"s" * 5000,
    "onnx/model.onnx": b"float graph",
    "onnx/model.onnx_data": b"f" * 4000,
    "onnx/model_q4.onnx": b"int4 graph",
    "onnx/model_q4.onnx_data": b"q" * 3000,
    "onnx/model_q4.onnx_data_1": b"r" * 300,
    "onnx/model_q4f16.onnx": b"half graph",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an environment without settings of the machine."""
    for key in ("ONNX_GENAI_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("ONNX_GENAI_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub(repositories={REPO: dict(FILES)})) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def no_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint where nobody listens."""
    with serving(FakeHub()) as server:
        address = server.url
    monkeypatch.setenv("HF_ENDPOINT", address)


# From the hub -------------------------------------------------------------------------------------------------------


def test_pull_fetches_only_what_the_chosen_graph_needs(fake: FakeHub, home: Path) -> None:
    path = hub.pull(REPO)

    expected = ["config.json", "tokenizer.json", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]
    assert fake.downloads() == [*expected, "onnx/model_q4.onnx_data_1"]
    assert path.is_relative_to(home)
    assert (path / "onnx" / "model_q4.onnx_data").read_bytes() == FILES["onnx/model_q4.onnx_data"]


@pytest.mark.parametrize("variant", ["fp32", "base", "model.onnx"])
def test_pull_takes_the_variant_that_is_asked_for(variant: str, fake: FakeHub) -> None:
    path = hub.pull(REPO, variant=variant)

    assert sorted(item.name for item in (path / "onnx").iterdir()) == ["model.onnx", "model.onnx_data"]


def test_second_pull_uses_no_network(fake: FakeHub) -> None:
    first = hub.pull(REPO)
    fake.requests.clear()

    assert hub.pull(REPO) == first
    assert hub.resolve(REPO) == first
    assert fake.requests == []


def test_pulled_model_is_there_offline(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub.pull(REPO)
    fake.requests.clear()

    assert hub.pull(REPO, offline=True) == path
    monkeypatch.setenv("ONNX_GENAI_OFFLINE", "1")
    assert hub.pull(REPO) == path
    assert fake.requests == []


@pytest.mark.parametrize("key", ["ONNX_GENAI_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_without_the_model_says_what_is_missing(
    key: str, fake: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key, "true")

    with pytest.raises(NotFoundError, match="owner/model revision v2 variant q4 is not in the cache") as error:
        hub.pull(REPO, revision="v2", variant="q4")
    assert key in str(error.value)
    assert str(home) in str(error.value)
    assert fake.requests == []


def test_offline_variable_set_to_no_is_not_offline(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_GENAI_OFFLINE", "0")

    assert hub.pull(REPO).is_dir()


def test_revision_is_passed_on_and_kept_apart(fake: FakeHub) -> None:
    fake.revisions = ("main", "v2", COMMIT)

    hub.pull(REPO, revision="v2")
    assert f"GET /api/models/{REPO}/revision/v2" in fake.requests
    fake.requests.clear()

    hub.pull(REPO, revision="v2")
    hub.pull(REPO, revision=COMMIT)
    assert fake.requests == []
    hub.pull(REPO)
    assert f"GET /api/models/{REPO}" in fake.requests


def test_broken_off_download_goes_on_where_it_stopped(fake: FakeHub) -> None:
    # huggingface_hub writes pieces of 10 MiB; what it has not written when the connection breaks is fetched again.
    content = bytes(1 << 20) + os.urandom(23 << 20)
    fake.repositories[REPO]["onnx/model_q4.onnx_data"] = content
    fake.cut_after = 22 << 20

    try:
        path = hub.pull(REPO)
    except BackendError:  # depends on the version of huggingface_hub: it may not try again by itself
        path = hub.pull(REPO)

    assert (path / "onnx" / "model_q4.onnx_data").read_bytes() == content
    starts = [int(wanted.removeprefix("bytes=").removesuffix("-")) for wanted in fake.ranges]
    assert starts
    assert starts[0] >= 10 << 20


def test_progress_ends_at_the_whole_size(fake: FakeHub) -> None:
    calls: list[tuple[str, int, int]] = []

    hub.pull(REPO, progress=lambda *call: calls.append(call))

    total = sum(len(FILES[name]) for name in fake.downloads())
    assert calls[-1] == (REPO, total, total)
    assert all(0 <= done <= total for _, done, _ in calls)


def test_token_goes_to_the_hub(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    hub.pull(REPO)

    assert fake.authorizations == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"repositories": {}}, NotFoundError, "owner/model: http://127.* has no such model"),
        ({"revisions": ("other",)}, NotFoundError, "has no revision None of it"),
        ({"gated": True}, NotFoundError, "its owner wants you to accept terms first; do so at http.*owner/model"),
        ({"status": 500}, BackendError, "cannot be used: .*; check the network, set HF_ENDPOINT to a mirror"),
        ({"announce_more": 7}, PackageError, r"bytes came; owner/model announced \d+; pull it again"),
    ],
)
def test_what_the_hub_refuses_is_told(
    change: dict[str, Any], kind: type[Exception], said: str, fake: FakeHub, home: Path
) -> None:
    for key, value in change.items():
        setattr(fake, key, value)

    with pytest.raises(kind, match=said):
        hub.pull(REPO)
    assert hub.list_local() == ()
    assert hub.resolve(REPO) is None


def test_hub_that_does_not_answer_is_given_up(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HUB_TIMEOUT_S", 0.3)
    fake.hang = threading.Event()

    try:
        with pytest.raises(DeadlineError, match=r"127\.0\.0\.1.* did not answer in time"):
            hub.pull(REPO)
    finally:
        fake.hang.set()


def test_hub_that_is_not_there_is_told(no_hub: None) -> None:
    with pytest.raises(BackendError, match=r"http://127\.0\.0\.1:\d+ cannot be used"):
        hub.pull(REPO)


@pytest.mark.parametrize("name", ["", "model", "a/b/c", "../x", "owner/", "/abs/path", "http://x/y"])
def test_name_that_can_be_nothing_is_refused(name: str, home: Path) -> None:
    with pytest.raises(NotFoundError, match=r"is neither an alias nor a hub id .*known aliases: smollm2"):
        hub.pull(name)
    assert not home.exists()


def test_unknown_source_is_refused(home: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="source is 'web'; allowed: auto, hub, wheel"):
        hub.pull("smollm2", source="web")  # type: ignore[arg-type]


def test_file_that_vanished_makes_the_model_incomplete(fake: FakeHub) -> None:
    path = hub.pull(REPO)
    (path / "config.json").unlink()

    assert hub.resolve(REPO) is None
    assert hub.list_local() == ()
    assert hub.pull(REPO) == path
    assert (path / "config.json").is_file()


def test_list_names_what_is_complete(fake: FakeHub) -> None:
    path = hub.pull(REPO)
    hub.pull(REPO, variant="fp32")

    models = hub.list_local()

    assert [(model.name, model.variant, model.source, model.revision) for model in models] == [
        (REPO, None, "hub", COMMIT),
        (REPO, "fp32", "hub", COMMIT),
    ]
    assert models[0].path == path
    assert models[0].size_bytes == sum(len(FILES[name]) for name in fake.downloads()[:5])


def test_record_that_cannot_be_read_is_as_if_it_were_not_there(fake: FakeHub, home: Path) -> None:
    hub.pull(REPO)
    for record in (home / "records").iterdir():
        record.write_text("{", encoding="utf-8")

    assert hub.list_local() == ()
    assert hub.resolve(REPO) is None


def test_existing_path_wins_over_a_name(fake: FakeHub, tmp_path: Path) -> None:
    hub.pull(REPO)
    (tmp_path / "owner" / "model").mkdir(parents=True)

    assert hub.resolve(REPO) == Path(REPO)
    assert hub.resolve(tmp_path / "owner") == tmp_path / "owner"
    assert hub.resolve(str(tmp_path / "nowhere")) is None
    assert hub.resolve("x" * 5000) is None
    assert hub.resolve("with\0nul") is None
    assert hub.resolve("~nobody-of-that-name/x") is None


def test_cache_dir_is_used_instead_of_the_home(fake: FakeHub, home: Path, tmp_path: Path) -> None:
    path = hub.pull(REPO, cache_dir=tmp_path / "other")

    assert path.is_relative_to(tmp_path / "other")
    assert not home.exists()
    assert hub.resolve(REPO) is None
    assert hub.resolve(REPO, cache_dir=tmp_path / "other") == path


def test_default_folder_is_below_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONNX_GENAI_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert hub.cache_folder() == tmp_path / ".cache" / "onnx-genai"


# At the same time ---------------------------------------------------------------------------------------------------


def test_threads_that_pull_at_once_fetch_once(fake: FakeHub) -> None:
    fake.hang = threading.Event()
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(hub.pull(REPO))) for _ in range(4)]
    for thread in threads:
        thread.start()
    fake.hang.set()
    for thread in threads:
        thread.join(30)

    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert len(fake.downloads()) == 5


def test_processes_that_pull_at_once_fetch_once(fake: FakeHub) -> None:
    code = f"from onnx_genai.package import hub; print(hub.pull({REPO!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in running]

    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert len(fake.downloads()) == 5


def test_wait_for_another_process_is_bounded(fake: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LOCK_TIMEOUT_S", 0.3)

    with cache.locked(home, REPO, 1.0), pytest.raises(DeadlineError, match="owner/model: another process fetches it"):
        hub.pull(REPO)
    assert hub.pull(REPO).is_dir()


# From a wheel -------------------------------------------------------------------------------------------------------


def make_wheel(folder: Path, content: bytes = b"GGUF" + b"w" * 2000) -> WheelModel:
    """A wheel with one file, as pip wants it, and its pins."""
    folder.mkdir()
    path = folder / "tiny_gguf-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_gguf/model.gguf", content)
        archive.writestr("tiny_gguf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n"
                         "Requires-Dist: a-package-that-does-not-exist\n")  # fmt: skip
        archive.writestr(
            "tiny_gguf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_gguf-1.0.dist-info/RECORD", "")
    return WheelModel(
        requirement="tiny-gguf==1.0",
        wheel_bytes=path.stat().st_size,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny_gguf/model.gguf",
        gguf_bytes=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
    )


def importer(source: Path, out: Path) -> None:
    """Stands for the real one: copies."""
    out.mkdir()
    (out / "model.onnx").write_bytes(source.read_bytes())


@pytest.fixture
def tiny(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """The alias ``tiny``, whose wheel lies in a local folder; pip may use nothing else."""
    model = make_wheel(tmp_path / "wheels")
    monkeypatch.setitem(ALIASES, "tiny", Alias(hub_id="owner/tiny", wheel=model))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return model


def repin(monkeypatch: pytest.MonkeyPatch, model: WheelModel, **changes: Any) -> None:
    monkeypatch.setitem(ALIASES, "tiny", Alias(hub_id="owner/tiny", wheel=replace(model, **changes)))


def test_alias_falls_back_to_its_wheel(tiny: WheelModel, no_hub: None, home: Path) -> None:
    path = hub.pull("tiny", importer=importer)

    assert path == home / "models" / "tiny"
    assert (path / "model.onnx").stat().st_size == tiny.gguf_bytes
    assert list((home / "work").iterdir()) == []
    (model,) = hub.list_local()
    assert (model.name, model.source, model.revision) == ("tiny", "wheel", "tiny-gguf==1.0")
    assert hub.resolve("tiny") == path
    assert hub.pull("tiny", offline=True) == path


def test_alias_takes_the_hub_when_it_has_the_model(tiny: WheelModel, fake: FakeHub) -> None:
    fake.repositories["owner/tiny"] = dict(FILES)

    path = hub.pull("tiny")

    assert (path / "onnx" / "model_q4.onnx").is_file()
    assert hub.resolve("tiny") == path
    assert hub.resolve("owner/tiny") == path


@pytest.mark.parametrize("change", [{"repositories": {}}, {"status": 503}])
def test_hub_that_fails_is_no_reason_to_give_up(tiny: WheelModel, change: dict[str, Any], fake: FakeHub) -> None:
    for key, value in change.items():
        setattr(fake, key, value)

    assert (hub.pull("tiny", importer=importer) / "model.onnx").is_file()


def test_source_wheel_does_not_ask_the_hub(tiny: WheelModel, fake: FakeHub) -> None:
    fake.repositories["owner/tiny"] = dict(FILES)

    path = hub.pull("tiny", source="wheel", importer=importer)

    assert (path / "model.onnx").is_file()
    assert fake.requests == []
    assert hub.pull("tiny", source="hub") != path


def test_revision_is_no_reason_to_take_the_wheel(tiny: WheelModel, fake: FakeHub) -> None:
    with pytest.raises(NotFoundError, match=r"owner/tiny: .* has no such model"):
        hub.pull("tiny", revision="v1", importer=importer)


def test_missing_importer_says_what_to_pass(tiny: WheelModel, no_hub: None) -> None:
    with pytest.raises(InvalidArgumentError, match=r"importer=onnx_genai\.convert\.import_gguf.*the hub was tried"):
        hub.pull("tiny")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"wheel_bytes": 5}, r"tiny_gguf-1\.0-py3-none-any\.whl: \d+ bytes came; expected 5"),
        ({"wheel_sha256": "0" * 64}, r"\.whl: its SHA-256 is [0-9a-f]{64}; expected 0{64}; it is not used"),
        ({"gguf_bytes": 5}, r"model\.gguf: 2004 bytes came; expected 5"),
        ({"gguf_sha256": "0" * 64}, r"model\.gguf: its SHA-256 is [0-9a-f]{64}"),
        ({"member": "tiny_gguf/other.gguf"}, "other.gguf cannot be read from it"),
    ],
)
def test_wheel_that_differs_from_its_pins_is_not_used(
    changes: dict[str, Any],
    said: str,
    tiny: WheelModel,
    no_hub: None,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repin(monkeypatch, tiny, **changes)

    with pytest.raises(PackageError, match=said):
        hub.pull("tiny", importer=importer)
    assert not (home / "models").exists()
    assert list((home / "work").iterdir()) == []


def test_wheel_that_is_not_there_gives_pips_own_words(
    tiny: WheelModel, no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    repin(monkeypatch, tiny, requirement="tiny-gguf==9.9")

    with pytest.raises(BackendError, match=r"pip could not download tiny-gguf==9\.9 \(status 1\): ERROR: .*tiny-gguf"):
        hub.pull("tiny", importer=importer)


def test_python_without_pip_is_told_how_to_get_it(
    tiny: WheelModel, no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(BackendError, match=r"pip, which is not in this Python .*python -m ensurepip"):
        hub.pull("tiny", importer=importer)


def test_pip_that_hangs_is_stopped(tiny: WheelModel, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "STALL_S", 0.5)
    started: list[subprocess.Popen[bytes]] = []

    def hanging(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess_popen([sys.executable, "-c", "import time; time.sleep(60)"], **options)
        started.append(process)
        return process

    subprocess_popen = subprocess.Popen
    monkeypatch.setattr(wheel.subprocess, "Popen", hanging)

    with pytest.raises(DeadlineError, match=r"pip wrote nothing of tiny-gguf==1\.0"):
        hub.pull("tiny", importer=importer)
    assert started[0].poll() is not None


def test_import_that_fails_leaves_nothing(tiny: WheelModel, no_hub: None, home: Path) -> None:
    def failing(source: Path, out: Path) -> None:
        importer(source, out)
        raise ResourceExhaustedError("the disk is full")

    with pytest.raises(ResourceExhaustedError):
        hub.pull("tiny", importer=failing)
    assert not (home / "models").exists()
    assert hub.list_local() == ()
    assert hub.pull("tiny", importer=importer).is_dir()


def test_progress_of_a_wheel_ends_at_its_size(tiny: WheelModel, no_hub: None) -> None:
    calls: list[tuple[str, int, int]] = []

    hub.pull("tiny", importer=importer, progress=lambda *call: calls.append(call))

    assert calls[-1] == ("tiny-gguf==1.0", tiny.wheel_bytes, tiny.wheel_bytes)


def test_package_of_an_older_importer_is_made_again(
    tiny: WheelModel, no_hub: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub.pull("tiny", importer=importer)
    (path / "model.onnx").write_bytes(b"old")
    monkeypatch.setattr(hub, "IMPORT_VERSION", 2)

    assert hub.resolve("tiny") == path
    assert hub.pull("tiny", offline=True) == path
    assert (path / "model.onnx").stat().st_size == 3
    assert hub.pull("tiny", importer=importer) == path
    assert (path / "model.onnx").stat().st_size == tiny.gguf_bytes


def test_gguf_file_is_kept_and_used_for_the_package(
    tiny: WheelModel, no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub.pull_gguf("tiny")

    assert path.name == "model.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tiny.gguf_sha256
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert hub.pull_gguf("tiny", offline=True) == path
    assert hub.pull("tiny", importer=importer).is_dir()


def test_gguf_file_of_a_name_without_a_wheel_is_not_found(home: Path) -> None:
    with pytest.raises(NotFoundError, match=r"'qwen3-0\.6b' has no GGUF file on PyPI; known: smollm2"):
        hub.pull_gguf("qwen3-0.6b")
    with pytest.raises(NotFoundError, match="the GGUF file of smollm2 is not in the cache"):
        hub.pull_gguf("smollm2", offline=True)


# The table ----------------------------------------------------------------------------------------------------------


def test_every_alias_names_a_hub_id_and_whole_pins() -> None:
    for name, alias in ALIASES.items():
        assert hub.HUB_ID.fullmatch(alias.hub_id), name
        if alias.wheel is not None:
            assert "==" in alias.wheel.requirement
            assert len(bytes.fromhex(alias.wheel.wheel_sha256)) == 32
            assert not isinstance(alias.wheel, WheelModel) or len(bytes.fromhex(alias.wheel.gguf_sha256)) == 32


def test_public_names() -> None:
    assert sorted(hub.__all__) == [
        "Importer",
        "LocalModel",
        "Progress",
        "Source",
        "cache_folder",
        "list_local",
        "pull",
        "pull_gguf",
        "resolve",
    ]
    assert sorted(aliases.__all__) == ["ALIASES", "Alias", "WheelFolder", "WheelModel"]


def test_record_is_plain_json(fake: FakeHub, home: Path) -> None:
    hub.pull(REPO, variant="q4")

    (record,) = (json.loads(path.read_text(encoding="utf-8")) for path in (home / "records").iterdir())
    assert record["name"] == REPO
    assert record["variant"] == "q4"
    assert not Path(record["folder"]).is_absolute()
