"""Chats on the chat page: kept, found, moved; and what happens when the server cannot answer."""

from __future__ import annotations

import json
import threading

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.server.browser import WAIT_SECONDS, Browser
from tests.server.page.reading import KEY, PROBE, Open, choose_model, fill, messages, send, wait_answers
from tests.server.running import RunningServer, wait_until


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
