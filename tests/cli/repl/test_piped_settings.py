"""``run`` from a pipe: what is asked of the model, and of which model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onnx_genai.cli.repl.conversation import Conversation
from onnx_genai.cli.repl.loop import Repl
from onnx_genai.cli.repl.model_commands import session_rows
from tests.cli.repl.piped import ANSWER, Chat, answers

Package = Callable[..., Path]


def test_set_changes_the_next_answer(chat: Chat) -> None:
    ran = chat("/set max_new_tokens 5", "Hi", "/set max_new_tokens default", "Hi", "/set stop wör", "Hi", "/set")

    told = answers(ran)
    assert told[:4] == ["max_new_tokens = 5", "Hello w", "max_new_tokens = default", ANSWER]
    assert told[5] == "Hello "
    assert "stop = 'wör'" in told[6]


@pytest.mark.parametrize("line", ["/set nope 1", "/set temperature hot", "/set temperature", "/set top_p 7"])
def test_set_given_nonsense_tells_the_usage_and_goes_on(chat: Chat, line: str) -> None:
    ran = chat(line, "Hi")

    assert answers(ran)[:2] == ["", ANSWER]
    assert "error: " in ran.err
    assert "Usage: /set [NAME VALUE]" in ran.err


def test_raw_sends_the_newest_text_alone(chat: Chat) -> None:
    ran = chat("/raw", "Hi", "/session", "/raw")

    assert answers(ran)[0] == "raw mode enabled"
    assert answers(ran)[3] == "raw mode disabled"
    # Two letters are two tokens in this tokenizer, with nothing around them.
    assert "2 prompt" in answers(ran)[2]


def test_model_without_a_template_is_told_apart(chat: Chat) -> None:
    ran = chat("Hi", "/raw", chat_template=None)

    assert answers(ran)[0] == ANSWER
    assert "no chat template" in ran.err
    assert "raw mode is always on" in ran.err


def test_failed_reload_keeps_the_session(chat: Chat, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    ran = chat(
        "Hi", f"/model {bad}", "/model no-such-model", "/ep nosuch", "/backend rust", "/backend native", "/session"
    )

    told = answers(ran)
    assert told[1:6] == [""] * 5
    assert "1 user, 1 assistant" in told[6]
    assert ran.err.count("error: ") == 5
    assert "choose one of auto, cpu" in ran.err
    assert "choose auto, ort, or native" in ran.err


def test_model_given_another_one_takes_its_place(chat: Chat, scripted_package: Package) -> None:
    other = scripted_package("Other")
    ran = chat("Hi", f"/model {other}", "Hi", "/session")

    assert str(other) in answers(ran)[1]
    assert "(text)" in answers(ran)[1]
    assert answers(ran)[2] == "Other"
    assert "1 user, 1 assistant" in answers(ran)[3]


@pytest.mark.parametrize("line", ["/ep cpu", "/ep AUTO", "/backend ort", "/backend auto"])
def test_reload_clears_the_conversation(chat: Chat, line: str) -> None:
    ran = chat("Hi", line, "/session", "Hi")

    assert "history cleared" in answers(ran)[1]
    assert "messages            none" in answers(ran)[2]
    assert answers(ran)[3] == ANSWER


def test_ep_and_backend_alone_tell_what_there_is(chat: Chat) -> None:
    ran = chat("/ep", "/backend")

    assert answers(ran)[0].startswith("execution provider cpu; choose one of auto, cpu")
    assert answers(ran)[1] == "backend ort; choose one of auto, ort, native"


def test_backend_tells_what_runs(chat: Chat) -> None:
    ran = chat("/backend", "/show model", "/session")

    assert answers(ran)[0].startswith("backend ort;")
    assert "ort" in answers(ran)[2]


def test_session_tells_the_backend_that_runs(chat: Chat) -> None:
    for options in ((), ("--backend", "ort")):
        told = answers(chat("Hi", "/session", options=options))[1]
        assert re.search("(?m)^ +decode backend +ort, copy decoder$", told)
        assert "requested backend" not in told


def test_session_given_another_backend_than_was_asked_for_tells_both() -> None:
    # Loading refuses what it cannot do, so no model of ours comes to this by itself.
    asked = SimpleNamespace(backend="native", ep="auto")
    facts = {"label": "m", "path": "m", "provider": "cpu", "backend": "ort", "decoder": "slot"}
    host = SimpleNamespace(options=asked, llm=SimpleNamespace(context_limit=None), **facts)
    settings = SimpleNamespace(describe=lambda: "greedy")
    session = SimpleNamespace(host=host, conversation=Conversation(), settings=settings)

    rows = session_rows(cast(Repl, session))

    assert rows[1:5] == [
        ("execution provider", "cpu"),
        ("decode backend", "ort, slot decoder"),
        ("requested backend", "native"),
        ("requested provider", "auto"),
    ]


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_attachments_are_refused_by_naming_what_the_model_accepts(chat: Chat, kind: str) -> None:
    ran = chat(f"/{kind} no-such-file what is it?", f"/{kind}", "Hi")

    assert answers(ran)[:3] == ["", "", ANSWER]
    assert f"takes no {kind}; it accepts text" in ran.err
    assert f"Usage: /{kind} PATH [TEXT]" in ran.err


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_attachments_on_the_command_line_are_refused_in_the_same_way(chat: Chat, kind: str) -> None:
    ran = chat("Hi", options=(f"--{kind}", "x"))

    assert (ran.code, ran.out) == (1, "")
    assert f"takes no {kind}; it accepts text" in ran.err


def test_json_makes_answers_json(chat: Chat, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}', "utf-8")
    (tmp_path / "bad.json").write_text("{", "utf-8")
    ran = chat("/json", "/json off", f"/json {schema}", "/json", f"/json {tmp_path / 'bad.json'}", "/json no-such-file")

    told = answers(ran)
    assert told[:2] == ["json on: each answer is one JSON object", "json off: answers are free"]
    assert told[2:6] == ["json on: each answer fits schema.json", "json off: answers are free", "", ""]
    assert ran.err.count("error: ") == 2


def test_json_given_the_empty_object_says_how_to_get_more(chat: Chat) -> None:
    note = "Say in your message which keys you want, or demand them with a schema: /json FILE."

    assert note in chat("/json", "Hi", says="{}").err
    for ran in (chat("Hi", says="{}"), chat("/json", "Hi", says='{"a": 1}')):
        assert note not in ran.err


def test_json_holds_an_answer_to_the_schema(chat: Chat, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}', "utf-8")
    ran = chat(f"/json {schema}", "Hi", says='"yes"')

    assert answers(ran)[1] == '"yes"'


def test_tools_are_offered_and_their_calls_answered(chat: Chat, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools.write_text(
        json.dumps([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]), "utf-8"
    )
    says = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    ran = chat(
        "/tools", f"/tools {tools}", "/tools", "Rain?", "/tools result", "/tools off", "/tools result rain", says=says
    )

    told = answers(ran)
    assert told[0].startswith("no tools")
    assert told[1] == "tools: weather"
    assert told[3].strip() == 'weather({"city": "Oslo"})'
    assert "weather waits for its result: /tools result TEXT" in ran.err
    assert "the result is missing" in ran.err
    assert told[5] == "tools off"
    assert told[6].startswith("<tool_call>")
