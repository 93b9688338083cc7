"""Conversations in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnx_genai.cli.repl.conversation import Conversation
from onnx_genai.cli.repl.files import SavedConversation, load_conversation, save_conversation
from onnx_genai.errors import InvalidArgumentError, NotFoundError


def saved(**given: object) -> SavedConversation:
    conversation = Conversation(system="s", messages=[{"role": "user", "content": "é😀"}])
    values: dict[str, object] = {"model": "m", "conversation": conversation, "settings": {"seed": 1}}
    return SavedConversation(**(values | given))  # type: ignore[arg-type]


def test_save_writes_the_documented_object_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"

    save_conversation(path, saved(kv=tmp_path / "talk.kv"))

    assert json.loads(path.read_text(encoding="utf-8")) == {
        "format": "onnx-genai-conversation",
        "version": 1,
        "model": "m",
        "system": "s",
        "branch": "main",
        "messages": [{"role": "user", "content": "é😀"}],
        "branches": {},
        "settings": {"seed": 1},
        "raw": False,
        "kv": "talk.kv",
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]


def test_load_gives_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, saved(raw=True, kv=tmp_path / "talk.kv"))

    again = load_conversation(path)

    assert again.conversation.as_dict() == saved().conversation.as_dict()
    assert (again.model, again.settings, again.raw, again.kv) == ("m", {"seed": 1}, True, tmp_path / "talk.kv")


def test_load_given_a_kv_file_elsewhere_looks_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, saved())
    value = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**value, "kv": "../../etc/passwd"}), encoding="utf-8")

    assert load_conversation(path).kv == tmp_path / "passwd"


def test_save_given_no_such_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be written: No such file or directory"):
        save_conversation(tmp_path / "no" / "talk.json", saved())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no JSON"),
        ("[]", "no saved conversation"),
        ('{"format": "other"}', "no saved conversation"),
        ('{"format": "onnx-genai-conversation", "version": 2}', "version 2"),
        ('{"format": "onnx-genai-conversation", "version": 1, "messages": [{}]}', r"messages\[0\]"),
        ('{"format": "onnx-genai-conversation", "version": 1, "settings": 1}', "settings"),
        ("[" * 100_000, "no JSON"),
        (
            '{"format": "onnx-genai-conversation", "version": 1, "messages": [{"role": "user"}]}',
            r"messages\[0\] has no content",
        ),
        (
            '{"format": "onnx-genai-conversation", "version": 1, "messages": [{"role": "assistant"}]}',
            r"messages\[0\] has no content",
        ),
    ],
)
def test_load_given_another_file_says_what_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(InvalidArgumentError, match=told):
        load_conversation(path)


def test_load_given_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        load_conversation(tmp_path / "talk.json")
