"""``run`` from a pipe: turns of a conversation, and what of an answer is kept."""

from __future__ import annotations

import pytest

from tests.cli.repl.piped import ANSWER, Chat, answers
from tests.models.packages import CHATML

THINKING = CHATML + "{# <think> </think> #}"


def test_system_sets_replaces_and_clears(chat: Chat) -> None:
    ran = chat("/system Be brief.", "/show system", "/system", "/show system", options=("--system", "First."))

    assert answers(ran)[:2] == ["system message set", "Be brief."]
    assert answers(ran)[2:4] == ["system message cleared", "no system message; /system TEXT sets one"]


def test_reset_forgets_all_and_clear_keeps_the_system_message(chat: Chat) -> None:
    ran = chat("/system S", "Hi", "/clear", "/session", "Hi", "/reset", "/session")

    cleared, reset = answers(ran)[3], answers(ran)[6]
    assert "history cleared" in answers(ran)[2]
    assert "1 system" in cleared
    assert answers(ran)[5] == "history and pending attachments cleared"
    assert "messages            none" in reset
    assert "completed turns     0" in reset
    assert "0 prompt, 0 generated" in reset


def test_session_has_counts_and_no_text(chat: Chat) -> None:
    ran = chat("/system SECRET", "PASSWORD", "/session", "/model", "/show")

    text = answers(ran)[2]
    assert "1 system, 1 user, 1 assistant" in text
    assert "completed turns     1" in text
    assert "execution provider  cpu" in text
    assert "sampling            greedy" in text
    assert not any(word in text for word in ("SECRET", "PASSWORD", "wörld"))
    assert answers(ran)[3] == answers(ran)[4] == text


def test_undo_rewind_and_regen(chat: Chat) -> None:
    ran = chat(
        "one", "two", "three", "/rewind", "/undo", "/rewind 1", "/regen", "/show history", "/undo 9", "/rewind x"
    )

    told = answers(ran)
    assert told[3] == "turns (/rewind N keeps the first N)\n  1  one\n  2  two\n  3  three"
    assert told[4:7] == ["2 turns left", "1 turn left", ANSWER]
    assert told[7] == f"user: one\nassistant: {ANSWER}"
    assert "1..1" in ran.err
    assert "'x' is no number of turns" in ran.err


@pytest.mark.parametrize("line", ["/undo", "/regen", "/edit x", "/rewind 1"])
def test_commands_about_turns_given_none_say_so(chat: Chat, line: str) -> None:
    ran = chat(line)

    assert answers(ran)[0] == ""
    assert "error: " in ran.err


def test_edit_sends_another_text_in_the_place_of_the_last(chat: Chat) -> None:
    ran = chat("one", "two", "/edit three", "/show history", "/edit")

    assert answers(ran)[3].count("user: ") == 2
    assert "user: three" in answers(ran)[3]
    assert "/edit TEXT" in ran.err


def test_fork_makes_branches_and_goes_between_them(chat: Chat) -> None:
    ran = chat("one", "/fork try", "two", "/fork main", "/fork", "/fork try", "/undo", "/session")

    told = answers(ran)
    assert told[1] == "branch try, 1 turn"
    assert told[3] == "branch main, 1 turn"
    assert "* main" in told[4]
    assert "try" in told[4]
    assert "main (1), try (1)" in told[7]


def test_full_context_drops_only_this_turn(chat: Chat) -> None:
    ran = chat("Hi", "x" * 300, "/session", context_length=200)

    assert answers(ran)[:2] == [ANSWER, ""]
    assert "/200 tokens" in ran.err
    assert "/reset" in ran.err
    assert "1 user, 1 assistant" in answers(ran)[2]


def test_nearly_full_context_is_told(chat: Chat) -> None:
    ran = chat("x" * 100, says="y" * 60, context_length=200)

    assert "The context is nearly full" in ran.err


def test_reasoning_is_no_answer_and_no_history(chat: Chat) -> None:
    says = "<think>I wonder.</think>\n\nFish."
    ran = chat("Hi", "/show history", "/set reasoning on", "Hi", says=says, chat_template=THINKING)

    assert answers(ran)[0] == "Fish."
    assert answers(ran)[1] == "user: Hi\nassistant: Fish."
    assert answers(ran)[3] == "I wonder.\n\nFish."


def test_answer_cut_inside_reasoning_is_dropped_with_a_note(chat: Chat) -> None:
    options = ("--max-new-tokens", "12")
    says = "<think>I wonder.</think>Fish."
    ran = chat("/stats", "Hi", "/session", options=options, says=says, chat_template=THINKING)

    assert answers(ran)[1] == ""
    assert "messages            none" in answers(ran)[2]
    assert "inside its reasoning (finish max)" in ran.err
    assert "/set max_new_tokens 24" in ran.err
    assert "12 out" in ran.err


def test_answer_cut_inside_reasoning_by_the_window_names_reset(chat: Chat) -> None:
    ran = chat("Hi", "/session", says=f"<think>{'long ' * 40}", chat_template=THINKING, context_length=60)

    assert "inside its reasoning (finish length)" in ran.err
    assert "Try /reset, which makes room for it." in ran.err
    assert "messages            none" in answers(ran)[1]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<think>", "</think>"),
        ("<|think|>", "<|/think|>"),
        ("<reasoning>", "</reasoning>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ],
)
def test_reasoning_between_each_pair_of_marks_is_no_history(chat: Chat, begin: str, end: str) -> None:
    template = f"{CHATML}{{# {begin} {end} #}}"

    ran = chat("Hi", "/show history", says=f"{begin}I wonder.{end}\n\nFish.", chat_template=template)

    assert answers(ran)[:2] == ["Fish.", "user: Hi\nassistant: Fish."]


def test_marks_that_the_template_does_not_know_are_text(chat: Chat) -> None:
    assert answers(chat("Hi", says="<think>a</think>b"))[0] == "<think>a</think>b"
