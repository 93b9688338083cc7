"""Answers on the chat page: sent, streamed, stopped, made anew, edited, set up, and how they are shown."""

from __future__ import annotations

import json
import re

from tests.server.page.reading import (
    RICH,
    WEATHER,
    Open,
    choose_model,
    fill,
    last_body,
    messages,
    send,
    wait_answers,
    watch,
)
from tests.server.running import RunningServer, wait_until


def test_a_message_is_sent_with_enter_and_its_answer_shown_with_its_figures(opened: Open) -> None:
    page = watch(opened("hello"))

    send(page, "Hi there")

    assert messages(page) == ["Hi there", "Hello the world 😀 END"]
    assert last_body(page)["messages"] == [{"role": "user", "content": "Hi there"}]
    assert last_body(page)["stream"] is True
    stats = page.text(".stats")
    assert "17 tokens" in stats
    assert "cached" in stats
    assert re.fullmatch(r"first after (\d+ ms|\d+\.\d s)", page.text(".stat.first"))
    assert "/ 4,096 tokens" in page.text("#window")
    assert page.js("document.querySelector('#prompt').value") == ""
    assert "Hi there" in page.text("#chat-list .current")
    assert page.text("#status").startswith("Answer: Hello the world")


def test_shift_enter_makes_a_line_and_the_next_turn_holds_the_one_before(opened: Open) -> None:
    page = watch(opened("hello"))
    page.click("#prompt")
    page.type("one " * 40)
    page.key("Enter", "shift")
    page.type("two")
    page.key("Enter")
    wait_answers(page, 1)

    send(page, "and on", answers=2)

    sent = last_body(page)["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "user"]
    assert sent[0]["content"].endswith("one \ntwo")
    assert sent[1]["content"] == "Hello the world 😀 END"


def test_counts_speed_and_cache_use_are_those_of_the_server(opened: Open) -> None:
    page = opened("hello")
    details = {"prompt_tokens_details": {"cached_tokens": 900}}
    usage = json.dumps({"prompt_tokens": 1200, "completion_tokens": 40, **details})
    page.js(f"probe.answer([...'abcde'], 50, {usage})")

    send(page, "Hi")

    assert messages(page)[1] == "abcde"
    assert page.text(".stat.completion") == "40 tokens"
    assert page.text(".stat.prompt") == "prompt 1,200"
    assert page.text(".stat.cached") == "900 cached (75 %)"
    # 39 tokens in at least 4 waits of 50 ms
    assert 1 < float(page.text(".stat.rate").split()[0]) <= 39 / 0.19
    assert page.text("#window").strip() == "1,240 / 4,096 tokens"


def test_text_comes_piece_by_piece_and_escape_stops_it(opened: Open, server: RunningServer) -> None:
    page = opened("slow")

    send(page, "Go", answers=None)
    page.wait("document.querySelector('.assistant.writing .prose')?.innerText.length > 20")
    first = len(messages(page)[1])
    page.wait(f"document.querySelector('.assistant .prose').innerText.length > {first}")
    assert page.js("document.querySelector('#send').ariaLabel") == "Stop"
    page.key("Escape")
    wait_answers(page, 1)

    assert "Stopped" in page.text(".badge")
    assert 0 < len(messages(page)[1]) < 1000
    wait_until(lambda: not server.server.state.live.open, "the end of the request")
    assert page.js("document.querySelector('#send').ariaLabel") == "Send"


def test_the_button_stops_too_and_unsent_text_stays(opened: Open) -> None:
    page = opened("slow")
    send(page, "Go", answers=None)
    page.wait("document.querySelector('.assistant.writing')")

    page.type("next thought")
    page.key("Enter")
    page.click("#send")
    wait_answers(page, 1)

    assert page.js("document.querySelector('#prompt').value") == "next thought"
    assert len(messages(page)) == 2
    page.reload()
    assert page.js("document.querySelector('#prompt').value") == "next thought"
    assert len(messages(page)) == 2


def test_a_new_answer_is_a_branch_beside_the_old_one(opened: Open) -> None:
    page = opened("hello")
    send(page, "Hi")
    choose_model(page, "thinks")

    page.click(".assistant [aria-label^='Answer again']")
    page.wait("document.querySelector('.assistant .branches')?.innerText.trim() === '2/2'")
    wait_answers(page, 1)
    assert messages(page) == ["Hi", "The answer is 4."]

    page.click(".branches [aria-label='Branch before']")
    assert messages(page) == ["Hi", "Hello the world 😀 END"]
    assert page.text(".branches").strip() == "1/2"


def test_an_edited_message_goes_on_from_there_and_the_old_branch_stays(opened: Open) -> None:
    page = watch(opened("hello"))
    send(page, "first")
    send(page, "second", answers=2)

    page.click(".user [aria-label^='Edit']", 0)
    assert page.js("probe.gap('.edit', '.assistant')") >= 16  # the answer below does not touch the box
    fill(page, ".edit textarea", "changed")
    page.key("Enter")
    page.wait("document.querySelector('.bubble')?.innerText === 'changed'")
    wait_answers(page, 1)

    assert messages(page)[0] == "changed"
    assert len(messages(page)) == 2
    assert last_body(page)["messages"] == [{"role": "user", "content": "changed"}]
    page.click(".user [aria-label='Branch before']")
    assert [messages(page)[index] for index in (0, 2)] == ["first", "second"]


def test_the_up_key_edits_the_last_message_and_escape_leaves_it(opened: Open) -> None:
    page = opened("hello")
    send(page, "first")

    page.click("#prompt")
    page.key("ArrowUp")
    page.wait("document.activeElement.closest('.edit')")
    page.key("Escape")

    assert page.count(".edit") == 0
    assert messages(page)[0] == "first"


def test_a_branch_is_deleted_only_after_a_question(opened: Open) -> None:
    page = opened("hello")
    send(page, "first")
    send(page, "second", answers=2)

    page.click(".user [aria-label^='Delete']", 1)
    page.click("#confirm-box .quiet-button")
    assert len(messages(page)) == 4
    page.click(".user [aria-label^='Delete']", 1)
    page.click("#confirm-box .main-button")
    page.wait("document.querySelectorAll('.bubble').length === 1")

    assert messages(page) == ["first", "Hello the world 😀 END"]


def test_system_prompt_and_sampling_are_sent_and_can_be_reset(opened: Open) -> None:
    page = watch(opened("hello"))
    page.click(".settings-button")
    page.wait("document.activeElement.id === 'system'")
    page.type("Be kind.")
    values = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1}
    values |= {"max_tokens": 3, "seed": 42}
    for name, value in values.items():
        fill(page, f"#{name}", str(value))
    fill(page, "#reasoning_effort", "none", "change")
    page.key("Escape")

    send(page, "Hi")

    body = last_body(page)
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}
    assert {name: body[name] for name in values} == values
    assert body["reasoning_effort"] == "none"
    assert messages(page)[1] == "Hello"
    assert "Cut off" in page.text(".badge")
    assert "Be kind." in page.text(".system-chip")

    page.click(".settings-button")
    page.click("#reset")
    page.key("Escape")
    page.click("#new-chat")
    send(page, "Hi again")
    assert set(last_body(page)) == {"messages", "model", "stream", "stream_options"}
    assert [each["role"] for each in last_body(page)["messages"]] == ["user"]


def test_what_was_set_for_a_new_chat_outlives_a_reload_but_not_a_newer_chat(opened: Open) -> None:
    page = watch(opened("hello"))
    fill(page, "#system", "Be kind.")
    fill(page, "#temperature", "0.5")
    page.reload()

    assert page.js("document.querySelector('#system').value") == "Be kind."
    assert page.js("document.querySelector('#temperature').value") == "0.5"
    page.key("k", "ctrl")
    page.wait("document.querySelector('#system').value === ''")
    assert page.js("document.querySelector('#temperature').value") == "0.5"


def test_a_number_that_is_not_allowed_is_told_and_not_sent(opened: Open) -> None:
    page = watch(opened("hello"))
    page.click(".settings-button")
    fill(page, "#top_p", "1.5")

    assert "At most 1" in page.js("document.querySelector('#top_p').parentElement.innerText")
    page.key("Escape")
    send(page, "Hi")
    assert "top_p" not in last_body(page)


def test_reasoning_is_folded_and_opens(opened: Open) -> None:
    page = opened("thinks")

    send(page, "2+2?")

    assert messages(page) == ["2+2?", "The answer is 4."]
    assert page.js("document.querySelector('.reasoning').open") is False
    page.click(".reasoning > summary")
    page.wait("document.querySelector('.reasoning').open")
    assert page.text(".reasoning-text").strip() == "I add 2 and 2."
    assert page.text(".reasoning-text strong") == "2"
    assert page.text(".assistant > .prose strong") == "4"


def test_a_tool_call_is_shown_and_its_result_goes_back(opened: Open) -> None:
    page = watch(opened("calls"))
    fill(page, "#tools", json.dumps(WEATHER))
    send(page, "Weather?")

    assert last_body(page)["tools"] == [{"type": "function", "function": WEATHER[0]}]
    assert page.text(".call-name") == "weather"
    shown = page.text(".call pre")
    assert json.loads(shown) == {"city": "Zürich 😀", "days": [1, 2]}
    assert shown.count("\n") >= 5
    assert page.count(".call .hl-string") == 1

    page.click(".results textarea")
    page.type('{"sun": true}')
    page.click(".results .main-button")
    wait_answers(page, 2)
    sent = last_body(page)["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool"]
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]
    assert sent[2]["content"] == '{"sun": true}'
    assert "sun" in page.text(".tool pre")


def test_markdown_is_shown_and_markup_of_the_model_is_text(opened: Open) -> None:
    page = opened("rich")

    send(page, "Show me <b>all</b> of it")

    prose = ".assistant > .prose"
    assert page.text(f"{prose} strong") == "bold"
    assert page.text(f"{prose} p code") == "code"
    assert page.text(f"{prose} h2") == "How it works"
    assert page.count(f"{prose} ol > li > ul > li") == 1
    assert page.text(f"{prose} .code-head span") == "python"
    assert page.text(f"{prose} .hl-comment") == "# take the smaller head"
    assert page.text(f"{prose} td.right") == "n log n"
    assert page.count(f"{prose} blockquote") == 1
    assert page.count(f"{prose} img, {prose} script, .bubble b") == 0
    assert "<script>document.title='evil'</script>" in page.text(prose)
    links = page.js(f"[...document.querySelectorAll('{prose} a')].map((a) => [a.href, a.rel, a.target])")
    assert links == [["https://example.org/x", "noopener noreferrer nofollow", "_blank"]]
    assert messages(page)[0] == "Show me <b>all</b> of it"


def test_a_long_message_is_shortened_until_it_is_wanted(opened: Open) -> None:
    page = opened("hello")
    send(page, "word " * 500)
    height = "document.querySelector('.bubble').offsetHeight"
    short = page.js(height)

    page.click(".show-all")

    assert page.js(height) > 2 * short
    assert page.text(".show-all") == "Show less"


def test_code_and_answer_can_be_copied(opened: Open) -> None:
    page = opened("rich")
    send(page, "code")
    page.js("probe.catchOutput()")

    page.click("[aria-label='Copy code']")
    page.wait("document.querySelector('.code .copy.done')")
    page.click("[aria-label='Copy answer']")
    page.wait("probe.copied.length === 2")

    assert page.js("probe.copied") == [
        "def merge(left, right):  # take the smaller head\n    return left + right",
        RICH,
    ]
