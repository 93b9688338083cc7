"""What was said, and its branches."""

from __future__ import annotations

from typing import Any

import pytest

from onnx_genai.cli.repl.conversation import Conversation
from onnx_genai.errors import InvalidArgumentError, NotFoundError

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def talk(*turns: tuple[str, str]) -> Conversation:
    conversation = Conversation()
    for question, answer in turns:
        conversation.ask(question)
        conversation.answer({"role": "assistant", "content": answer})
    return conversation


def texts(conversation: Conversation) -> list[Any]:
    return [message["content"] for message in conversation.messages]


def test_to_send_given_a_system_message_begins_with_it() -> None:
    conversation = talk(("a", "b"))
    conversation.system = "Be brief."

    assert [message["role"] for message in conversation.to_send] == ["system", "user", "assistant"]
    assert conversation.counts == {"system": 1, "user": 1, "assistant": 1}


def test_restore_given_a_failed_turn_leaves_no_trace() -> None:
    conversation = talk(("a", "b"))
    before = conversation.snapshot()
    conversation.ask("c")

    conversation.restore(before)

    assert texts(conversation) == ["a", "b"]


def test_undo_given_two_turns_forgets_both() -> None:
    conversation = talk(("1", "a"), ("2", "b"), ("3", "c"))

    conversation.undo(2)

    assert texts(conversation) == ["1", "a"]


@pytest.mark.parametrize("turns", [0, 4, -1])
def test_undo_given_too_many_changes_nothing(turns: int) -> None:
    conversation = talk(("1", "a"), ("2", "b"), ("3", "c"))

    with pytest.raises(InvalidArgumentError, match=r"1\.\.3"):
        conversation.undo(turns)

    assert conversation.num_turns == 3


def test_undo_given_nothing_said_says_so() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was said yet"):
        Conversation().undo()


def test_rewind_keeps_the_first_turns() -> None:
    conversation = talk(("1", "a"), ("2", "b"), ("3", "c"))

    conversation.rewind(1)
    assert texts(conversation) == ["1", "a"]

    conversation.rewind(0)
    assert conversation.messages == []


def test_rewind_given_too_many_names_the_range() -> None:
    with pytest.raises(InvalidArgumentError, match=r"0\.\.1"):
        talk(("1", "a")).rewind(2)


def test_drop_answer_opens_the_last_turn_again() -> None:
    conversation = talk(("1", "a"), ("2", "b"))

    conversation.drop_answer()

    assert texts(conversation) == ["1", "a", "2"]


def test_fork_goes_on_in_a_copy() -> None:
    conversation = talk(("1", "a"))

    conversation.fork("other")
    conversation.ask("2")
    conversation.answer({"role": "assistant", "content": "b"})

    assert conversation.branches == {"main": 1, "other": 2}
    conversation.switch("main")
    assert texts(conversation) == ["1", "a"]
    conversation.switch("other")
    assert texts(conversation) == ["1", "a", "2", "b"]


def test_fork_given_a_name_that_is_taken_refuses() -> None:
    with pytest.raises(InvalidArgumentError, match="branch main already"):
        talk(("1", "a")).fork("main")


def test_switch_given_an_unknown_branch_lists_them() -> None:
    with pytest.raises(NotFoundError, match="there are main"):
        talk(("1", "a")).switch("x")


def test_clear_keeps_the_system_message_and_reset_does_not() -> None:
    conversation = talk(("1", "a"))
    conversation.system = "s"
    conversation.totals.add(3, 4)
    conversation.fork("other")

    conversation.clear()
    assert (conversation.messages, conversation.system, conversation.branches) == ([], "s", {"main": 0})

    conversation.reset()
    assert (conversation.system, conversation.totals.turns) == (None, 0)


def test_tool_result_answers_the_calls_in_order() -> None:
    conversation = Conversation()
    conversation.ask("Weather?")
    conversation.answer({"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]})

    conversation.tool_result("rain")
    assert [call["id"] for call in conversation.open_calls] == ["c2"]
    conversation.tool_result("sun")

    assert conversation.open_calls == []
    assert [message.get("tool_call_id") for message in conversation.messages[2:]] == ["c1", "c2"]
    with pytest.raises(InvalidArgumentError, match="no tool call waits"):
        conversation.tool_result("snow")


def test_open_calls_given_another_question_are_over() -> None:
    conversation = Conversation()
    conversation.ask("Weather?")
    conversation.answer({"role": "assistant", "content": None, "tool_calls": [CALL]})
    conversation.ask("Never mind")

    assert conversation.open_calls == []


def test_as_dict_and_from_dict_give_the_same() -> None:
    conversation = talk(("1", "a"))
    conversation.system = "s"
    conversation.fork("other")
    conversation.undo()

    again = Conversation.from_dict(conversation.as_dict())

    assert again.as_dict() == conversation.as_dict()
    assert again.branches == {"main": 1, "other": 0}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"messages": [{"role": "system", "content": "x"}]}, r"messages\[0\] has the role 'system'"),
        ({"messages": ["x"]}, r"messages\[0\]"),
        ({"messages": "x"}, "messages is no list"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\] has a content"),
        ({"messages": [{"role": "user", "content": None}]}, r"messages\[0\] has no content"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tool call"),
        ({"system": 1}, "system is 1"),
        ({"branch": ""}, "branch is"),
        ({"branches": {"main": []}}, "branches"),
        ({"branches": {"other": [{"role": "x"}]}}, r"branches\.other\[0\]"),
    ],
)
def test_from_dict_given_nonsense_says_where(value: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        Conversation.from_dict(value)
