"""LoRA adapters of a served model: ``model:adapter``."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.graph.tiny_attention import VOCAB, Tiny, build
from tests.models.lora import Greedy, add_lora, draw_adapter, merge, write_adapter
from tests.models.packages import scripted_facts, write_package
from tests.models.texts import word_level_tokenizer
from tests.server.running import RunningServer, chunks_of

TARGETS = ("wq.0", "wv.1", "wo.0")
TEMPLATE = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
NAMES = ("tiny", "tiny:red", "tiny:blue")
PROMPT = [5, 9, 4, 4, 11, 3, 7]


@pytest.fixture(scope="module")
def expected() -> dict[str, Greedy]:
    graph = build(Tiny(form="gqa"))
    found = {"tiny": Greedy(graph)}
    for seed, name in enumerate(NAMES[1:], start=1):
        found[name] = Greedy(merge(graph, draw_adapter(graph, TARGETS, seed)))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    graph = build(Tiny(form="gqa"))
    facts = replace(scripted_facts(word_level_tokenizer(VOCAB), VOCAB, 256), chat_template=TEMPLATE)
    write_package(folder / "model", add_lora(graph, TARGETS), facts, "optimum")
    files = {
        name: write_adapter(folder / f"{name}.onnx_adapter", draw_adapter(graph, TARGETS, seed))
        for seed, name in enumerate(("red", "blue"), start=1)
    }

    def load() -> AsyncLLM:
        model = AsyncLLM(folder / "model", threads=1)
        for name, file in files.items():
            model.engine.adapters.load(file, name)
        return model

    spec = ModelSpec(name="tiny", load=load, aliases=("other",), adapters=("red", "blue"))
    with RunningServer([spec]) as running:
        yield running.wait_ready()


def words(ids: list[int]) -> str:
    """As the tokenizer writes them."""
    return word_level_tokenizer(VOCAB).decode(ids, skip_special_tokens=True)


def body(model: str | None, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    return asked if model is None else {"model": model, **asked}


def test_completions_of_each_name_are_those_of_merged_weights(
    server: RunningServer, expected: dict[str, Greedy]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: server.http.post("/v1/completions", json=body(name)).json(), NAMES * 4))

    for name, answer in zip(NAMES * 4, answers, strict=True):
        assert answer["model"] == name
        assert answer["choices"][0]["text"].split() == words(expected[name].generate(PROMPT, 8)).split(), name


def test_an_alias_takes_adapters_and_streams_have_them(server: RunningServer, expected: dict[str, Greedy]) -> None:
    text = server.http.post("/v1/completions", json=body("other:red", stream=True)).text

    chunks = chunks_of(text)
    assert {chunk["model"] for chunk in chunks} == {"tiny:red"}
    joined = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert joined.split() == words(expected["tiny:red"].generate(PROMPT, 8)).split()


def test_a_session_keeps_its_adapter(server: RunningServer, expected: dict[str, Greedy]) -> None:
    made = server.http.post("/v1/sessions", json={"model": "other:blue"}).json()
    assert made["model"] == "tiny:blue"
    ask = {"messages": [{"role": "user", "content": "w5 w9 w4"}], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    headers = {"X-Session-Id": made["id"]}

    answer = server.http.post("/v1/chat/completions", json=ask, headers=headers).json()
    other = server.http.post("/v1/chat/completions", json={**ask, "model": "tiny:red"}, headers=headers)

    assert answer["model"] == "tiny:blue"
    wanted = words(expected["tiny:blue"].generate([5, 9, 4], 6)).split()
    assert answer["choices"][0]["message"]["content"].split() == wanted
    assert (other.status_code, other.json()["error"]["param"]) == (400, "model")


def test_the_list_has_the_adapters_with_their_parent(server: RunningServer) -> None:
    listed = server.http.get("/v1/models").json()["data"]

    assert [(each["id"], each.get("parent")) for each in listed] == [
        ("tiny", None),
        ("tiny:red", "tiny"),
        ("tiny:blue", "tiny"),
    ]
    assert server.http.get("/v1/models/other:red").json() == listed[1]


@pytest.mark.parametrize("name", ["tiny:green", "red", "tiny:", ":red", "nobody:red", "tiny:red:blue"])
def test_unknown_names_are_answered_404_with_those_that_there_are(server: RunningServer, name: str) -> None:
    answer = server.http.post("/v1/completions", json=body(name))

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "there are: tiny, other, tiny:red, tiny:blue." in answer.json()["error"]["message"]


def test_a_path_of_an_adapter_is_in_no_answer(server: RunningServer, tmp_path: Path) -> None:
    texts = [server.http.get(path).text for path in ("/v1/models", "/props", "/metrics")]

    assert not any("onnx_adapter" in text for text in texts)
