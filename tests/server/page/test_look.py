"""The chat page itself: its policy, colours, widths, scrolling, and use without a mouse."""

from __future__ import annotations

from tests.server.browser import Browser
from tests.server.page.reading import Open, send, wait_answers
from tests.server.running import RunningServer


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
