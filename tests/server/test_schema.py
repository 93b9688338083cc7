"""Requests that schemathesis makes of the OpenAPI document are answered as it says; skipped where that is absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from onnx_genai import AsyncEmbedder
from onnx_genai.server import ModelSpec
from onnx_genai.server.openapi import openapi_document
from tests.models.encoder import write_encoder_package
from tests.server.running import RunningServer

schemathesis = pytest.importorskip("schemathesis")
schema = schemathesis.openapi.from_dict(openapi_document())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestWarning"),
]


@pytest.fixture(scope="module")
def server(hello_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A language model and an embedding model, so that each route has one that answers where none is named."""
    folder = write_encoder_package(tmp_path_factory.mktemp("schema") / "vectors")
    vectors = ModelSpec(name="vectors", load=lambda: AsyncEmbedder(folder, threads=1), kind="embedding")
    with RunningServer([hello_spec, vectors]) as server:
        yield server.wait_ready()


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
def test_no_request_of_the_document_is_a_fault_of_the_server(case: Any, server: RunningServer) -> None:
    response = case.call(base_url=server.url, timeout=300)

    assert response.status_code < 500, response.text
    assert str(response.status_code) in case.operation.definition.raw["responses"] or response.status_code >= 400
    case.validate_response(response, checks=[schemathesis.checks.CHECKS.get_one("response_schema_conformance")])
