"""Many clients at once, of whom some leave: every answer is that of its own prompt, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import Limits, ModelSpec
from tests.models.checksum import VOCAB_SIZE, checksum_next
from tests.server.running import RunningServer, chunks_of, raw_request

NUM_CLIENTS = 12
REQUESTS_EACH = 15


def expected(prompt: list[int], count: int) -> list[str]:
    history = list(prompt)
    for _ in range(count):
        history.append(checksum_next(history))
    return [f"w{token}" for token in history[len(prompt) :] if token >= 3]


@pytest.mark.parametrize("style", ["concat", "gqa"])
def test_every_answer_is_right_while_others_leave(
    serve: Callable[..., RunningServer], checksum_package: Callable[..., Path], style: str
) -> None:
    folder = checksum_package(style)
    spec = ModelSpec(name="checksum", load=lambda: AsyncLLM(folder, threads=1, max_num_seqs=8))
    server = serve(spec, limits=Limits(max_body_bytes=100_000)).wait_ready()
    prefix = [3 + index % 90 for index in range(40)]

    def client(seed: int) -> int:
        rng = random.Random(seed)
        checked = 0
        for _ in range(REQUESTS_EACH):
            own = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
            prompt = prefix[: rng.choice([0, 16, 40])] + own
            count = rng.randint(1, 40)
            body: dict[str, Any] = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
            body["stream"] = rng.random() < 0.5
            kind = rng.random()
            if kind < 0.25:
                sent = json.dumps({**body, "max_tokens": 3000}).encode()
                with raw_request(server, "/v1/completions", sent) as connection:
                    connection.settimeout(rng.choice([0.001, 0.02]))
                    with contextlib.suppress(TimeoutError):
                        connection.recv(rng.randint(1, 400))
                continue
            if kind < 0.3:
                large = server.http.post("/v1/completions", json={"prompt": "x" * 200_000})
                assert large.status_code == 413
                continue
            response = server.http.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            if body["stream"]:
                text = "".join(chunk["choices"][0]["text"] for chunk in chunks_of(response.text))
            else:
                text = response.json()["choices"][0]["text"]
            assert text.split() == expected(prompt, count)
            checked += 1
        return checked

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        assert sum(pool.map(client, range(NUM_CLIENTS))) > NUM_CLIENTS * REQUESTS_EACH / 2

    server.wait_idle()
    assert server.metric("kv_hot_used_blocks") == 0
    assert server.http.get("/slots").json() == []
