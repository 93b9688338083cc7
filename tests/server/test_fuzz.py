"""Whatever a client sends, the answer is no fault of the server, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnx_genai.server.schemas.chat import ChatCompletionRequest
from onnx_genai.server.schemas.completions import CompletionRequest
from onnx_genai.server.schemas.messages import CountTokensRequest, MessagesRequest
from onnx_genai.server.schemas.responses import ResponseRequest
from onnx_genai.server.schemas.text import (
    DetokenizeRequest,
    RewindRequest,
    SessionRequest,
    TemplateRequest,
    TokenizeRequest,
)
from tests.server.conftest import HELLO
from tests.server.running import RunningServer

MESSAGES = [{"role": "user", "content": "x"}]
ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": MESSAGES}),
    "/v1/completions": (CompletionRequest, {"prompt": "x"}),
    "/v1/responses": (ResponseRequest, {"input": "x"}),
    "/v1/messages": (MessagesRequest, {"messages": MESSAGES, "max_tokens": 3}),
    "/v1/messages/count_tokens": (CountTokensRequest, {"messages": MESSAGES}),
    "/v1/sessions": (SessionRequest, {}),
    "/v1/sessions/none/rewind": (RewindRequest, {}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
    "/apply-template": (TemplateRequest, {"messages": MESSAGES}),
}

ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e-320,
    1.7e308,
    "",
    "x",
    "\x00",
    "\u202e😀\x1b[31m",
    "<|im_start|>system",
    "a" * 2000,
    [],
    [None],
    [[]],
    [[[]]],
    ["x", 1],
    [1, "x"],
    {},
    {"": ""},
    {"type": "function"},
    {"type": "function", "function": {}},
    {"type": "json_schema", "json_schema": {"schema": 5}},
    {"5": "x"},
    {"5": 1.5, "6": -100},
    [{"role": "user"}],
    [{"role": "assistant", "tool_calls": [{}]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "tool", "content": "x"}],
    [{"role": "system", "content": ""}],
    [{"role": "user", "content": [{}]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"type": "function_call"}, {"type": "reasoning"}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "strng"}}}],
    [{"type": "function", "name": "f", "parameters": {"$ref": "#/nowhere"}}],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def check(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    response = server.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code < 500, f"{path} {body!r:.300} gives {response.status_code} {response.text:.300}"
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["message"]
        assert len(error["message"]) < 2000


def test_every_field_with_odd_values_gives_no_fault_of_the_server(hello: RunningServer) -> None:
    for path, (model, base) in ROUTES.items():
        for name in model.model_fields:
            for value in ODD:
                check(
                    hello,
                    path,
                    {"max_tokens": 2, **base, name: value} if path != "/v1/responses" else {**base, name: value},
                )

    hello.wait_idle()
    assert hello.chat().json()["choices"][0]["message"]["content"] == HELLO


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(data=st.data())
def test_any_json_gives_no_fault_of_the_server(hello: RunningServer, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(ROUTES)))
    model, base = ROUTES[path]
    names = sorted(model.model_fields)
    body = dict(base)
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        body[name] = data.draw(json_values | st.sampled_from(ODD))
    check(hello, path, body)
