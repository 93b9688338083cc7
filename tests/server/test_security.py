"""Who is let in, from where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.routing import Route

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.server import ModelSpec, ServerConfig
from onnx_genai.server.app import create_app
from onnx_genai.server.security import PUBLIC_PATHS, KeyRing
from tests.server.running import RunningServer

KEY = "right-key"
Serve = Callable[..., RunningServer]


@pytest.fixture
def locked(serve: Serve, hello_spec: ModelSpec) -> RunningServer:
    return serve(hello_spec, api_keys=(KEY, "second"), cors_origins=("https://good.example",)).wait_ready()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
        {"authorization": "Bearer second"},
    ],
)
def test_either_header_and_either_key_opens(locked: RunningServer, headers: dict[str, str]) -> None:
    assert locked.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer None"},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"x-api-key": ""},
        {"x-api-key": KEY + " x"},
    ],
    ids=str,
)
def test_no_or_a_wrong_key_is_refused(locked: RunningServer, headers: dict[str, str]) -> None:
    response = locked.http.get("/v1/models", headers=headers)

    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.json()["error"]["type"] == "authentication_error"
    assert KEY not in response.text


def test_every_route_but_health_asks_for_the_key(locked: RunningServer) -> None:
    routes = [each for each in create_app(locked.server.state).routes if isinstance(each, Route)]
    assert len(routes) > 20

    for route in routes:
        path = (
            route.path.replace("{model_id:path}", "org/hello")
            .replace("{session_id}", "s")
            .replace("{response_id}", "r")
        )
        for method in sorted((route.methods or set()) - {"HEAD"}):
            status = locked.http.request(method, path).status_code
            assert (status == 401) != (path in PUBLIC_PATHS), f"{method} {path} answers {status}"
    assert locked.http.get("/v1/nothing").status_code == 401


def test_health_needs_no_key(locked: RunningServer) -> None:
    assert locked.http.get("/health").json() == {"status": "ok"}


def test_a_preflight_needs_no_key_and_its_origin_is_checked(locked: RunningServer) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}

    good = locked.http.options("/v1/chat/completions", headers={"origin": "https://good.example", **asked})
    evil = locked.http.options("/v1/chat/completions", headers={"origin": "https://evil.example", **asked})

    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    assert "authorization" in good.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-origin" not in evil.headers


def test_a_refusal_may_be_read_by_the_pages_that_may_call(locked: RunningServer) -> None:
    response = locked.http.get("/v1/models", headers={"origin": "https://good.example"})

    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://good.example"


def test_without_permission_no_page_may_read(hello: RunningServer) -> None:
    response = hello.http.get("/v1/models", headers={"origin": "https://evil.example"})

    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "localhost@evil"])
def test_a_foreign_host_name_is_refused(hello: RunningServer, host: str) -> None:
    response = hello.http.get("/v1/models", headers={"host": host})

    assert response.status_code in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_known(hello: RunningServer, host: str) -> None:
    assert hello.http.get("/v1/models", headers={"host": host}).status_code == 200


def test_a_further_host_name_can_be_allowed(serve: Serve, hello_spec: ModelSpec) -> None:
    server = serve(hello_spec, allowed_hosts=("box.local",)).wait_ready()

    assert server.http.get("/health", headers={"host": "box.local:80"}).status_code == 200
    assert server.http.get("/health", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.local"])
def test_listening_beyond_this_machine_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no API key"):
        ServerConfig(host=host)

    ServerConfig(host=host, api_keys=(KEY,))
    ServerConfig(host=host, allow_no_key=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.0.0.5"])
def test_the_loopback_needs_no_key(host: str) -> None:
    ServerConfig(host=host)


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "a\nb"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="API key"):
        ServerConfig(api_keys=(key,))


def test_a_key_ring_tells_holders_apart_without_their_keys() -> None:
    ring = KeyRing(("a", "b"))

    assert ring.owner("a") != ring.owner("b")
    assert ring.owner("c") is None
    assert ring.owner(None) is None
    assert ring.owner("") is None
    assert KeyRing(()).owner(None) == "anyone"
