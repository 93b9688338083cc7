"""``run`` from a pipe: plain lines in, bytes out that no setting of numbers changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chrome_trace import check_trace, read_trace
from tests.cli.conftest import Ran, Run
from tests.models.packages import CHATML

Package = Callable[..., Path]
Chat = Callable[..., Ran]

THINKING = CHATML + "{# <think> </think> #}"
ANSWER = "Hello wörld 😀"


@pytest.fixture
def chat(run: Run, scripted_package: Package) -> Chat:
    """``chat(*lines, options=(), says=ANSWER, **package)``: a session in which these lines are piped in."""

    def go(*lines: str, options: tuple[object, ...] = (), says: str = ANSWER, **package: object) -> Ran:
        stdin = "".join(f"{line}\n" for line in lines).encode()
        return run("run", scripted_package(says, **package), *options, stdin=stdin)

    return go


def answers(ran: Ran) -> list[str]:
    """What stands behind each prompt."""
    return [part.removesuffix("\n") for part in ran.out.split(">>> ")[1:]]


def test_lines_are_messages_and_stdout_has_prompts_and_answers(chat: Chat) -> None:
    ran = chat("Hi", "again")

    assert (ran.code, ran.out) == (0, f">>> {ANSWER}\n>>> {ANSWER}\n>>> ")


def test_end_of_input_leaves_with_a_line_end_on_stderr(chat: Chat) -> None:
    ran = chat()

    assert (ran.code, ran.out) == (0, ">>> ")
    assert ran.err.endswith("\n\n")


def test_blank_line_leaves(chat: Chat) -> None:
    ran = chat("Hi", "  ", "never read")

    assert (ran.code, answers(ran)) == (0, [ANSWER, ""])


def test_banner_is_on_stderr_and_tells_what_the_model_accepts(chat: Chat) -> None:
    first, second, *_ = chat().err.splitlines()

    assert first.startswith("onnx-genai · package_")
    assert first.endswith("(text)")
    assert second == second.strip()
    assert "cpu · " in second
    assert "context 4096 tokens" in second


def test_several_lines_between_triple_quotes_are_one_message(chat: Chat) -> None:
    ran = chat('"""one', "", 'two"""', "/show history")

    assert answers(ran)[1] == f"user: one\n\ntwo\nassistant: {ANSWER}"


def test_triple_quotes_that_are_never_closed_end_with_the_input(chat: Chat) -> None:
    assert answers(chat('"""one', "two"))[0] == ANSWER


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


def test_all_commands_that_were_promised_are_there() -> None:
    from onnx_genai.cli.repl.commands import find

    promised = (
        "/help /system /set /show /raw /stats /profile /model /ep /backend /reset /clear /save /load /regen /undo "
        "/edit /fork /rewind /image /audio /tools /json /exit /pages /session /? /quit /bye"
    )
    assert [name for name in promised.split() if find(name) is None] == []


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye", "/EXIT"])
def test_exit_leaves(chat: Chat, word: str) -> None:
    ran = chat(word, "never read")

    assert (ran.code, answers(ran)) == (0, [""])


def test_stats_are_off_until_asked_for_and_never_on_stdout(chat: Chat) -> None:
    off, on = chat("Hi", "/reset"), chat("/stats", "Hi", "/stats")

    assert " tok/s" not in off.err
    assert answers(on) == ["stats enabled", ANSWER, "stats disabled", ""]
    # One line, as stderr is no terminal.
    line = next(line for line in on.err.splitlines() if line.startswith("[ "))
    for part in (" in · ", " out · ", " · ctx ", " · backend ", " · ttft ", " · rss "):
        assert part in line


@pytest.mark.parametrize("options", [(), ("--no-stats",), ("--plain",), ("--private",)])
def test_stdout_is_the_same_bytes_whatever_is_shown(chat: Chat, options: tuple[str, ...]) -> None:
    assert chat("Hi", "# not *rendered*", options=options, says="# a *b*\n").out == ">>> # a *b*\n\n" * 2 + ">>> "


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
    assert told[1] == "branch try, 1 turns"
    assert told[3] == "branch main, 1 turns"
    assert "* main" in told[4]
    assert "try" in told[4]
    assert "main (1), try (1)" in told[7]


def test_save_and_load_give_the_conversation_again(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "my talk.json"
    first = chat("/system S", "one", "/set seed 3", f"/save {file}", f"/save {tmp_path / 'short'}")

    value = json.loads(file.read_text(encoding="utf-8"))
    assert answers(first)[3] == f"saved {file}"
    assert (tmp_path / "short.json").exists()
    assert (value["system"], len(value["messages"]), value["settings"]["seed"]) == ("S", 2, 3)

    second = chat(f"/load '{file}'", "/show history", "/set")
    assert answers(second)[0] == "loaded 1 turns"
    assert answers(second)[1] == f"system: S\nuser: one\nassistant: {ANSWER}"
    assert "seed = 3" in answers(second)[2]

    third = chat("/session", options=("--load", file))
    assert "1 system, 1 user, 1 assistant" in answers(third)[0]


def test_save_with_kv_writes_what_was_computed(chat: Chat, tmp_path: Path) -> None:
    ran = chat("one", f"/save {tmp_path / 'talk.json'} --kv", f"/load {tmp_path / 'talk.json'}", "two")

    assert (tmp_path / "talk.kv").stat().st_size > 0
    assert answers(ran)[2:4] == ["loaded 1 turns", ANSWER]


@pytest.mark.parametrize("line", ["/load no-such-file", "/save", "/load", "/save /", "/load /"])
def test_save_and_load_given_nonsense_say_so(chat: Chat, line: str) -> None:
    ran = chat(line, "Hi")

    assert answers(ran)[:2] == ["", ANSWER]
    assert "error: " in ran.err


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


def test_marks_that_the_template_does_not_know_are_text(chat: Chat) -> None:
    assert answers(chat("Hi", says="<think>a</think>b"))[0] == "<think>a</think>b"


def test_json_makes_answers_json(chat: Chat, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}', "utf-8")
    (tmp_path / "bad.json").write_text("{", "utf-8")
    ran = chat("/json", "/json off", f"/json {schema}", "/json", f"/json {tmp_path / 'bad.json'}", "/json no-such-file")

    told = answers(ran)
    assert told[:2] == ["json on: each answer is one JSON object", "json off: answers are free"]
    assert told[2:6] == ["json on: each answer fits schema.json", "json off: answers are free", "", ""]
    assert ran.err.count("error: ") == 2


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


def test_fault_in_a_command_does_not_cost_the_conversation(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_genai.cli.repl.conversation.Conversation.undo", lambda *_: 1 / 0)
    ran = chat("Hi", "/undo", "/session")

    assert "1 user, 1 assistant" in answers(ran)[2]
    assert "ZeroDivisionError" in ran.err
    assert "Please report it" in ran.err


def test_profile_tells_its_state_and_refuses_what_it_does_not_know(chat: Chat) -> None:
    ran = chat("/profile", "/profile nope", "/profile verbosity nope", "/profile verbosity OPS")

    assert answers(ran)[0] == "profile report off, timeline off"
    assert answers(ran)[3] == "profile verbosity ops"
    assert "decisions, ops, full" in ran.err
    assert ran.err.count("Usage: /profile") == 2


def test_pages_tell_how_full_the_cache_is(chat: Chat) -> None:
    assert "the KV cache of this model is not paged" in answers(chat("/pages"))[0]


def test_pages_given_a_paged_model_draw_a_bar(run: Run, checksum_package: Package) -> None:
    ran = run("run", checksum_package("gqa"), "--raw", "--max-new-tokens", "4", stdin=b"w5 w6\n/pages\n")

    told = ran.out.split(">>> ")[2]
    assert told.startswith(("KV pages █", "KV pages ▒", "KV pages ·"))
    assert "free" in told


def test_second_turn_reuses_what_was_computed(run: Run, checksum_package: Package) -> None:
    words = " ".join(f"w{number}" for number in range(5, 70))
    stdin = f"/stats\n{words}\n{words} w5\n".encode()
    ran = run("run", checksum_package("gqa"), "--raw", "--max-new-tokens", "4", stdin=stdin)

    lines = [line for line in ran.err.splitlines() if line.startswith("[ ")]
    assert "cache 64/66 (97%)" in lines[1]


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


def test_quoted_text_and_text_of_several_lines_are_no_commands(chat: Chat) -> None:
    ran = chat('"""', "/help me", '"""', "/show history")

    assert answers(ran)[0] == ANSWER
    assert "/help me" in answers(ran)[1]


def test_backend_tells_what_runs(chat: Chat) -> None:
    ran = chat("/backend", "/show model", "/session")

    assert answers(ran)[0].startswith("backend ort;")
    assert "ort" in answers(ran)[2]


def test_save_of_kv_under_its_own_name_keeps_both(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"

    ran = chat("Hi", f"/save {file} --kv", "/clear", f"/load {file}", "/show history")

    assert json.loads(file.read_text(encoding="utf-8"))["kv"] == "talk.kv.kv"
    assert "loaded 1 turns" in answers(ran)[3]
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


def test_timeline_keeps_the_answers_before_a_change(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "my trace.json"

    chat(f'/profile trace "{file}"', "Hi", "/profile verbosity decisions", "Hi", "/backend ort", "Hi")

    events = read_trace(file)
    check_trace(events)
    turns = [event for event in events if event["name"] == "turn"]
    steps = [event["ts"] for event in events if event["name"] == "step"]
    assert len(turns) == 3
    for turn in turns:
        assert any(turn["ts"] <= step <= turn["ts"] + turn["dur"] for step in steps)
