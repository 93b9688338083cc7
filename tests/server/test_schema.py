"""Requests that schemathesis makes of the OpenAPI document meet no fault of the server; skipped where it is absent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from onnx_genai.server.openapi import openapi_document
from onnx_genai.server.unavailable import UNAVAILABLE
from tests.server.running import RunningServer

schemathesis = pytest.importorskip("schemathesis")
schema = schemathesis.openapi.from_dict(openapi_document())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestWarning"),
]


@schema.parametrize()
@settings(
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
def test_no_request_of_the_document_is_a_fault_of_the_server(case: Any, hello: RunningServer) -> None:
    response = case.call(base_url=hello.url, timeout=300)

    allowed = {501} if case.operation.path in UNAVAILABLE else set()
    if case.body is not None and isinstance(case.body, dict) and case.body.get("timeout"):
        allowed |= {504}  # as asked for
    assert response.status_code < 500 or response.status_code in allowed, response.text
    if response.status_code >= 400 and not case.operation.path.startswith("/v1/messages"):
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
