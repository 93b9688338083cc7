"""Lines of earlier sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit")

from onnx_genai.cli.repl.editor import history_path
from onnx_genai.cli.repl.history import PrivateHistory


def test_history_keeps_lines_for_the_next_session(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    history = PrivateHistory(path, limit=10)

    for line in ("one", "two\nlines", "é😀"):
        history.store_string(line)

    assert list(PrivateHistory(path, limit=10).load_history_strings()) == ["é😀", "two\nlines", "one"]


def test_history_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"

    PrivateHistory(path, limit=10).store_string("secret")

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_history_given_too_many_lines_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = PrivateHistory(path, limit=3)
    for number in range(5):
        history.store_string(str(number))

    assert list(PrivateHistory(path, limit=3).load_history_strings()) == ["4", "3", "2"]
    assert path.read_text(encoding="utf-8") == '"2"\n"3"\n"4"\n'
    assert path.stat().st_mode & 0o777 == 0o600


def test_history_given_damaged_lines_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n{"a": 1}\n"cut of\n\xff\n"two"\n')

    assert list(PrivateHistory(path, limit=10).load_history_strings()) == ["two", "one"]


def test_history_given_a_place_that_cannot_be_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    history = PrivateHistory(tmp_path / "file" / "history", limit=10)

    history.store_string("one")

    assert list(history.load_history_strings()) == []


def test_history_path_follows_variable_and_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("ONNX_GENAI_REPL_HISTORY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert history_path() == tmp_path / ".local" / "state" / "onnx-genai" / "history"

    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert history_path() == Path("/state/onnx-genai/history")

    monkeypatch.setattr("sys.platform", "darwin")
    assert history_path() == tmp_path / "Library" / "Application Support" / "onnx-genai" / "history"

    monkeypatch.setenv("ONNX_GENAI_REPL_HISTORY", "~/lines")
    assert history_path() == tmp_path / "lines"
