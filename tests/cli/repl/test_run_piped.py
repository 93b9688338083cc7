"""``run`` from a pipe: plain lines in, bytes out that no setting of numbers changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.repl.piped import ANSWER, Chat, answers

Package = Callable[..., Path]


def test_lines_are_messages_and_stdout_has_prompts_and_answers(chat: Chat) -> None:
    ran = chat("Hi", "again")

    assert (ran.code, ran.out) == (0, f">>> {ANSWER}\n>>> {ANSWER}\n>>> ")


@pytest.mark.parametrize("options", [(), ("--no-stats",), ("--plain",), ("--private",)])
def test_stdout_is_the_same_bytes_whatever_is_shown(chat: Chat, options: tuple[str, ...]) -> None:
    assert chat("Hi", "# not *rendered*", options=options, says="# a *b*\n").out == ">>> # a *b*\n\n" * 2 + ">>> "


def test_end_of_input_leaves_with_a_line_end_on_stderr(chat: Chat) -> None:
    ran = chat()

    assert (ran.code, ran.out) == (0, ">>> ")
    assert ran.err.endswith("\n\n")


def test_blank_line_leaves(chat: Chat) -> None:
    ran = chat("Hi", "  ", "never read")

    assert (ran.code, answers(ran)) == (0, [ANSWER, ""])


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye", "/EXIT"])
def test_exit_leaves(chat: Chat, word: str) -> None:
    ran = chat(word, "never read")

    assert (ran.code, answers(ran)) == (0, [""])


def test_banner_is_on_stderr_and_tells_what_the_model_accepts(chat: Chat) -> None:
    first, second, *_ = chat().err.splitlines()

    assert first.startswith("onnx-genai · package_")
    assert first.endswith("(text)")
    assert second == second.strip()
    assert "cpu · " in second
    assert "context 4096 tokens" in second


def test_banner_counts_one_thread_as_one(chat: Chat) -> None:
    assert chat(options=("--cpu-cores", "1")).err.splitlines()[1].endswith(" tokens · 1 thread")


def test_several_lines_between_triple_quotes_are_one_message(chat: Chat) -> None:
    ran = chat('"""one', "", 'two"""', "/show history")

    assert answers(ran)[1] == f"user: one\n\ntwo\nassistant: {ANSWER}"


def test_triple_quotes_that_are_never_closed_end_with_the_input(chat: Chat) -> None:
    assert answers(chat('"""one', "two"))[0] == ANSWER


def test_quoted_text_and_text_of_several_lines_are_no_commands(chat: Chat) -> None:
    ran = chat('"""', "/help me", '"""', "/show history")

    assert answers(ran)[0] == ANSWER
    assert "/help me" in answers(ran)[1]


def test_double_slash_and_unknown_commands_are_told_and_the_session_goes_on(chat: Chat) -> None:
    ran = chat("//x", "/nope 1", "Hi")

    assert (ran.code, answers(ran)) == (0, ["", "", ANSWER, ""])
    assert "error: unknown command: //x (try /help)\n" in ran.err
    assert "error: unknown command: /nope (try /help)\n" in ran.err
    assert "Did you mean /system" in chat("/sytem x").err


def test_text_that_begins_with_a_path_is_a_message(chat: Chat) -> None:
    assert answers(chat("/etc/hosts is what?"))[0] == ANSWER


def test_help_lists_every_command_whatever_is_asked(chat: Chat) -> None:
    from onnx_genai.cli.repl.commands import COMMANDS

    plain, one = chat("/help"), chat("/help system")

    assert plain.out == one.out
    assert all(command.usage in plain.out for command in COMMANDS)
    places = [plain.out.index(f"\n{heading}\n") for heading in ("session", "model", "diagnostics", "input")]
    assert places == sorted(places)


def test_help_has_one_column_of_summaries(chat: Chat) -> None:
    from onnx_genai.cli.repl.commands import COMMANDS

    lines = chat("/help").out.splitlines()

    starts = {line.index(each.summary) for each in COMMANDS for line in lines if line.endswith(f"  {each.summary}")}
    assert len(starts) == 1
    alone = next(place for place, line in enumerate(lines) if line.startswith("  /profile"))
    assert lines[alone].endswith("]")
    assert lines[alone + 1].strip().startswith("a report after each turn")


def test_all_commands_that_were_promised_are_there() -> None:
    from onnx_genai.cli.repl.commands import find

    promised = (
        "/help /system /set /show /raw /stats /profile /model /ep /backend /reset /clear /save /load /regen /undo "
        "/edit /fork /rewind /image /audio /tools /json /exit /pages /session /? /quit /bye"
    )
    assert [name for name in promised.split() if find(name) is None] == []


def test_fault_in_a_command_does_not_cost_the_conversation(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_genai.cli.repl.conversation.Conversation.undo", lambda *_: 1 / 0)
    ran = chat("Hi", "/undo", "/session")

    assert "1 user, 1 assistant" in answers(ran)[2]
    assert "ZeroDivisionError" in ran.err
    assert "Please report it" in ran.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--greedy", "--no-greedy"), "exclude each other"),
        (("--max-context", "0"), "--max-context"),
        (("--backend", "rust"), "auto, ort, or native"),
        (("--raw", "--system", "x"), "--system needs the chat template"),
        (("--n", "2"), "No such option"),
        (("--model", "x"), "No such option"),
        (("--vram-limit", "1TiB"), "8GiB"),
    ],
)
def test_wrong_usage_is_found_before_loading(chat: Chat, options: tuple[str, ...], told: str) -> None:
    ran = chat("Hi", options=options)

    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_run_without_a_model_says_how_to_begin(run: Run) -> None:
    ran = run("run", stdin=b"")

    assert ran.code == 2
    assert "onnx-genai run smollm2" in ran.err


def test_model_that_does_not_exist_is_told_with_what_to_do(run: Run) -> None:
    ran = run("run", "smolm2", "--offline", stdin=b"")

    assert ran.code == 1
    assert "did you mean smollm2" in ran.err
    assert "How to fix:" in ran.err


def test_package_without_a_limit_gives_512_tokens_and_a_warning(
    run: Run, scripted_package: Package, tmp_path: Path
) -> None:
    folder = tmp_path / "unlimited"
    folder.mkdir()
    for file in scripted_package("x" * 600, format="bare", chat_template=None).iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    ran = run("run", folder, stdin=b"Hi\n")

    assert len(ran.out.split(">>> ")[1].strip()) == 512
    assert "--max-context" in ran.err
    assert "model.max_sequence_length" in ran.err
