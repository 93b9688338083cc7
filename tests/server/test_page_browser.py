"""The chat page in a headless Chromium, as its readers use it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.models.packages import CHATML
from tests.server.browser import WAIT_SECONDS, Browser, Page, chromium
from tests.server.running import RunningServer, SlowLLM, wait_until

PROBE = (Path(__file__).parent / "page_modules" / "probe.js").read_text(encoding="utf-8")
KEY = "right-key"
EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script> [x](javascript:evil())"
RICH = f"""Here is **bold** and `code`.

## How it works

1. Split
   - in two
2. Merge

```python
def merge(left, right):  # take the smaller head
    return left + right
```

| Name | Worst |
|:-----|------:|
| Merge sort | n log n |

> quoted

{EVIL} and [a page](https://example.org/x).
"""
WEATHER = [{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
CALL = 'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 😀", "days": [1, 2]}}\n</tool_call>'
THOUGHT = "<think>I add **2** and 2.</think>\n\nThe answer is **4**."
SCRIPTS = {
    "hello": ("Hello the world 😀 END", CHATML),
    "rich": (RICH, CHATML),
    "thinks": (THOUGHT, CHATML + "{# <think> </think> #}"),
    "calls": (CALL, CHATML),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        assert not os.environ.get("ONNX_GENAI_REQUIRE_BROWSER"), "Chromium is missing"
        pytest.skip("no Chromium on this machine")
    with Browser(program, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def specs(scripted_package: Callable[..., Path]) -> list[ModelSpec]:
    def spec(name: str, script: str, template: str) -> ModelSpec:
        folder = scripted_package(script, chat_template=template)
        return ModelSpec(name=name, load=lambda: AsyncLLM(folder, threads=1))

    slow = scripted_package("slow words and no end to them " * 60)
    return [
        *(spec(name, *each) for name, each in SCRIPTS.items()),
        ModelSpec(name="slow", load=lambda: SlowLLM(slow, threads=1)),
    ]


@pytest.fixture(scope="module")
def server(specs: list[ModelSpec]) -> Iterator[RunningServer]:
    with RunningServer(specs) as server:
        yield server.wait_ready()


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, server: RunningServer) -> Iterator[Open]:
    """``opened(model)``: the page with a model chosen. At the end the browser must have had nothing to complain of."""
    with _pages(browser, server) as open_page:
        yield open_page


@contextmanager
def _pages(browser: Browser, server: RunningServer) -> Iterator[Open]:
    opened: list[tuple[Page, Any, int]] = []

    def open_page(model: str = "hello", *, refusals: int = 0, **how: Any) -> Page:
        manager = browser.page(server.url + "/", script=PROBE, **how)
        page = manager.__enter__()
        opened.append((page, manager, refusals))
        page.wait("document.querySelector('#model')?.value")
        choose_model(page, model)
        return page

    try:
        yield open_page
        for page, _, refusals in opened:
            assert page.js("document.title") != "evil"
            complaints = page.complaints()
            assert len(complaints) == refusals, complaints
            assert all("status of 4" in each for each in complaints), complaints
    finally:
        for _, manager, _ in opened:
            manager.__exit__(None, None, None)


def choose_model(page: Page, name: str) -> None:
    fill(page, "#model", name, "change")


def fill(page: Page, selector: str, text: str, event: str = "input") -> None:
    """Sets the value of a field as if it was typed or chosen."""
    page.js(f"probe.fill({json.dumps(selector)}, {json.dumps(text)}, {json.dumps(event)})")


def send(page: Page, text: str, *, answers: int | None = 1) -> None:
    """Writes a message, sends it with the key, and waits until that many answers are complete."""
    page.click("#prompt")
    page.type(text)
    page.key("Enter")
    if answers is not None:
        wait_answers(page, answers)


def wait_answers(page: Page, count: int) -> None:
    page.wait(f"document.querySelectorAll('.assistant[aria-busy=false]').length === {count}")


def last_body(page: Page) -> dict[str, Any]:
    """The body of the last request for an answer; see `watch`."""
    body: dict[str, Any] = json.loads(page.js("probe.sent.at(-1)"))
    return body


def watch(page: Page) -> Page:
    """Writes down what the page sends from now on."""
    page.js("probe.watch()")
    return page


def messages(page: Page) -> list[str]:
    """What is said, message by message."""
    texts: list[str] = page.js("probe.messages()")
    return texts


def test_a_message_is_sent_with_enter_and_its_answer_shown_with_its_figures(opened: Open) -> None:
    page = watch(opened("hello"))

    send(page, "Hi there")

    assert messages(page) == ["Hi there", "Hello the world 😀 END"]
    assert last_body(page)["messages"] == [{"role": "user", "content": "Hi there"}]
    assert last_body(page)["stream"] is True
    stats = page.text(".stats")
    assert "17 tokens" in stats
    assert "cached" in stats
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


def test_the_browser_holds_the_page_to_its_policy(browser: Browser, server: RunningServer) -> None:
    with browser.page(server.url + "/") as page:
        page.wait("document.querySelector('#model')?.value")
        attempts = {
            "markup": "document.body.insertAdjacentHTML('beforeend', '<b>evil</b>')",
            "code": "Object.assign(document.createElement('script'), { text: '1' })",
            "elsewhere": "fetch('http://127.0.0.1:9/')",
        }
        for name, attempt in attempts.items():
            refused = page.js(f"(async () => {{ try {{ await {attempt}; }} catch (e) {{ return e.name; }} }})()")
            assert refused == "TypeError", name
        page.js(
            "document.body.append(Object.assign(new Image(), { src: 'data:image/gif;base64,R0lGODlhAQABAAAAACw=' }))"
        )

        assert any("img-src" in each for each in page.complaints())


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


def test_colours_follow_the_system_until_the_reader_chooses(opened: Open) -> None:
    page = opened("hello", dark=True)
    assert page.js("probe.brightness()") < 60
    page.prefer(dark=False)
    page.wait("probe.brightness() > 200")

    page.click(".theme-button")

    page.wait("probe.brightness() < 60")
    page.reload()
    assert page.js("probe.brightness()") < 60


def test_nothing_is_wider_than_the_window(opened: Open) -> None:
    page = opened("rich")
    send(page, "wide " + "x" * 300)

    for width in (1280, 768, 390, 320):
        page.resize(width, 800)
        page.wait(f"innerWidth === {width}")
        assert page.js("document.documentElement.scrollWidth") <= width
        for part in ("#composer", "#send", ".bubble", ".code", ".table", ".settings-button", "#model"):
            assert page.js(f"probe.fits('{part}')"), f"{part} at {width}"


def test_on_a_phone_the_chats_are_behind_a_button(opened: Open) -> None:
    page = opened("hello", width=390)
    send(page, "Hi")
    assert page.js("getComputedStyle(document.querySelector('#sidebar')).visibility") == "hidden"

    page.click(".menu-button")
    page.wait("document.querySelector('#sidebar').getBoundingClientRect().left === 0")
    page.click("#new-chat")

    page.wait("getComputedStyle(document.querySelector('#sidebar')).visibility === 'hidden'")
    assert page.count(".welcome") == 1


def test_the_view_follows_the_text_until_the_reader_scrolls_up(opened: Open) -> None:
    page = opened("slow", height=420)
    top = "document.querySelector('#scroll').scrollTop"
    send(page, "line\n" * 8 + "Go", answers=None)
    page.wait("document.querySelector('.assistant.writing .prose')?.innerText.length > 300")
    page.wait(f"probe.below() <= 2 && {top} > 120")

    page.scroll("#scroll", -100)
    page.wait("!document.querySelector('#to-end').hidden")
    here = page.js(top)
    length = page.js("document.querySelector('.assistant .prose').innerText.length")
    page.wait(f"document.querySelector('.assistant .prose').innerText.length > {length + 100}")
    assert page.js(top) <= here

    page.click("#to-end")
    page.wait("probe.below() <= 2 && document.querySelector('#to-end').hidden")
    page.key("Escape")
    wait_answers(page, 1)


def test_chats_are_kept_found_again_renamed_and_deleted(opened: Open) -> None:
    page = opened("hello")
    send(page, "first chat")
    page.key("k", "ctrl")
    page.wait("document.querySelector('.welcome')")
    send(page, "second chat")
    page.reload()
    assert page.count("#chat-list li") == 2
    assert messages(page)[0] == "second chat"

    page.click("#chat-list li:not(.current) .chat-link")
    page.wait("document.querySelector('.bubble')?.innerText === 'first chat'")
    page.js("history.back()")
    page.wait("document.querySelector('.bubble')?.innerText === 'second chat'")
    page.js("document.querySelector('#chat-list .current [aria-label^=Rename]').click()")
    fill(page, ".rename", "better name")
    page.key("Enter")
    page.wait("document.querySelector('#chat-list .current')?.innerText.includes('better name')")

    page.js("document.querySelector('#chat-list .current [aria-label^=Delete]').click()")
    page.click("#confirm-box .main-button")
    page.wait("document.querySelectorAll('#chat-list li').length === 1")
    assert page.count(".welcome") == 1


def test_a_chat_goes_on_while_another_is_read(opened: Open) -> None:
    page = opened("slow")
    send(page, "Go", answers=None)
    page.wait("document.querySelector('.assistant.writing')")

    page.click("#new-chat")
    choose_model(page, "hello")
    send(page, "Hi")
    assert page.count("#chat-list .busy") == 1
    page.click("#chat-list .busy .chat-link")
    page.wait("document.querySelector('.assistant.writing')")

    length = page.js("document.querySelector('.assistant .prose').innerText.length")
    page.wait(f"document.querySelector('.assistant .prose').innerText.length > {length}")
    page.key("Escape")
    wait_answers(page, 1)


def test_exported_chats_can_be_imported(opened: Open) -> None:
    page = opened("hello")
    send(page, "keep me")
    page.js("probe.catchOutput()")
    page.click("#export")
    text = page.js("probe.saved.blob.text()")
    assert json.loads(text)["format"] == "onnx-genai-chats"
    assert page.js("probe.saved.name").startswith("chats-20")

    other = opened("hello")
    other.js("probe.giveFile('no export')")
    other.wait("document.querySelector('#notice')?.innerText.includes('no JSON')")
    other.js(f"probe.giveFile({json.dumps(text)})")
    other.wait("document.querySelectorAll('#chat-list li').length === 1")
    other.click("#chat-list .chat-link")
    other.wait("document.querySelector('.bubble')?.innerText === 'keep me'")
    assert messages(other)[1] == "Hello the world 😀 END"


def test_an_error_is_told_with_what_to_do_and_can_be_tried_again(opened: Open) -> None:
    page = opened("hello", refusals=1)

    send(page, "x" * 9000)

    problem = page.text(".problem")
    assert "The chat is too long for this model" in problem
    assert "Start a new chat" in problem
    assert "maximum context length" in problem
    page.click(".user [aria-label^='Edit']")
    fill(page, ".edit textarea", "short")
    page.key("Enter")
    page.wait("document.querySelector('.assistant > .prose')?.innerText.trim() === 'Hello the world 😀 END'")


def test_a_server_that_is_gone_is_told_and_its_return_used(browser: Browser, server: RunningServer) -> None:
    with browser.page(server.url + "/", script=PROBE) as page:
        page.wait("document.querySelector('#model')?.value")
        page.js("probe.offline()")
        send(page, "Hi")
        assert "No connection to the server" in page.text(".problem")

        page.js("probe.online()")
        page.click(".problem .main-button")
        page.wait("document.querySelector('.assistant > .prose')?.innerText.includes('Hello')")

        assert page.count(".problem") == 0
        assert page.count(".branches") == 0


def test_a_key_is_asked_for_and_used(browser: Browser, specs: list[ModelSpec]) -> None:
    with RunningServer(specs[:1], api_keys=(KEY,)) as server:
        wait_until(lambda: server.server.state.models.is_ready, "the model")
        with browser.page(server.url + "/", script=PROBE) as page:
            page.wait("document.querySelector('#key-box').open")
            page.type("wrong")
            page.key("Enter")
            page.wait("document.querySelector('#key-box[open]')?.innerText.includes('does not know')")

            page.type(KEY)
            page.key("Enter")
            page.wait("!document.querySelector('#key-box').open && document.querySelector('#model').value === 'hello'")
            send(page, "Hi")

            assert messages(page) == ["Hi", "Hello the world 😀 END"]
            assert page.js("localStorage.getItem('onnx-genai/key')") is None
            assert all("401" in each for each in page.complaints())


def test_a_model_that_loads_is_waited_for(browser: Browser, specs: list[ModelSpec]) -> None:
    may_load = threading.Event()

    def load() -> AsyncLLM:
        assert may_load.wait(WAIT_SECONDS)
        return specs[0].load()

    with (
        RunningServer([ModelSpec(name="late", load=load)]) as server,
        browser.page(server.url + "/", script=PROBE) as page,
    ):
        page.wait("document.querySelector('.dot.loading')")
        assert "being loaded" in page.text(".welcome")
        send(page, "Hi", answers=None)
        page.wait("document.querySelector('.waiting')?.innerText.includes('loading')")
        may_load.set()
        wait_answers(page, 1)
        assert messages(page)[1] == "Hello the world 😀 END"
        page.wait("document.querySelector('.dot.loaded')")


def test_only_models_that_write_are_offered(browser: Browser, specs: list[ModelSpec]) -> None:
    vectors = ModelSpec(name="vectors", load=specs[0].load, kind="embedding", eager=False)

    with RunningServer([vectors, specs[0]]) as server, browser.page(server.url + "/", script=PROBE) as page:
        page.wait("document.querySelector('#model')?.value")

        assert page.text("#model").split() == ["hello"]


def test_everything_can_be_reached_and_named_without_a_mouse(opened: Open) -> None:
    page = opened("rich")
    send(page, "Hi")
    assert page.js("probe.nameless()") == []

    page.js("document.querySelector('#prompt').focus()")
    names: set[str] = set()
    for _ in range(60):
        page.key("Tab")
        name, is_seen = page.js("probe.focused()")
        names.add(name)
        assert is_seen, f"the focus cannot be seen on {name}"

    assert {"model", "new-chat", "Copy code", "Copy answer", "export", "Settings"} <= names
    assert "system" not in names  # the closed drawer is out of the way
