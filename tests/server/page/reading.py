"""What a reader of the chat page does in the browser, and the models that answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.models.packages import CHATML
from tests.server.browser import Browser, Page
from tests.server.running import RunningServer

Open = Callable[..., Page]

PROBE = (Path(__file__).parents[1] / "page_modules" / "probe.js").read_text(encoding="utf-8")
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


@contextmanager
def pages(browser: Browser, server: RunningServer) -> Iterator[Open]:
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
