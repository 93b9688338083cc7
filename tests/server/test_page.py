"""The chat page without a browser: its routes and headers, what its files hold, and its modules under node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_genai.server import ModelSpec
from onnx_genai.server import page_routes as page_module
from onnx_genai.server.page_routes import PAGE_PATHS
from tests.server.running import RunningServer

Serve = Callable[..., RunningServer]
PAGE = Path(page_module.__file__).parent / "page"
FILES = sorted(path for path in PAGE.iterdir() if path.is_file())
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
KEY = "right-key"


def test_a_browser_gets_the_page_and_a_program_a_pointer(hello: RunningServer) -> None:
    page = hello.http.get("/", headers=BROWSER)
    pointer = hello.http.get("/")

    assert page.status_code == pointer.status_code == 200
    assert page.headers["content-type"] == TYPES[".html"]
    assert page.text.startswith("<!doctype html>")
    assert pointer.json()["base_url"] == "/v1"
    assert page.headers["vary"] == pointer.headers["vary"] == "Accept"
    for path in (pointer.json()["openapi"], pointer.json()["docs"]):
        assert hello.http.get(path).status_code == 200


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_has_its_type_and_is_safe_to_show(hello: RunningServer, path: Path) -> None:
    response = hello.http.get("/" if path.name == "index.html" else f"/page/{path.name}", headers=BROWSER)

    assert response.status_code == 200
    assert response.content == path.read_bytes()
    assert response.headers["content-type"] == TYPES[path.suffix]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = dict(each.split(" ", 1) for each in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["img-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "'none'"


def test_a_file_that_is_known_is_not_sent_again(hello: RunningServer) -> None:
    for path in sorted(PAGE_PATHS):
        first = hello.http.get(path, headers=BROWSER)
        etag = first.headers["etag"]
        again = hello.http.get(path, headers={**BROWSER, "if-none-match": f'"other", W/{etag}'})
        changed = hello.http.get(path, headers={**BROWSER, "if-none-match": '"other"'})

        assert first.headers["cache-control"] == "no-cache"
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
        assert (changed.status_code, changed.content) == (200, first.content)


@pytest.mark.parametrize(
    "path", ["/page/", "/page/index.html", "/page/nothing.js", "/page/..%2fapp.py", "/page/../app.py", "/page/%2e%2e"]
)
def test_nothing_else_is_served(hello: RunningServer, path: str) -> None:
    response = hello.http.get(path, headers=BROWSER)

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


def test_the_page_needs_no_key_and_what_it_asks_the_server_does(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, api_keys=(KEY,)).wait_ready()

    for path in PAGE_PATHS:
        assert server.http.get(path, headers=BROWSER).status_code == 200
    assert server.http.get("/page/nothing.js").status_code == 401
    assert server.http.get("/v1/models").status_code == 401
    assert server.http.get("/", headers={**BROWSER, "host": "evil.example"}).status_code == 403


def test_the_page_can_be_switched_off(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, page=False).wait_ready()

    for path in PAGE_PATHS:
        assert server.http.get(path, headers=BROWSER).status_code == 404
    assert server.chat().status_code == 200


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_needs_anything_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    addresses = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+[^\s\"'`)]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a vocabulary, which nobody fetches
    assert not re.search(r"@import|url\(|<script(?! (?:src|type))|\son\w+=\"|style=\"|integrity=", text)


def test_every_file_that_is_named_is_there() -> None:
    start = (PAGE / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'"page/([\w.]+)"', start))
    for path in FILES:
        if path.suffix == ".js":
            named.update(re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8")))

    assert named | {"index.html"} == {path.name for path in FILES}


def test_the_code_makes_elements_and_never_markup_or_code_out_of_text() -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    forbidden = rf"{markup}|\beval\(|new Function"
    for path in FILES:
        if path.suffix == ".js":
            assert not re.search(forbidden, path.read_text(encoding="utf-8")), path.name


def test_the_modules_keep_their_word(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        assert not os.environ.get("ONNX_GENAI_REQUIRE_BROWSER"), "node is missing"
        pytest.skip("no node on this machine")
    for path in (*PAGE.glob("*.js"), *(Path(__file__).parent / "page_modules").glob("*.mjs")):
        shutil.copy(path, tmp_path)
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}), encoding="utf-8")
    tests = sorted(path.name for path in tmp_path.glob("*.test.mjs"))
    assert len(tests) == 4

    done = subprocess.run([node, "--test", *tests], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"tests [1-9]\d", done.stdout)


TEXT_COLOURS = [
    ("ink", "ground"),
    ("ink", "bubble"),
    ("ink-soft", "ground"),
    ("ink-faint", "ground"),
    ("ink-faint", "side"),
    ("ink-faint", "sunken"),
    ("accent", "ground"),
    ("accent-ink", "accent"),
    ("danger", "danger-soft"),
    ("ink-soft", "danger-soft"),
    ("warn", "ground"),
    *((f"hl-{name}", "sunken") for name in ("keyword", "string", "number", "comment", "name", "call")),
]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(theme: str) -> None:
    colours = _colours(theme)

    for text, ground in TEXT_COLOURS:
        light, dark = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
        # Level AA of the Web Content Accessibility Guidelines 2.2, section 1.4.3.
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def _colours(theme: str) -> dict[str, str]:
    """The colours of a theme; the dark one changes some of the light one."""
    found: dict[str, str] = {}
    for name in ("base.css", "prose.css"):
        for selector, body in re.findall(r"(:root[^{]*)\{([^}]*)\}", (PAGE / name).read_text(encoding="utf-8")):
            if "dark" not in selector or theme == "dark":
                found.update(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", body))
    return found


def _luminance(colour: str) -> float:
    """Relative luminance. Source: Web Content Accessibility Guidelines 2.2, definition of the term."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
