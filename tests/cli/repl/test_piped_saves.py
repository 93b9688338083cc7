"""``run`` from a pipe: conversations that are saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.repl.piped import ANSWER, Chat, answers


def test_save_and_load_give_the_conversation_again(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "my talk.json"
    first = chat("/system S", "one", "/set seed 3", f"/save {file}", f"/save {tmp_path / 'short'}")

    value = json.loads(file.read_text(encoding="utf-8"))
    assert answers(first)[3] == f"saved {file}"
    assert (tmp_path / "short.json").exists()
    assert (value["system"], len(value["messages"]), value["settings"]["seed"]) == ("S", 2, 3)

    second = chat(f"/load '{file}'", "/show history", "/set")
    assert answers(second)[0] == "loaded 1 turn"
    assert answers(second)[1] == f"system: S\nuser: one\nassistant: {ANSWER}"
    assert "seed = 3" in answers(second)[2]

    third = chat("/session", options=("--load", file))
    assert "1 system, 1 user, 1 assistant" in answers(third)[0]


def test_save_with_kv_writes_what_was_computed(chat: Chat, tmp_path: Path) -> None:
    ran = chat("one", f"/save {tmp_path / 'talk.json'} --kv", f"/load {tmp_path / 'talk.json'}", "two")

    assert (tmp_path / "talk.kv").stat().st_size > 0
    assert answers(ran)[2:4] == ["loaded 1 turn", ANSWER]


@pytest.mark.parametrize("line", ["/load no-such-file", "/save", "/load", "/save /", "/load /"])
def test_save_and_load_given_nonsense_say_so(chat: Chat, line: str) -> None:
    ran = chat(line, "Hi")

    assert answers(ran)[:2] == ["", ANSWER]
    assert "error: " in ran.err


def test_save_of_kv_under_its_own_name_keeps_both(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"

    ran = chat("Hi", f"/save {file} --kv", "/clear", f"/load {file}", "/show history")

    assert json.loads(file.read_text(encoding="utf-8"))["kv"] == "talk.kv.kv"
    assert "loaded 1 turn" in answers(ran)[3]
    assert ANSWER in answers(ran)[4]


def test_load_goes_on_with_the_text_where_the_computed_context_is_damaged(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    chat("Hi", f"/save {file} --kv")
    (tmp_path / "talk.kv").write_bytes(b"no session")

    ran = chat(f"/load {file}", "/show history")

    assert "is not used" in ran.err
    assert ANSWER in answers(ran)[1]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--temperature", "0.9"), "sampling, temperature=0.9, seed=3, max_new_tokens=4"),
        (("--max-new-tokens", "2", "--seed", "5"), "sampling, temperature=0.5, seed=5, max_new_tokens=2"),
        (("--greedy",), "greedy, seed=3, max_new_tokens=4"),
        ((), "sampling, temperature=0.5, seed=3, max_new_tokens=4"),
    ],
)
def test_command_line_is_stronger_than_a_saved_conversation(
    chat: Chat, tmp_path: Path, options: tuple[str, ...], shown: str
) -> None:
    file = tmp_path / "talk.json"
    chat("Hi", f"/save {file}", options=("--temperature", "0.5", "--seed", "3", "--max-new-tokens", "4"))

    ran = chat("/session", options=("--load", file, *options))

    assert f"{shown}\n" in answers(ran)[0]


def test_system_of_the_command_line_replaces_that_of_a_saved_conversation(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    chat("Hi", f"/save {file}", options=("--system", "Old."))

    ran = chat("/show history", options=("--load", file, "--system", "New."))

    assert "New." in answers(ran)[0]
    assert "Old." not in answers(ran)[0]
