"""A headless Chromium, driven through its debugging pipe: no port, and no package besides the browser itself.

The words of the pipe are those of the DevTools protocol: JSON messages, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["WAIT_SECONDS", "Browser", "Page", "chromium"]

WAIT_SECONDS = 120.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, where the sandbox refuses
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-proxy-server",
    # Nothing but this machine can be found: a page that needs more fails.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    # A machine without a screen has no mouse either; this one does.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
    "--remote-debugging-pipe",
)
_KEYS = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "Tab": 9, "k": 75}
_MODIFIERS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}


def chromium() -> str | None:
    """Path of a Chromium on this machine; None if there is none."""
    found = (shutil.which(name) for name in (os.environ.get("ONNX_GENAI_CHROMIUM", ""), *_NAMES) if name)
    return next(filter(None, found), None)


class Browser:
    """A running browser; use it as a context manager."""

    def __init__(self, program: str, folder: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads from 3 and writes to 4.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", command, program, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(to_browser)
        os.close(from_browser)
        self._received = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result; fails the test on an error or when no answer comes."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)
        raise AssertionError(f"the browser did not answer {method}")

    def _messages(self) -> Iterator[dict[str, Any]]:
        end = time.perf_counter() + WAIT_SECONDS
        while True:
            while b"\0" in self._received:
                message, _, self._received = self._received.partition(b"\0")
                yield json.loads(message)
            ready, _, _ = select.select([self._read], [], [], max(end - time.perf_counter(), 0))
            data = os.read(self._read, 2**16) if ready else b""
            if not data:
                return
            self._received += data

    @contextlib.contextmanager
    def page(
        self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False, script: str = ""
    ) -> Iterator[Page]:
        """A page with storage of its own, closed at the end; `script` runs before those of the page."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.call("Page.enable")
        page.call("Runtime.enable")
        page.call("Log.enable")
        page.resize(width, height)
        page.prefer(dark=dark)
        page.before_each_document(script)
        page.open(url)
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """A page of the browser. Selectors are those of CSS."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def reload(self) -> None:
        """Loads the page again."""
        self.js("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def before_each_document(self, script: str) -> None:
        """Runs a script in every document that is opened from now on, before its own."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def prefer(self, *, dark: bool) -> None:
        """What the reader has told the system about colours; motion is reduced, so that pictures are still."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def js(self, expression: str) -> Any:
        """The value of an expression, as JSON; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Waits until an expression is true; fails the test when it never is."""
        end = time.perf_counter() + WAIT_SECONDS
        while time.perf_counter() < end:
            with contextlib.suppress(AssertionError):  # the page may be between two documents
                if self.js(f"Boolean({expression})"):
                    return
            time.sleep(0.02)
        raise AssertionError(f"waited in vain for {expression}; the page shows: {self.js('document.body.innerText')}")

    def text(self, selector: str) -> str:
        """The visible text of the first element."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def count(self, selector: str) -> int:
        return int(self.js(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str, index: int = 0) -> None:
        """A click with the mouse in the middle of an element, which must be there and not covered."""
        find = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.wait(f"{find} !== undefined")
        self.js(f"{find}.scrollIntoView({{block: 'nearest'}})")
        x, y = self.js(
            f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        )
        hit = self.js(f"{find}.contains(document.elementFromPoint({x}, {y}))")
        assert hit, f"{selector} is covered or out of sight at {x}, {y}"
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def key(self, name: str, *modifiers: str) -> None:
        """Presses a key, with "ctrl", "shift", ... held down."""
        held = sum(_MODIFIERS[each] for each in modifiers)
        code = _KEYS[name]
        text = {"Enter": "\r"}.get(name, "")
        common = {"key": name, "code": f"Key{name.upper()}" if len(name) == 1 else name, "modifiers": held}
        common |= {"windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def scroll(self, selector: str, by: int) -> None:
        """Turns the mouse wheel over an element; negative is up."""
        find = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.js(f"(() => {{ const b = {find}; return [b.x + b.width / 2, b.y + b.height / 2]; }})()")
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """What the browser did not like so far: exceptions, refused contents, failed loads."""
        self.js("0")  # what is on its way comes first
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found
