"""POST /v1/embeddings and /v1/rerank: OpenAI's and Jina's forms, their limits, and their errors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from onnx_genai import AsyncEmbedder, RankedDocument
from onnx_genai.pipelines.encoder_model import PreparedTexts
from onnx_genai.pipelines.vectors import Vectors
from onnx_genai.server import Limits, ModelSpec
from tests.embedding.conftest import pooled, text_of
from tests.models.encoder import WIDTH, EncoderFiles, EncoderStyle, write_encoder_package
from tests.server.running import RunningServer, chat_body, raw_request, wait_until

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = EncoderFiles(prompts={"query": "w40 "}, max_seq_length=20)
    return write_encoder_package(tmp_path_factory.mktemp("encoder") / "embedding", files=files)


@pytest.fixture(scope="module")
def embedding_spec(folder: Path) -> ModelSpec:
    return ModelSpec(name="vectors", load=lambda: AsyncEmbedder(folder, threads=1), kind="embedding", aliases=("v",))


@pytest.fixture(scope="module")
def reranker_spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    style = EncoderStyle(output="logits")
    folder = write_encoder_package(tmp_path_factory.mktemp("encoder") / "r", style, EncoderFiles(modules=None))
    return ModelSpec(name="judge", load=lambda: AsyncEmbedder(folder, threads=1))


@pytest.fixture(scope="module")
def server(hello_spec: ModelSpec, embedding_spec: ModelSpec, reranker_spec: ModelSpec) -> Iterator[RunningServer]:
    """A language model first, an embedding model, and a reranker whose kind is not said."""
    with RunningServer([hello_spec, embedding_spec, reranker_spec]) as server:
        yield server.wait_ready()


def embed(server: RunningServer, texts: Any, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/embeddings", json={"model": "vectors", "input": texts, **fields})


def rerank(server: RunningServer, **fields: Any) -> httpx.Response:
    body = {"model": "judge", "query": "w40", "documents": ["w5", "w6 w7", "w8"], **fields}
    return server.http.post("/v1/rerank", json=body)


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_answer_has_the_form_of_openai(server: RunningServer) -> None:
    response = embed(server, ["w5", "w6 w7"])

    assert response.headers["content-type"] == "application/json"
    value = response.json()
    assert (value["object"], value["model"]) == ("list", "vectors")
    assert value["usage"] == {"prompt_tokens": 3 + 4, "total_tokens": 7}
    assert [(each["object"], each["index"]) for each in value["data"]] == [("embedding", 0), ("embedding", 1)]
    vectors = [each["embedding"] for each in value["data"]]
    np.testing.assert_allclose(vectors, [pooled((5,)), pooled((6, 7))], atol=TOLERANCE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("w5", [(5,)]),
        (["w5"], [(5,)]),
        ([0, 5, 1], [(5,)]),
        ([[0, 5, 1], [0, 6, 7, 1]], [(5,), (6, 7)]),
    ],
)
def test_input_may_be_text_or_ids_one_or_many(server: RunningServer, given: Any, words: list[tuple[int, ...]]) -> None:
    value = embed(server, given).json()

    expected = [pooled(each) for each in words]
    np.testing.assert_allclose([each["embedding"] for each in value["data"]], expected, atol=TOLERANCE)


def test_base64_holds_the_same_float32(server: RunningServer) -> None:
    plain = embed(server, ["w5", "w6"], encoding_format="float", user="somebody").json()
    coded = embed(server, ["w5", "w6"], encoding_format="base64").json()

    for one, other in zip(plain["data"], coded["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_array_equal(vector, np.array(one["embedding"], np.float32))


def test_dimensions_are_cut_and_made_unit_again(server: RunningServer) -> None:
    vector = np.array(embed(server, "w5 w6", dimensions=3).json()["data"][0]["embedding"])

    full = pooled((5, 6))[:3]
    np.testing.assert_allclose(vector, full / np.linalg.norm(full), atol=TOLERANCE)


def test_our_own_fields(server: RunningServer) -> None:
    prompted = embed(server, "w5", prompt_name="query").json()["data"][0]["embedding"]
    plain = embed(server, "w5 w6", normalize=False).json()["data"][0]["embedding"]
    cut = embed(server, text_of(*range(4, 40)), truncate=True).json()

    np.testing.assert_allclose(prompted, pooled((40, 5)), atol=TOLERANCE)
    np.testing.assert_allclose(plain, pooled((5, 6), unit=False), atol=TOLERANCE)
    np.testing.assert_allclose(cut["data"][0]["embedding"], pooled(tuple(range(4, 22))), atol=TOLERANCE)
    assert cut["usage"]["prompt_tokens"] == 20


@pytest.mark.parametrize(
    ("given", "fields", "param", "text"),
    [
        ("", {}, "input", "input is empty or has an empty entry"),
        ([], {}, "input", "input is empty or has an empty entry"),
        (["w5", ""], {}, "input", "input is empty or has an empty entry"),
        ([[]], {}, "input", "input is empty or has an empty entry"),
        ([0, 61], {}, "input", "has a token id beyond the vocabulary; allowed: 0..60"),
        ([0, -1], {}, "input", "allowed: ids of the vocabulary"),
        ("w5", {"dimensions": WIDTH + 1}, "dimensions", "dimensions is 9; allowed: a whole number in 1..8"),
        ("w5", {"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ("w5", {"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ("w5", {"prompt_name": "other"}, "prompt_name", "the package's prompts are: query"),
        ({"text": "w5"}, {}, "input", "Input should be"),
        (["w5", 5], {}, "input", "Input should be"),
        ("w5", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "is not supported: give truncate"),
    ],
)
def test_wrong_request_is_a_400_that_names_the_field(
    server: RunningServer, given: Any, fields: dict[str, Any], param: str, text: str
) -> None:
    error = error_of(embed(server, given, **fields))

    assert error["param"].split("[")[0] == param
    assert text in error["message"]


def test_long_text_is_refused_and_says_the_limit(server: RunningServer) -> None:
    error = error_of(embed(server, ["w5", text_of(*range(4, 40))]))

    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "text 1 has 38 tokens, sentence_bert_config.json max_seq_length allows 20" in error["message"]


def test_rerank_orders_by_score_and_points_to_the_request(server: RunningServer) -> None:
    value = rerank(server, return_documents=True).json()

    scores = [each["relevance_score"] for each in value["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert sorted(each["index"] for each in value["results"]) == [0, 1, 2]
    documents = ["w5", "w6 w7", "w8"]
    assert all(each["document"] == {"text": documents[each["index"]]} for each in value["results"])
    assert value["model"] == "judge"
    assert value["usage"] == {"prompt_tokens": 5 + 6 + 5, "total_tokens": 16}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_rerank_has_three_names_and_takes_objects(server: RunningServer, path: str) -> None:
    whole = rerank(server).json()["results"]
    body = {"model": "judge", "query": "w40", "documents": ["w5", {"text": "w6 w7"}, {"text": "w8"}], "top_n": 2}
    value = server.http.post(path, json=body).json()

    assert value["results"] == whole[:2]
    assert "document" not in value["results"][0]


def test_embedding_model_reranks_by_cosine(server: RunningServer) -> None:
    value = rerank(server, model="vectors", query="w5").json()

    # The prompt for queries stands before the query.
    cosines = [float(pooled((40, 5)) @ pooled(words)) for words in ((5,), (6, 7), (8,))]
    assert [each["index"] for each in value["results"]] == list(np.argsort([-cosine for cosine in cosines]))
    np.testing.assert_allclose(value["results"][0]["relevance_score"], max(cosines), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"query": ""}, "query", "query is empty"),
        ({"documents": []}, "documents", "documents is empty"),
        ({"documents": [{"title": "x"}]}, "documents", ""),
        ({"top_n": 0}, "top_n", "greater than or equal to 1"),
        ({"rank_fields": ["a"]}, "rank_fields", "is not supported"),
        ({"model": "vectors", "documents": [text_of(*range(4, 40))]}, "documents", "max_seq_length allows 20"),
    ],
)
def test_wrong_rerank_is_a_400_that_names_the_field(
    server: RunningServer, fields: dict[str, Any], param: str, text: str
) -> None:
    error = error_of(rerank(server, **fields))

    assert error["param"].split("[")[0] == param
    assert text in error["message"]


def test_models_tell_their_kind(server: RunningServer) -> None:
    data = server.http.get("/v1/models").json()["data"]

    assert [(each["id"], each["kind"]) for each in data] == [
        ("org/hello", "text"),
        ("vectors", "embedding"),
        ("judge", "reranker"),
    ]
    assert server.http.get("/v1/models/v").json()["max_model_len"] == 20
    engine = server.http.get("/props").json()["models"][1]["engine"]
    assert (engine["width"], engine["pooling"]) == (WIDTH, "mean")
    assert not any(name.endswith("_path") for name in engine)


def test_a_session_belongs_to_a_language_model(
    serve: Callable[..., RunningServer], hello_spec: ModelSpec, embedding_spec: ModelSpec
) -> None:
    server = serve(embedding_spec, hello_spec).wait_ready()

    made = server.http.post("/v1/sessions", json={})
    refused = server.http.post("/v1/sessions", json={"model": "vectors"})

    assert (made.status_code, made.json()["model"]) == (201, "org/hello")
    headers = {"X-Session-Id": made.json()["id"]}
    assert server.http.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_model")
    assert "'vectors' is an embedding model" in refused.json()["error"]["message"]


def test_a_document_that_is_no_text_is_named_without_names_of_ours(server: RunningServer) -> None:
    for document, param in (({"text": 5}, "documents[0].text"), ({}, "documents[0].text"), (5, "documents[0]")):
        error = error_of(rerank(server, documents=[document]))
        assert error["param"] == param
        assert "DocumentIn" not in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/embeddings", {"model": "hello", "input": "w5"}, "'org/hello' is a language model"),
        ("/v1/embeddings", {"model": "judge", "input": "w5"}, "'judge' is a reranker, which answers /v1/rerank"),
        ("/v1/rerank", {"model": "hello", "query": "a", "documents": ["b"]}, "is a language model"),
        ("/v1/completions", {"model": "v", "prompt": "a"}, "'vectors' is an embedding model"),
        (
            "/v1/chat/completions",
            {"model": "judge", "messages": [{"role": "user", "content": "a"}]},
            "'judge' is a reranker",
        ),
        (
            "/v1/messages",
            {"model": "vectors", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]},
            "is an embedding model, which answers /v1/embeddings and /v1/rerank",
        ),
    ],
)
def test_model_of_another_kind_is_a_clear_400(
    server: RunningServer, path: str, body: dict[str, Any], text: str
) -> None:
    response = server.http.post(path, json=body)

    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


def test_who_names_no_model_gets_one_of_the_right_kind(server: RunningServer) -> None:
    vectors = server.http.post("/v1/embeddings", json={"input": "w5"}).json()
    order = server.http.post("/v1/rerank", json={"query": "w5", "documents": ["w5"]}).json()
    text = server.chat().json()

    assert (vectors["model"], order["model"], text["model"]) == ("vectors", "vectors", "org/hello")


def test_unknown_model_is_a_404(server: RunningServer) -> None:
    assert error_of(embed(server, "w5", model="nobody"), 404)["code"] == "model_not_found"


def test_tokens_are_counted(server: RunningServer) -> None:
    def total() -> float:
        lines = server.http.get("/metrics").text.splitlines()
        line = next(line for line in lines if line.startswith('onnx_genai:prompt_tokens_total{model_name="vectors"}'))
        return float(line.split()[1])

    embed(server, "w5")
    before = total()
    embed(server, ["w5", "w6"])

    assert total() - before == 6
    lines = server.http.get("/metrics").text
    assert 'onnx_genai:encoder_texts_total{model_name="vectors"}' in lines
    assert 'onnx_genai:kv_cache_capacity_tokens{model_name="vectors"}' not in lines


def test_routes_are_in_the_document(server: RunningServer) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]

    assert "input" in json.dumps(paths["/v1/embeddings"]) or "EmbeddingRequest" in json.dumps(paths["/v1/embeddings"])
    assert "RerankRequest" in json.dumps(paths["/v1/rerank"])


def test_too_many_texts_are_refused(embedding_spec: ModelSpec) -> None:
    with RunningServer([embedding_spec], limits=Limits(max_inputs=3)) as server:
        server.wait_ready()
        assert embed(server, ["w5"] * 3).status_code == 200
        assert "this server allows at most 3" in error_of(embed(server, ["w5"] * 4))["message"]
        assert "this server allows at most 3" in error_of(rerank(server, model="v", documents=["w5"] * 4))["message"]


def test_many_clients_get_their_own_vectors(server: RunningServer) -> None:
    def ask(word: int) -> None:
        vector = embed(server, [text_of(word)] * 3).json()["data"][2]["embedding"]
        np.testing.assert_allclose(vector, pooled((word,)), atol=TOLERANCE)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, [4 + number % 50 for number in range(100)]))


class _StuckEmbedder(AsyncEmbedder):
    """Never has an answer; counts who waits."""

    waiting = 0

    async def embed_prepared(
        self, prepared: PreparedTexts, *, normalize: bool | None = None, dimensions: int | None = None
    ) -> Vectors:
        type(self).waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            type(self).waiting -= 1
        raise AssertionError

    async def rerank_prepared(
        self, prepared: PreparedTexts, documents: Sequence[str], *, top_n: int | None = None, raw_scores: bool = False
    ) -> list[RankedDocument]:
        await self.embed_prepared(prepared)
        return []


@pytest.fixture
def stuck(folder: Path) -> ModelSpec:
    _StuckEmbedder.waiting = 0
    return ModelSpec(name="vectors", load=lambda: _StuckEmbedder(folder, threads=1), kind="embedding")


def test_client_that_leaves_ends_the_work(stuck: ModelSpec) -> None:
    with RunningServer([stuck]) as server:
        server.wait_ready()
        with raw_request(server, "/v1/embeddings", b'{"input": "w5"}'):
            wait_until(lambda: _StuckEmbedder.waiting == 1, "the request")
        wait_until(lambda: _StuckEmbedder.waiting == 0 and not server.server.state.live.open, "its end")


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/embeddings", {"input": "w5"}), ("/v1/rerank", {"query": "w5", "documents": ["w6"]})]
)
def test_request_that_takes_too_long_is_a_504(stuck: ModelSpec, path: str, body: dict[str, Any]) -> None:
    with RunningServer([stuck], limits=Limits(request_timeout=0.2)) as server:
        server.wait_ready()
        response = server.http.post(path, json=body)

        assert response.status_code == 504
        assert "were not ready within 0.2 seconds" in response.json()["error"]["message"]
        assert _StuckEmbedder.waiting == 0


def test_full_server_answers_429(stuck: ModelSpec) -> None:
    with RunningServer([stuck], limits=Limits(max_open_requests=1)) as server:
        server.wait_ready()
        with raw_request(server, "/v1/embeddings", b'{"input": "w5"}'):
            wait_until(lambda: _StuckEmbedder.waiting == 1, "the request")
            assert embed(server, "w5").status_code == 429


def test_encoder_is_loaded_and_unloaded_as_the_others(embedding_spec: ModelSpec, folder: Path) -> None:
    lazy = ModelSpec(name="v", load=lambda: AsyncEmbedder(folder, threads=1), kind="embedding", eager=False)
    with RunningServer([lazy], model_ttl=0.2) as server:
        assert server.http.get("/v1/models").json()["data"][0]["state"] == "unloaded"
        assert embed(server, "w5", model="v").status_code == 200
        entry = server.server.state.models.entries["v"]
        wait_until(lambda: entry.model is None, "the unloading")
        assert embed(server, "w5", model="v").status_code == 200
        assert entry.num_loads == 2


class TestOpenAIClient:
    """The official client, with both encodings."""

    def test_embeddings(self, server: RunningServer) -> None:
        openai = pytest.importorskip("openai")
        with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
            # The client asks for base64 by itself and decodes it.
            default = client.embeddings.create(model="vectors", input=["w5", "w6 w7"])
            plain = client.embeddings.create(model="vectors", input="w5", encoding_format="float", dimensions=4)
            coded = client.embeddings.create(model="vectors", input="w5", encoding_format="base64")
            with pytest.raises(openai.BadRequestError) as refused:
                client.embeddings.create(model="org/hello", input="w5")

        assert default.usage.prompt_tokens == 7
        np.testing.assert_allclose(default.data[0].embedding, pooled((5,)), atol=TOLERANCE)
        np.testing.assert_allclose(default.data[1].embedding, pooled((6, 7)), atol=TOLERANCE)
        assert len(plain.data[0].embedding) == 4
        assert isinstance(coded.data[0].embedding, str)
        assert refused.value.param == "model"
