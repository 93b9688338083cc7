"""``onnx-genai embed`` on a tiny encoder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.embedding.conftest import pooled, text_of
from tests.embedding.tiny_bert import write_checkpoint
from tests.models.encoder import EncoderFiles, EncoderStyle, write_encoder_package

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = EncoderFiles(prompts={"query": "w40 "}, max_seq_length=20)
    return write_encoder_package(tmp_path_factory.mktemp("encoder") / "tiny", files=files)


def test_summary_shows_values_and_cosines(run: Run, encoder: Path) -> None:
    ran = run("embed", encoder, "w5", "w6 w7", "--threads", 1)

    assert ran.code == 0, ran.err
    first, second, blank, head, *rows = ran.out.splitlines()
    assert first.split()[:4] == ["0", "w5", "3", "tokens"]
    np.testing.assert_allclose([float(value) for value in first.split()[4:8]], pooled((5,))[:4], atol=6e-5)
    assert "... (8 values)" in second
    assert blank == ""
    assert head.split() == ["cosine", "0", "1"]
    cosine = float(pooled((5,)) @ pooled((6, 7)))
    np.testing.assert_allclose([float(value) for value in rows[0].split()], [0, 1, cosine], atol=6e-5)
    assert len(rows) == 2


def test_json_is_one_object_a_line(run: Run, encoder: Path) -> None:
    ran = run("embed", encoder, "w5", "w6 w7", "--json", "--threads", 1)

    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [(line["index"], line["tokens"]) for line in lines] == [(0, 3), (1, 4)]
    np.testing.assert_allclose([line["embedding"] for line in lines], [pooled((5,)), pooled((6, 7))], atol=TOLERANCE)


def test_npy_holds_float32_rows(run: Run, encoder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("w5\nw6 w7\n", encoding="utf-8")

    ran = run("embed", encoder, "--file", texts, "--npy", tmp_path / "v.npy", "--dimensions", 3, "--threads", 1)

    assert (ran.code, ran.out) == (0, "")
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.dtype == np.float32
    cut = pooled((6, 7))[:3]
    np.testing.assert_allclose(vectors[1], cut / np.linalg.norm(cut), atol=TOLERANCE)


def test_npy_may_go_to_standard_output(encoder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from onnx_genai.cli import main

    assert main(["embed", str(encoder), "w5", "--npy", "-", "--threads", "1"]) == 0

    vectors = np.load(io.BytesIO(capfdbinary.readouterr().out))
    np.testing.assert_allclose(vectors, [pooled((5,))], atol=TOLERANCE)


def test_piped_lines_are_texts(run: Run, encoder: Path) -> None:
    ran = run("embed", encoder, "--json", "--threads", 1, stdin=b"w5\nw6 w7\n")
    both = run("embed", encoder, "w8", "--file", "-", "--json", "--threads", 1, stdin=b"w5\n")

    assert len(ran.out.splitlines()) == 2
    assert len(both.out.splitlines()) == 2


def test_only_line_ends_part_texts(run: Run, encoder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes("w5\u2028w6\r\nw7\x0cw8\n".encode())

    read = run("embed", encoder, "--file", texts, "--json", "--threads", 1)
    piped = run("embed", encoder, "--json", "--threads", 1, stdin=texts.read_bytes())

    assert len(read.out.splitlines()) == 2
    assert piped.out == read.out


def test_query_orders_texts(run: Run, encoder: Path) -> None:
    ran = run("embed", encoder, "--query", "w5", "w30", "w5", "w6", "--top-n", 2, "--threads", 1)
    lines = [line.split("\t") for line in ran.out.splitlines()]
    as_json = run("embed", encoder, "--query", "w5", "w30", "w5", "w6", "--top-n", 2, "--json", "--threads", 1)

    assert len(lines) == 2
    assert lines[0][1:] == ["1", "w5"]
    assert float(lines[0][0]) >= float(lines[1][0])
    assert json.loads(as_json.out.splitlines()[0])["text"] == "w5"


def test_options_reach_the_model(run: Run, encoder: Path) -> None:
    prompted = run("embed", encoder, "w5", "--prompt-name", "query", "--json", "--threads", 1)
    plain = run("embed", encoder, "w5", "--no-normalize", "--json", "--threads", 1)
    cut = run("embed", encoder, text_of(*range(4, 40)), "--truncate", "--json", "--threads", 1)

    np.testing.assert_allclose(json.loads(prompted.out)["embedding"], pooled((40, 5)), atol=TOLERANCE)
    np.testing.assert_allclose(json.loads(plain.out)["embedding"], pooled((5,), unit=False), atol=TOLERANCE)
    assert json.loads(cut.out)["tokens"] == 20


def test_long_text_is_a_failure_with_the_way_out(run: Run, encoder: Path) -> None:
    ran = run("embed", encoder, text_of(*range(4, 40)), "--threads", 1)

    assert (ran.code, ran.out) == (1, "")
    assert "text 0 has 38 tokens, sentence_bert_config.json max_seq_length allows 20" in ran.err


def test_reranker_needs_a_query(run: Run, tmp_path: Path) -> None:
    folder = write_encoder_package(tmp_path / "r", EncoderStyle(output="logits"), EncoderFiles(modules=None))
    without = run("embed", folder, "w5", "--threads", 1)
    ranked = run("embed", folder, "w5", "w6", "--query", "w7", "--threads", 1)

    assert without.code == 1
    assert "is a reranker" in without.err
    assert len(ranked.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["w5", "--json", "--npy", "x"], "--json and --npy exclude each other"),
        (["w5", "--npy", "no/such/folder/v.npy"], "name a file in a folder that exists"),
        (["w5", "--top-n", "2"], "--top-n belongs to --query"),
        (["w5", "--query", "w6", "--dimensions", "2"], "drop --dimensions"),
        ([], "no text was given"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_loaded(run: Run, model: Path, arguments: list[str], text: str) -> None:
    ran = run("embed", model, *arguments)

    assert ran.code == 2
    assert text in ran.err


def test_show_tells_what_an_encoder_is(run: Run, encoder: Path) -> None:
    ran = run("show", encoder)
    facts = json.loads(run("show", encoder, "--json").out)

    assert "kind: embedding model\n" in ran.out
    assert "pooling: mean (from 1_Pooling/config.json)\n" in ran.out
    assert "after pooling: normalize\n" in ran.out
    assert "longest text: 20 (from sentence_bert_config.json max_seq_length)\n" in ran.out
    assert (facts["kind"], facts["width"], facts["prompts"]) == ("embedding", 8, {"query": "w40 "})
    assert facts["ports"]["token_type_ids"] == "token_type_ids (int64)"


def test_import_takes_the_folder_of_a_checkpoint(run: Run, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert_score")
    ran = run("import", source, tmp_path / "out", "--json")
    shown = run("show", tmp_path / "out")
    refused = run("import", source, tmp_path / "other", "--bits", 4)

    assert json.loads(ran.out)["output"] == "logits", ran.err
    assert "kind: reranker (scores a query with a document)\n" in shown.out
    assert (refused.code, (tmp_path / "other").exists()) == (2, False)
